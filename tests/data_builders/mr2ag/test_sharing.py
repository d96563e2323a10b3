"""mR²AG-IT built by several processes: each image searched for once, each question built once, the same bytes."""

import dataclasses
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.images import load_image
from reflectune.core.launching import ALONE, Processes
from reflectune.data_builders.annotators.string import by_string
from reflectune.data_builders.mr2ag import builder as example_builder
from reflectune.data_builders.mr2ag import run as reflection_run
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.run import build_split
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.hits import Hit
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import load_index
from reflectune.retrieval.retrievers.queries import Query

from .conftest import ENTITIES, QUESTIONS


class Shades:
    """A retriever that ranks entries by the distance of their number to an image's shade, and records the shades."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def search(self, queries: Sequence[Query], top_n: int) -> list[list[Hit]]:
        shades = [query.image.getpixel((0, 0))[0] for query in queries]
        self.asked += shades
        orders = [sorted(range(ENTITIES), key=lambda n, shade=shade: (abs(n - shade), n)) for shade in shades]
        return [[Hit(f"e{n}", 1 - n / 100, rank, "", "kb", {}) for rank, n in enumerate(o[:top_n])] for o in orders]


def files(config: BuildConfig) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(config.output).iterdir()}


def build_together(config: BuildConfig, searchers: Sequence[Shades], annotators: Sequence[Any]) -> None:
    """Build with one thread per searcher, synchronised as processes are."""
    meeting = threading.Barrier(len(searchers))

    def work(number: int) -> None:
        processes = Processes(number, len(searchers), lambda: meeting.wait(30) and None)
        build_split(Dataset(Path(config.dataset)), searchers[number], annotators[number], config, processes)

    with ThreadPoolExecutor(len(searchers)) as pool:
        list(pool.map(work, range(len(searchers))))


@pytest.mark.parametrize(("count", "chunk"), [(2, 2), (3, 5), (2, 64)])
def test_processes_search_for_each_image_once_and_write_the_bytes_of_one(config, monkeypatch, count, chunk) -> None:
    monkeypatch.setattr(reflection_run, "CHUNK", chunk)
    alone, shared, searcher, opened = config("alone"), config("shared"), Shades(), []
    monkeypatch.setattr(example_builder, "load_image", lambda *a, **b: opened.append(a[0]) or load_image(*a, **b))
    build_split(Dataset(Path(alone.dataset)), searcher, by_string, alone)
    assert len(opened) == len(set(opened)) == ENTITIES
    searchers, judged = [Shades() for _ in range(count)], [0] * count

    def counting(number: int) -> Any:
        def annotate(cases: Sequence[Any]) -> Any:
            judged[number] += len({question.id for question, _ in cases})
            return by_string(cases)

        return annotate

    looking, build_visual = set(), reflection_run.ExampleBuilder.build_visual

    def noting(self: Any, questions: Sequence[Any], *left: int) -> Any:
        looking.update([threading.get_ident()] if questions else [])
        return build_visual(self, questions, *left)

    monkeypatch.setattr(reflection_run.ExampleBuilder, "build_visual", noting)
    build_together(shared, searchers, [counting(number) for number in range(count)])
    assert searcher.asked == list(range(ENTITIES))
    assert sorted(shade for searcher in searchers for shade in searcher.asked) == list(range(ENTITIES))
    assert sum(judged) == QUESTIONS
    if chunk < 5:
        assert all(other.asked for other in searchers)
        assert all(judged)
        assert len(looking) == count
    assert files(shared) == files(alone)


def test_a_launch_goes_on_with_what_one_process_had_searched_for(config, monkeypatch) -> None:
    monkeypatch.setattr(reflection_run, "CHUNK", 4)
    alone, shared, cut_off = config("alone"), config("shared"), Shades()
    build_split(Dataset(Path(alone.dataset)), Shades(), by_string, alone)

    def ends(cases: Sequence[Any]) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_split(Dataset(Path(shared.dataset)), cut_off, ends, shared, ALONE)
    assert len(cut_off.asked) == ENTITIES
    searchers = [Shades(), Shades()]
    build_together(shared, searchers, [by_string, by_string])
    assert not any(other.asked for other in searchers)
    assert files(shared) == files(alone)


def test_the_others_only_search_where_a_server_is_asked(config, monkeypatch) -> None:
    monkeypatch.setattr(reflection_run, "CHUNK", 3)
    alone, shared = config("alone"), config("shared")
    build_split(Dataset(Path(alone.dataset)), Shades(), by_string, alone)
    shared = shared.model_copy(update={"annotator": "llm"})
    searchers = [Shades(), Shades()]
    build_together(shared, searchers, [by_string, None])
    assert [len(other.asked) for other in searchers] == [6, 6]
    assert files(shared)["train.parquet"] == files(alone)["train.parquet"]


def test_an_image_whose_first_question_is_bad_is_searched_for_by_the_next(config, folder) -> None:
    questions = Dataset(folder).questions("train")
    write_questions(folder, "train", [dataclasses.replace(questions[0], text=""), *questions[1:]])
    (folder / "images/3.png").unlink()
    skipping, searcher = config("skipping", on_error="skip"), Shades()
    build_split(Dataset(folder), searcher, by_string, skipping)
    assert searcher.asked == [1, 2, *range(4, ENTITIES), 0]
    numbers = json.loads(Path(skipping.output, "statistics.json").read_text())["train"]
    assert [row["id"] for row in numbers["bad_rows"]] == ["k0", "k3", "k15", "k27", "v3"]


def test_a_process_maps_an_index_and_shares_its_pages(folder: Path, encoder: str, tmp_path: Path) -> None:
    """Index files are mapped and shared, so that memory holds their pages once for all processes."""
    knowledge, loaded = Dataset(folder).knowledge, load_encoder(encoder)
    build_index(knowledge, loaded, tmp_path / "cells", store="faiss")
    index = load_index(tmp_path / "cells", knowledge, loaded)
    index.store.search({"image": loaded.encode_texts(["a tower"])}, 3)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    modes = {Path(line[-1]).name: line[1] for line in maps if str(tmp_path / "cells") in line[-1]}
    shared = ("codes.faiss", "image.f16", "title.f16", "owners.npy", "entries.npy")
    assert {name: modes.get(name, "")[-1:] for name in shared} == dict.fromkeys(shared, "s")

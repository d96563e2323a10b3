import dataclasses
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from reflectune.core.config import parse_config
from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.images import BadImage, origin_of
from reflectune.core.types import FollowUp, Question
from reflectune.data_builders.annotators.string import by_string
from reflectune.data_builders.mr2ag import run as reflection_run
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.examples import NO_EVIDENCE
from reflectune.data_builders.mr2ag.run import build_split, preview
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.hits import Hit
from reflectune.formats.reflection_data import STATISTICS, read_examples, read_manifest
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.retrieval.retrievers.queries import Query

from .conftest import ENTITIES, knowledge_question


class Neighbours:
    """A retriever that ranks the entries by their numbers for every query."""

    def search(self, queries: Sequence[Query], top_n: int) -> list[list[Hit]]:
        ranked = [Hit(f"e{i}", 1 - i / 100, i, "", "kb", {}) for i in range(top_n)]
        return [ranked for _ in queries]


def build(config: BuildConfig, retriever: Any = None) -> list[ReflectionExample]:
    build_split(Dataset(Path(config.dataset)), retriever or Neighbours(), by_string, config)
    return read_examples(Path(config.output, "train.parquet"), ReflectionExample)


def numbers_of(config: BuildConfig, split: str = "train") -> dict[str, Any]:
    return json.loads(Path(config.output, STATISTICS).read_text())[split]


def rewrite(folder: Path, **changes: Any) -> None:
    """Change the first question of the data set."""
    questions = Dataset(folder).questions("train")
    write_questions(folder, "train", [dataclasses.replace(questions[0], **changes), *questions[1:]])


def test_a_split_is_built_with_its_manifest_and_statistics(config: Callable[..., BuildConfig], folder: Path) -> None:
    run = config(visual_ratio=0.2)
    assert run.problems() == []
    examples, numbers = build(run), numbers_of(run)
    assert (numbers["with_retrieval"], numbers["without_retrieval"]) == (30, 8)  # 8 of 38: a fifth
    assert numbers["branches_by_source"] == {"gold": 30, "look_alike": 60, "random": 30, "same_article": 60}
    assert sum(len(example.branches) for example in examples) == numbers["branches"] == 180
    assert read_manifest(run.output).image_root == folder
    assert list(read_manifest(run.output).fingerprints) == ["train"]


def test_negatives_come_from_the_best_ranked_entries_but_never_from_the_questions_own(config) -> None:
    for example in build(config(negatives_random=0)):
        entry_id = f"e{int(example.id[1:]) % ENTITIES}"
        alike = {branch.passage.entry_id for branch in example.branches if branch.source == "look_alike"}
        assert entry_id not in alike
        assert alike <= {f"e{i}" for i in range(5)}  # four deep, after the question's own entry is taken out


def test_an_entry_that_a_question_names_twice_gives_no_passage_twice(config, folder: Path) -> None:
    rewrite(folder, entity_ids=("e0", "e0"))
    (first, *_) = build(config(positives=2))
    ids = [branch.passage.id for branch in first.branches]
    assert len(ids) == len(set(ids)) == 6


@pytest.mark.parametrize(
    ("half", "chunk", "chunks"),
    [
        ("build_knowledge", 7, ["k0", "k7", "k14", "k14", "k21", "k28"]),
        ("build_visual", 3, ["v10", "v11", "v2", "v2", "v9"]),
    ],
)
def test_an_interrupted_build_ends_with_the_same_file(half, chunk, chunks, config, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(reflection_run, "CHUNK", chunk)
    straight, resumed = config(), config("resumed")
    build(straight)
    original = getattr(reflection_run.ExampleBuilder, half)
    built = []

    def stop_at_third(self: Any, questions: Sequence[Question], *count: int) -> Any:
        built.append(questions[0].id)
        if len(built) == 3:
            raise KeyboardInterrupt
        return original(self, questions, *count)

    monkeypatch.setattr(reflection_run.ExampleBuilder, half, stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        build(resumed)
    build(resumed)
    assert built == chunks  # the third is built again alone
    for name in ("train.parquet", STATISTICS, "proofread_train.html"):
        assert Path(resumed.output, name).read_bytes() == Path(straight.output, name).read_bytes()


def test_a_built_split_is_left_alone_until_other_settings_build_it_again(config, capsys) -> None:
    build(config())
    build(config())
    assert "nothing to do" in capsys.readouterr().out
    build(config(positives=1, negatives_random=3))
    assert numbers_of(config())["branches_by_source"]["random"] == 90


def test_edited_questions_are_built_again_and_no_logged_row_of_the_others_is_taken(config, folder, monkeypatch) -> None:
    monkeypatch.setattr(reflection_run, "CHUNK", 5)
    with monkeypatch.context() as patch:
        patch.setattr(reflection_run, "write_examples", None)  # cut off after its log is whole
        with pytest.raises(TypeError):
            build(config())
    questions = Dataset(folder).questions("train")
    write_questions(folder, "train", questions[1:])
    ids = [example.id for example in build(config()) if example.retrieve]
    assert ids == [f"k{i}" for i in range(1, 30)]
    rewrite(folder, text="In which year was it founded?")
    assert build(config())[0].question == "In which year was it founded?"


def test_images_that_were_moved_are_named_anew(config, folder: Path) -> None:
    build(config())
    (folder / "elsewhere").mkdir()
    (folder / "images").rename(folder / "elsewhere" / "images")
    write_json(folder / "dataset.json", {"name": "towers", "fingerprint": "f1", "image_root": "elsewhere"})
    assert {Path(example.image).parts[0] for example in build(config())} == {"elsewhere"}


def test_a_build_that_is_killed_before_its_manifest_is_not_taken_for_the_earlier_one(config, monkeypatch) -> None:
    build(config())
    with monkeypatch.context() as patch:
        patch.setattr(reflection_run, "write_page", lambda *_, **__: 1 / 0)  # after the examples, before the manifest
        with pytest.raises(ZeroDivisionError):
            build(config(positives=1, negatives_random=3))
    build(config())
    assert numbers_of(config())["branches_by_source"]["random"] == 30
    assert len(build(config())[0].branches) == 6


def test_an_abandoned_build_leaves_nothing_in_the_way(config: Callable[..., BuildConfig], folder: Path) -> None:
    rewrite(folder, text="")
    with pytest.raises(UserError, match="the question is empty"):
        build(config())
    rewrite(folder, text="When was it founded?")
    write_json(folder / "dataset.json", {"name": "towers", "fingerprint": "f2"})
    build(config())
    files = {"proofread_train.html", "reflection.json", STATISTICS, "train.parquet"}
    assert {path.name for path in Path(config().output).iterdir()} == files


def test_a_different_data_set_is_refused(config: Callable[..., BuildConfig], folder: Path, tmp_path: Path) -> None:
    build(config())
    folder.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"holds reflection data of .*world, not of .*moved"):
        build(config(dataset=str(tmp_path / "moved")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": ""}, "question k0 of .*: the question is empty"),
        ({"image": "images/gone.png"}, r"image not found: .*gone\.png"),
        ({"entity_ids": ("e999",)}, "e999"),
    ],
)
def test_a_bad_row_stops_the_build_or_is_listed(config, folder, changes, message) -> None:
    rewrite(folder, **changes)
    with pytest.raises(UserError, match=rf"{message}(.|\n)*on_error: skip"):
        build(config())
    build(config(on_error="skip"))
    numbers = numbers_of(config())
    assert [row["id"] for row in numbers["bad_rows"]] == ["k0"]
    assert numbers["with_retrieval"] == 29


def test_a_build_that_goes_on_with_stop_loses_no_row(config, folder: Path, monkeypatch) -> None:
    rewrite(folder, image="images/gone.png")
    with monkeypatch.context() as patch:
        patch.setattr(reflection_run, "write_examples", None)  # cut off after its log is whole
        with pytest.raises(TypeError):
            build(config(on_error="skip"))
    with pytest.raises(UserError, match=r"question k0: image not found: (.|\n)*set `on_error: skip` again"):
        build(config())
    build(config(on_error="skip"))
    assert [row["id"] for row in numbers_of(config())["bad_rows"]] == ["k0"]


def test_a_damaged_knowledge_base_is_no_bad_row(config, folder: Path) -> None:
    (shard,) = (folder / "knowledge").glob("*.parquet")
    with pq.ParquetFile(shard) as file:
        texts = next(c for i in range(99) if "text" in (c := file.metadata.row_group(0).column(i)).path_in_schema)
    content = bytearray(shard.read_bytes())
    content[(texts.dictionary_page_offset or texts.data_page_offset) + texts.total_compressed_size - 3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{shard} is not a readable Parquet file"):
        build(config(on_error="skip"))


class Picky(Neighbours):
    """A retriever whose encoder can't take one of the images."""

    def search(self, queries: Sequence[Query], top_n: int) -> list[list[Hit]]:
        if any(origin_of(query.image).endswith("/3.png") for query in queries):
            raise BadImage("image refused by the encoder")
        return super().search(queries, top_n)


def test_an_image_that_the_encoder_refuses_stops_or_is_not_searched(config, folder: Path) -> None:
    with pytest.raises(UserError, match=r"question k3 .*: image refused by the encoder; .*on_error: skip"):
        build(config(), Picky())
    sources = {e.id: {b.source for b in e.branches} for e in build(config(on_error="skip"), Picky()) if e.branches}
    assert len(sources) == 30
    assert [name for name, kinds in sources.items() if "look_alike" not in kinds] == ["k3", "k15", "k27"]


def test_a_question_without_evidence_is_left_out_and_counted_by_its_type(config, folder) -> None:
    rewrite(folder, answers=("1066",), answer_type="string")
    build(config())
    numbers = numbers_of(config())
    assert (numbers["questions_left_out"], numbers["bad_rows"]) == ({NO_EVIDENCE: 1}, [])
    counts = {"string": {"questions": 1, "examples": 0}, "time": {"questions": 29, "examples": 29}}
    assert numbers["by_answer_type"] == counts


def test_a_split_without_an_example_is_an_error(config, folder, tmp_path) -> None:
    write_questions(folder, "train", [dataclasses.replace(knowledge_question(0), answers=("1066",))])
    with pytest.raises(UserError, match=f"has an example: 1 × {NO_EVIDENCE}"):
        build(config())
    write_questions(folder, "train", [dataclasses.replace(knowledge_question(0), entity_ids=("Entry 0",))])
    with pytest.raises(UserError, match="has an example: 1 bad rows, the first: question k0: entry Entry 0 is not in"):
        build(config(on_error="skip", output=str(tmp_path / "other")))


def test_a_dry_run_shows_an_example_and_writes_nothing(config: Callable[..., BuildConfig]) -> None:
    run = config()
    shown = preview(Dataset(Path(run.dataset)), Neighbours(), run)
    assert "30 knowledge-based questions, 12 visual ones" in shown
    assert "[Relevant] 1500 gold: Tower 0: A tower, number 0. History. It was founded in 1500." in shown
    assert "[Irrelevant] look_alike:" in shown
    assert not Path(run.output).exists()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a data set like LLaVA-Instruct: 40 visual-dependent questions and a knowledge-based one."""
    root = tmp_path / "elsewhere" / "llava"
    write_json(root / "dataset.json", {"name": "llava", "fingerprint": "f9"})
    Image.new("RGB", (8, 8), "blue").save(root / "a.png")
    blue = Question("", "a.png", "Which colour?", ("It is blue.",), answer_type="free_form", requires_retrieval=False)
    more = FollowUp("Why?", "It is painted.")
    seen = [dataclasses.replace(blue, id=f"l{i}", follow_ups=(more,) * (i % 3)) for i in range(40)]
    write_questions(root, "instruct", [*seen, knowledge_question(0)])
    return root


def test_visual_questions_come_from_another_data_set(config: Callable[..., BuildConfig], images: Path) -> None:
    run = config(visual_dataset=str(images), visual_split="instruct", visual_ratio=0.5)
    examples = build(run)
    root = read_manifest(run.output).image_root
    visual = [example for example in examples if not example.retrieve]
    assert len(visual) == len(examples) - len(visual) == 30
    assert {example.id[0] for example in visual} == {"l"}
    assert {example.answer for example in visual} == {"It is blue."}
    assert all((root / example.image).is_file() for example in examples)
    assert not any(Path(example.image).is_absolute() for example in examples)


def test_ids_that_both_data_sets_have_stay_unique_when_a_build_resumes(config, images, tmp_path, monkeypatch) -> None:
    seen = Dataset(images).questions("instruct")[:40]
    write_questions(images, "instruct", [dataclasses.replace(q, id=f"k{i}") for i, q in enumerate(seen)])
    run = config(visual_dataset=str(images), visual_split="instruct", visual_ratio=0.5)
    again = run.model_copy(update={"output": str(tmp_path / "again")})
    monkeypatch.setattr(reflection_run, "CHUNK", 7)
    examples = build(run)
    with monkeypatch.context() as patch:
        patch.setattr(reflection_run, "write_examples", None)  # cut off after its log is whole
        with pytest.raises(TypeError):
            build(again)
    build(again)
    assert {example.id for example in examples if example.retrieve} == {f"k{i}" for i in range(30)}
    expected = {f"llava: k{i}" for i in range(30)} | {f"k{i}" for i in range(30, 40)}
    assert {example.id for example in examples if not example.retrieve} < expected
    assert Path(run.output, "train.parquet").read_bytes() == Path(again.output, "train.parquet").read_bytes()


@pytest.mark.parametrize(("limit", "expected"), [(None, 40), (25, 25)])
def test_visual_questions_alone_each_once_need_no_knowledge_base(config, images, limit, expected) -> None:
    run = config(dataset=str(images), split="instruct", visual_ratio=1, negatives_retrieved=0, limit=limit)
    assert run.problems() == []
    build_split(Dataset(images), None, by_string, run)
    examples = read_examples(Path(run.output, "instruct.parquet"), ReflectionExample)
    assert len({example.id for example in examples}) == len(examples) == expected
    assert all(len(example.follow_ups) == int(example.id[1:]) % 3 for example in examples)
    assert numbers_of(run, "instruct")["follow_ups"] == sum(len(example.follow_ups) for example in examples) > 0
    assert not any(example.retrieve for example in examples)
    problems = config(visual_ratio=1, visual_dataset=str(images)).problems()
    assert any("leave out `visual_dataset`" in problem for problem in problems)


def test_another_fingerprint_of_the_visual_data_set_builds_again(config, images, capsys) -> None:
    run = config(visual_dataset=str(images), visual_split="instruct")
    build(run)
    write_json(images / "dataset.json", {"name": "llava", "fingerprint": "f10"})
    build(run)
    assert "nothing to do" not in capsys.readouterr().out


def test_a_visual_data_set_without_visual_questions_is_an_error(config, images) -> None:
    write_questions(images, "instruct", [knowledge_question(0)])
    with pytest.raises(UserError, match=r"no question of split instruct of .*llava is visual-dependent"):
        build(config(visual_dataset=str(images), visual_split="instruct"))


def test_too_few_visual_questions_are_reported(config, capsys) -> None:
    build(config(visual_ratio=0.5))
    printed = capsys.readouterr().out
    assert "asks for 30 visual-dependent questions, there are 12" in printed
    assert "warning" not in printed
    assert re.search(r"words of a passage: median \d+, 95 % have at most \d+, the longest \d+", printed)


def test_a_question_without_an_image_can_get_a_black_one(config: Callable[..., BuildConfig], folder: Path) -> None:
    rewrite(folder, image="")
    run = config(without_image="blank")
    (example,) = (example for example in build(run) if example.id == "k0")
    with Image.open(read_manifest(run.output).image_root / example.image) as image:
        assert image.getextrema() == ((0, 0),) * 3
    assert {branch.source for branch in example.branches} == {"gold", "same_article", "random"}


def judge(text: str) -> str:
    """Reply of the stub server: right about founding, unreadable in every tenth case."""
    number = sum(map(ord, text))
    return "hm" if number % 10 == 0 else "[Relevant]\nAnswer source: x" if "founded in" in text else "[Irrelevant]"


@pytest.fixture
def without_evidence(folder: Path) -> None:
    """Name no evidence in the questions, so that whole articles are annotated."""
    questions = Dataset(folder).questions("train")
    write_questions(folder, "train", [dataclasses.replace(question, evidence=()) for question in questions])


def llm_arguments(run: BuildConfig, url: str) -> list[str]:
    return [
        *("--dataset", run.dataset, "--output", run.output, "--negatives_retrieved", "0", "--annotator", "llm"),
        *("--llm_url", url, "--llm_model", "stub"),
        *("--llm_concurrency", "2", "--llm_input_price", "1"),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("without_evidence")
def test_a_killed_annotation_resumes_and_pays_for_no_reply_twice(
    config: Callable[..., BuildConfig], stub_server: Callable[..., Any], start_program: Callable[..., Any]
) -> None:
    def start(run: BuildConfig) -> Any:
        return start_program(["-m", "reflectune", "build_mr2ag", *llm_arguments(run, server.url)])

    faults: list[dict[str, Any]] = [
        {"status": 429, "body": "", "retry_after": "0.02"},
        {"body": "<html>"},
        {"broken": True},
        {"status": 500, "body": ""},
    ]
    server = stub_server(judge, lambda text, n: faults[len(text) % 4] if n < len(text) % 3 else {}, seconds=0.05)
    killed = config("killed")
    program = start(killed)
    while sum(server.delivered.values()) < 20 and program.poll() is None:
        time.sleep(0.01)
    program.kill()
    assert program.poll() == -9, program.stderr
    server.settle()
    before = dict(server.delivered)
    program = start(killed)
    assert program.wait() == 0, program.stderr

    twice = [text for text, times in server.delivered.items() if times > 1]
    assert len(before) < len(server.delivered) == 36  # 12 entities of three paragraphs each, asked about once
    assert len(twice) <= 2  # requests under way at the kill
    straight = config("straight")
    reflection_run.run(parse_config(BuildConfig, argv=llm_arguments(straight, server.url)))
    for name in ("train.parquet", STATISTICS):
        assert Path(killed.output, name).read_bytes() == Path(straight.output, name).read_bytes()
    numbers = numbers_of(killed)
    assert numbers["unclear_to_the_annotator"] > 0
    assert numbers["annotator"]["replies"] == 36
    assert numbers["annotator"]["cost"] == pytest.approx(numbers["annotator"]["prompt_tokens"] / 1e6)


PRICES = {"llm_input_price": 2.0, "llm_output_price": 8.0, "llm_max_tokens": 10}


@pytest.fixture
def llm(config: Callable[..., BuildConfig], without_evidence: None) -> Callable[..., BuildConfig]:
    """Return a function that makes the config of a build with the annotator `llm`."""

    def build(url: str, **changes: Any) -> BuildConfig:
        asked = {"annotator": "llm", "llm_url": url, "llm_model": "stub"}
        return config(**{**asked, "negatives_retrieved": 0, "negatives_random": 0, **changes})

    return build


def test_an_estimate_is_an_upper_bound_until_replies_are_cached(llm, stub_server, capsys) -> None:
    server = stub_server(judge)
    dry, run_config = llm(server.url, **PRICES, dry_run=True), llm(server.url, **PRICES)
    reflection_run.run(dry)
    before = capsys.readouterr().out
    assert "stub would be asked about 36 paragraphs" in before  # 12 entities of three: equal requests are sent once
    assert "Question: When was it founded?." in before
    assert "36 paragraphs: about " in before
    assert "at most 360 to receive (10 each)" in before
    assert "cost: at most 0.0" in before
    assert server.requests == []
    reflection_run.run(run_config)
    assert "36 paragraphs: about " in capsys.readouterr().out  # printed before the first request
    reflection_run.run(llm(server.url, **PRICES, dry_run=True))
    after = capsys.readouterr().out
    assert "would be asked about 0 paragraphs (36 more are answered already)" in after
    assert "by the 36 cached replies" in after


def test_a_pilots_replies_give_the_cost_of_the_rest(llm, stub_server, capsys) -> None:
    server = stub_server(judge)
    reflection_run.run(llm(server.url, **PRICES, limit=10))
    asked = len(server.requests)
    capsys.readouterr()
    reflection_run.run(llm(server.url, **PRICES, dry_run=True))
    shown = capsys.readouterr().out
    assert f"asked about {36 - asked} paragraphs ({asked} more are answered already)" in shown
    assert f"by the {asked} cached replies" in shown
    assert "cost: about " in shown


def test_questions_that_differ_in_their_images_alone_are_estimated_once(llm, folder: Path, capsys) -> None:
    write_questions(folder, "train", [dataclasses.replace(knowledge_question(i), evidence=()) for i in range(300)])
    reflection_run.run(llm("http://localhost:1/v1", dry_run=True))
    assert "would be asked about 36 paragraphs: " in capsys.readouterr().out


def test_an_estimate_needs_no_key(llm: Callable[..., BuildConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    url = "https://api.example.com/v1"
    assert [problem for problem in llm(url).problems() if "API key" in problem]
    assert not [problem for problem in llm(url, dry_run=True).problems() if "API key" in problem]

"""Entries by a file of rankings: what an image's row lists is found for it, by its file or its pixels."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.retrievers.entry_retriever import open_retriever
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.retrievers.ranked_retriever import RankedRetriever, open_ranked

CAFE = "https://en.wikipedia.org/wiki/Caf%C3%A9_(drink)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set's folder: three entries, and images `images/{red,green,blue}.png`."""
    write_knowledge_base(tmp_path / "knowledge", [Entry(name, name) for name in ("a", "b", CAFE)], name="kb")
    (tmp_path / "images").mkdir()
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"images/{colour}.png")
    return tmp_path


@pytest.fixture
def opened(folder: Path) -> Callable[..., RankedRetriever]:
    def make(*rows: dict[str, Any] | str) -> RankedRetriever:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / "ranked.jsonl").write_text("\n".join(lines) + "\n")
        return open_ranked(folder / "ranked.jsonl", KnowledgeBase(folder / "knowledge"), folder)

    return make


def query(folder: Path, colour: str = "red") -> Query:
    return Query(load_image(f"images/{colour}.png", root=folder))


@pytest.mark.parametrize(
    ("rule", "scores"),
    [("reciprocal_rank", [1.0, 0.5]), ("constant", [1.0, 1.0]), ("softmax_rank", [0.7310586, 0.2689414])],
)
def test_an_entry_without_a_score_has_one_of_its_rank(folder: Path, opened, rule: str, scores: list[float]) -> None:
    opened({"image": "images/red.png", "entities": ["b", "elsewhere", "a"]}, {"image": "images/green.png"})
    ranked = str(folder / "ranked.jsonl")
    config, start = RetrieverConfig(ranked_entities=ranked, ranked_scores=rule), RetrieverConfig(ranked_entities=ranked)
    retriever = open_retriever(config, KnowledgeBase(folder / "knowledge"), image_roots=folder, device="cpu")
    for scored in (retriever, open_ranked(ranked, KnowledgeBase(folder / "knowledge"), folder).scored(rule)):
        (hits,) = scored.search([query(folder)], 2)
        assert [hit.score for hit in hits] == pytest.approx(scores)
        assert scored.search([query(folder)], 1)[0] == hits[:1]
    same = config.finder_fingerprint() == start.finder_fingerprint()
    assert same is (rule == "reciprocal_rank")


def test_an_image_finds_what_its_row_lists_in_that_order(folder: Path, opened: Callable[..., RankedRetriever]) -> None:
    retriever = opened(
        {"image": "images/red.png", "entities": ["b", "a"]},
        {"image": "images/green.png", "entities": ["a", "b"], "scores": [0.7, -0.1]},
        {"image": "images/blue.png"},
    )
    copy = Query(Image.new("RGB", (8, 8), "green"))  # of the same pixels
    found = retriever.search([query(folder), copy, query(folder, "blue"), Query(Image.new("RGB", (9, 8)))], 5)
    assert [[(hit.entry_id, hit.score, hit.rank) for hit in hits] for hits in found] == [
        [("b", 1.0, 1), ("a", 0.5, 2)],
        [("a", 0.7, 1), ("b", -0.1, 2)],
        [],  # listed, and nothing found
        [],  # not listed
    ]
    assert {(hit.kb, hit.query) for hits in found for hit in hits} == {("kb", "ranked")}
    assert [hit.entry_id for hit in retriever.search([query(folder)], 1)[0]] == ["b"]
    with pytest.raises(ValueError, match="top_n"):
        retriever.search([copy], 0)


def test_a_file_is_found_by_its_path_and_other_images_by_their_pixels(folder: Path, opened) -> None:
    Image.new("RGB", (8, 8), "red").save(folder / "images/again.png")
    (folder / "images/blue.png").write_bytes(b"damaged")
    lists = {"blue": [], "red": ["a"], "again": ["b"]}
    retriever = opened(*({"image": f"images/{name}.png", "entities": names} for name, names in lists.items()))
    queries = [query(folder), query(folder, "again"), Query(Image.new("RGB", (8, 8), "red"))]
    assert [[hit.entry_id for hit in hits] for hits in retriever.search(queries, 5)] == [["a"], ["b"], ["a"]]


def test_what_the_knowledge_base_has_not_is_counted_and_the_others_move_up(folder, opened, capsys) -> None:
    retriever = opened(
        {"image": "images/red.png", "entities": ["nowhere", "a", "a", "b"], "scores": [0.9, 0.8, 0.7, 0.6]},
        {"image": "images/green.png", "entities": ["nowhere", "b"]},
        {"image": "images/gone.png", "entities": ["a"]},
    )
    hits, others = retriever.search([query(folder), query(folder, "green")], 5)
    assert [(hit.entry_id, hit.score, hit.rank) for hit in hits] == [("a", 0.8, 1), ("b", 0.6, 2)]
    assert [(hit.entry_id, hit.score) for hit in others] == [("b", 1.0)]
    assert capsys.readouterr().err == (
        f"{folder}/ranked.jsonl: rankings of 3 images; left out: 2 of 7 entities, which the knowledge base kb "
        "lacks, and 1 images that don't exist, e.g. images/gone.png\n"
    )


PLAIN, ESCAPED = (f"https://en.wikipedia.org/wiki/{name}" for name in ("Café_(drink)", "Caf%C3%A9_%28drink%29"))


@pytest.mark.parametrize("address", [PLAIN, ESCAPED, CAFE])
def test_an_address_is_known_however_it_is_escaped(folder, opened, address) -> None:
    (hits,) = opened({"image": "images/red.png", "entities": [address]}).search([query(folder)], 5)
    assert [hit.entry_id for hit in hits] == [CAFE]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{", "ranked.jsonl:2: is not JSON"),
        ("\udcff", "ranked.jsonl:2: is not JSON"),
        ('["a"]', "ranked.jsonl:2: has"),
        ('{"image": " ", "entities": ["a"]}', "`image` is empty"),
        ('{"image": "i", "entities": "a"}', "`entities`"),
        ('{"image": "i", "entities": ["a"], "scores": []}', "0 scores for 1 entities"),
        ('{"image": "i", "entities": ["a"], "scores": [NaN]}', "a value that isn't finite"),
        ('{"image": "i", "entities": ["a", "b"], "scores": [0, 1]}', "`scores` increase"),
    ],
)
def test_a_row_that_is_no_ranking_is_an_error_that_names_it(folder: Path, row: str, problem: str) -> None:
    (folder / "ranked.jsonl").write_bytes(b'{"image": "images/red.png"}\n' + row.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as caught:
        open_ranked(folder / "ranked.jsonl", KnowledgeBase(folder / "knowledge"), folder)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_leads_nowhere_is_refused(folder: Path, opened: Callable[..., RankedRetriever]) -> None:
    with pytest.raises(UserError, match=r"images/gone\.png doesn't exist"):
        opened({"image": "images/gone.png", "entities": ["a"]})
    with pytest.raises(UserError, match="it is empty"):
        opened("")
    with pytest.raises(UserError, match="refused"):
        opened({"image": "../../etc/passwd", "entities": ["a"]})
    with pytest.raises(UserError, match="can't be read"):
        open_ranked(folder / "nothing.jsonl", KnowledgeBase(folder / "knowledge"), folder)


@pytest.mark.parametrize("image", ["images/red.png", "red.png"])
def test_an_image_is_named_below_any_root(folder: Path, image: str) -> None:
    (folder / "ranked.jsonl").write_text(json.dumps({"image": image, "entities": ["a"]}))
    roots = (folder, folder / "images")
    retriever = open_ranked(folder / "ranked.jsonl", KnowledgeBase(folder / "knowledge"), roots)
    assert [hit.entry_id for hit in retriever.search([query(folder)], 5)[0]] == ["a"]


def test_a_config_opens_it_in_place_of_an_index(folder: Path, opened: Callable[..., RankedRetriever]) -> None:
    opened({"image": "images/red.png", "entities": ["a"]})
    config = RetrieverConfig(ranked_entities=str(folder / "ranked.jsonl"))
    assert config.problems() == []
    (folder / "manifest.json").write_text("{}")
    both = RetrieverConfig(index=str(folder), ranked_entities=config.ranked_entities)
    assert "are both given; drop one of them" in " ".join(both.problems())
    (problem,) = find_problems(RetrieverConfig, {"ranked_entities": str(folder / "nothing.jsonl")})
    assert "must be an existing file" in problem

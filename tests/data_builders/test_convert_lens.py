"""E-VQA's published Lens results as ranked entities of a data set's own pictures."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.images import load_image
from reflectune.core.types import Entry, Question
from reflectune.data_builders import convert_lens
from reflectune.formats.dataset import write_questions
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.retrieval.retrievers.ranked_retriever import Ranking, open_ranked, read_rankings

WIKI = "https://en.wikipedia.org/wiki/"
TOWER, HALL = "0a1b2c3d4e5f6071", "ffee2c3d4e5f6071"
BIRD = "val/00123_Animalia_Pica_pica/5f1c-aa.jpg"
IMAGES = (
    f"landmarks/0/a/1/{TOWER}.jpg",
    f"landmarks/f/f/e/{HALL}.jpg",
    f"inaturalist/{BIRD}",
    "landmarks/1/2/3/123.jpg",
)
ROWS = [
    ("landmarks", TOWER, f"['{WIKI}Leaning_Tower', '', '{WIKI}Pisa', '{WIKI}Leaning_Tower']"),
    ("landmarks", HALL, "[]"),
    ("inaturalist", "2690123", f'["{WIKI}Bird\'s_nest"]'),
    ("landmarks", "dddd", f"['{WIKI}Elsewhere']"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of four pictures, Lens's file about three of them and another, and iNaturalist's json."""
    questions = [Question(f"q{n}", f"pictures/{image}", "What?", split="test") for n, image in enumerate(IMAGES)]
    write_questions(tmp_path, "test", [*questions, Question("again", questions[0].image, "Why?", split="test")])
    (tmp_path / "dataset.json").write_text('{"fingerprint": "f", "metric": "evqa_exact"}')
    (tmp_path / "val.json").write_text(json.dumps({"images": [{"id": 2690123, "file_name": BIRD}]}))
    write_lens(tmp_path, ROWS)
    return tmp_path


def write_lens(folder: Path, rows: list[tuple[str, str, str]]) -> None:
    with (folder / "lens.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("dataset_name", "dataset_image_id", "lens_wiki_urls"), *rows])


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    flags = ["--lens", str(folder / "lens.csv"), "--dataset", str(folder), "--output", str(folder / "ranked.jsonl")]
    monkeypatch.setattr(sys, "argv", ["convert_lens", *flags, *more])
    convert_lens.main()


def test_each_picture_gets_what_lens_saw_in_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, monkeypatch, "--inaturalist", str(folder / "val.json"))
    assert list(read_rankings(folder / "ranked.jsonl")) == [
        Ranking(f"pictures/{IMAGES[0]}", (f"{WIKI}Leaning_Tower", f"{WIKI}Pisa")),
        Ranking(f"pictures/{IMAGES[1]}"),
        Ranking(f"pictures/{IMAGES[2]}", (f"{WIKI}Bird's_nest",)),
    ]
    assert "rankings of 3 of 4 pictures, 1 of them empty" in capsys.readouterr().out


def test_without_inaturalists_json_its_pictures_have_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, monkeypatch)
    assert [ranking.image for ranking in read_rankings(folder / "ranked.jsonl")] == [
        f"pictures/{image}" for image in IMAGES[:2]
    ]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        pytest.param(
            ("landmarks", TOWER, "http://x"), "lens.csv:2: field `lens_wiki_urls`: is 'http://x'", id="no-list"
        ),
        pytest.param(("landmarks", TOWER, "[1]"), "should be a list of addresses", id="no-texts"),
        pytest.param(("landmarks", TOWER, ""), "should be a list of addresses", id="empty"),
        pytest.param(("flickr", TOWER, "[]"), "`dataset_name`", id="unknown-set"),
        pytest.param(("landmarks", "", "[]"), "`dataset_image_id`", id="no-id"),
        pytest.param(("landmarks", "dddd", "[]"), "has a row for none of the 4 pictures", id="other-pictures"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_row(
    folder: Path,
    row: tuple[str, str, str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_lens(folder, [row])
    with pytest.raises(SystemExit):
        run(folder, monkeypatch)
    assert problem in capsys.readouterr().err
    assert not (folder / "ranked.jsonl").exists()


def test_problems_are_told_together(folder: Path) -> None:
    config = convert_lens.LensConfig(lens=str(folder / "no.csv"), dataset=str(folder), splits=["train"])
    problems = " ".join(config.problems())
    for part in ("`output` is needed", "there is no file", "has no split train"):
        assert part in problems


def test_what_lens_saw_is_found_in_the_knowledge_base_by_the_picture(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As evaluate searches: from the published file to the gold article, however either escapes its address."""
    pictures = [Image.new("RGB", (32, 32), colour) for colour in ("red", "green", "blue")]
    for image, picture in zip(IMAGES, pictures, strict=False):
        (folder / "pictures" / image).parent.mkdir(parents=True)
        picture.save(folder / "pictures" / image, format="PNG")
    saw = f"['{WIKI}Ch\u00e2teau_(Ch\u00e2teau-Thierry)', '{WIKI}Elsewhere']"
    write_lens(folder, [("landmarks", TOWER, saw), *ROWS[1:3]])
    ids = [f"{WIKI}Ch%C3%A2teau_(Ch%C3%A2teau-Thierry)", f"{WIKI}Bird%27s_nest", f"{WIKI}Pisa"]
    write_knowledge_base(folder / "knowledge", [Entry(entry_id, "Title") for entry_id in ids], name="kb")
    run(folder, monkeypatch, "--inaturalist", str(folder / "val.json"))
    retriever = open_ranked(folder / "ranked.jsonl", KnowledgeBase(folder / "knowledge"), folder)
    assert "left out: 1 of 3 entities" in capsys.readouterr().err
    hits = retriever.search([load_image(f"pictures/{image}", root=folder) for image in IMAGES[:3]], 5)
    assert [[hit.entry_id for hit in row] for row in hits] == [[ids[0]], [], [ids[1]]]

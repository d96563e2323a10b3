"""E-VQA's published Lens results as ranked entities of a data set's own images."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.types import Entry
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.data_builders.conversion.run import convert
from reflectune.data_builders.readers.evqa import write_lens
from reflectune.formats.dataset import Dataset
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.retrievers.ranked_retriever import Ranking, open_ranked, read_rankings

WIKI = "https://en.wikipedia.org/wiki/"
TOWER, HALL = "0a1b2c3d4e5f6071", "ffee2c3d4e5f6071"
BIRD = "val/00123_Animalia_Pica_pica/5f1c-aa.jpg"
IMAGES = (f"landmarks/0/a/1/{TOWER}.jpg", f"landmarks/f/f/e/{HALL}.jpg", f"inaturalist/{BIRD}", "landmarks/1/2/3.jpg")
PATHS = [f"images/{image}" for image in IMAGES]
ROWS = [
    ("landmarks", TOWER, f"['{WIKI}Leaning_Tower', '', '{WIKI}Pisa', '{WIKI}Leaning_Tower']"),
    ("landmarks", HALL, "[]"),
    ("inaturalist", "2690123", f'["{WIKI}Bird\'s_nest"]'),
    ("landmarks", "dddd", f"['{WIKI}Elsewhere']"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Lens's file about three of the four images and a fifth, and iNaturalist's json."""
    (tmp_path / "val.json").write_text(json.dumps({"images": [{"id": 2690123, "file_name": BIRD}]}))
    write_csv(tmp_path / "lens.csv", ROWS)
    return tmp_path


def write_csv(path: Path, rows: list[tuple[str, str, str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("dataset_name", "dataset_image_id", "lens_wiki_urls"), *rows])


def test_each_image_gets_the_entities_that_lens_saw_in_it(folder: Path) -> None:
    told = write_lens(folder / "ranked.jsonl", folder / "lens.csv", [*PATHS, PATHS[0]], folder / "val.json")
    assert list(read_rankings(folder / "ranked.jsonl")) == [
        Ranking(PATHS[0], (f"{WIKI}Leaning_Tower", f"{WIKI}Pisa")),
        Ranking(PATHS[1]),
        Ranking(PATHS[2], (f"{WIKI}Bird's_nest",)),
    ]
    assert "rankings of 3 of 4 images, 1 of them empty" in told


def test_without_inaturalists_json_its_images_have_none(folder: Path) -> None:
    write_lens(folder / "ranked.jsonl", folder / "lens.csv", PATHS, None)
    assert [ranking.image for ranking in read_rankings(folder / "ranked.jsonl")] == PATHS[:2]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("landmarks", TOWER, "http://x"), "lens.csv:2: field `lens_wiki_urls`: is 'http://x'"),
        (("landmarks", TOWER, "[1]"), "should be a list of addresses"),
        (("flickr", TOWER, "[]"), "`dataset_name`"),
        (("landmarks", "dddd", "[]"), "has a row for none of the 4 images"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_row(folder: Path, row: tuple[str, str, str], problem: str) -> None:
    write_csv(folder / "lens.csv", [row])
    with pytest.raises(UserError, match=problem.replace("[", r"\[")):
        write_lens(folder / "ranked.jsonl", folder / "lens.csv", PATHS, None)
    assert not (folder / "ranked.jsonl").exists()


def test_a_conversion_with_the_role_lens_writes_rankings_that_find_the_articles(folder, capsys) -> None:
    """The published file leads to the gold article, however either escapes its address."""
    for image, colour in zip(IMAGES[:3], ("red", "green", "blue"), strict=True):
        (folder / "images" / image).parent.mkdir(parents=True)
        Image.new("RGB", (32, 32), colour).save(folder / "images" / image, format="PNG")
    names = ("question", "answer", "dataset_image_ids", "dataset_name", "question_type", "wikipedia_url")
    rows = [(TOWER, "landmarks"), (HALL, "landmarks"), ("2690123", "inaturalist")]
    with (folder / "test.csv").open("w", newline="") as file:
        lines = [("What is it?", "a thing", number, where, "templated", f"{WIKI}Pisa") for number, where in rows]
        csv.writer(file).writerows([names, *lines])
    saw = f"['{WIKI}Ch\u00e2teau_(Ch\u00e2teau-Thierry)', '{WIKI}Elsewhere']"
    write_csv(folder / "lens.csv", [("landmarks", TOWER, saw), *ROWS[1:3]])
    splits = {"test": {"questions": "test.csv", "inaturalist": "val.json", "lens": "lens.csv"}}
    where = {"output": str(folder / "out"), "root": str(folder), "images": "images"}
    convert(ConvertConfig(questions="evqa", splits=splits, workers=1, **where))
    assert "rankings of 3 of 3 images, 1 of them empty" in capsys.readouterr().out
    ids = [f"{WIKI}Ch%C3%A2teau_(Ch%C3%A2teau-Thierry)", f"{WIKI}Bird%27s_nest", f"{WIKI}Pisa"]
    write_knowledge_base(folder / "knowledge", [Entry(entry_id, "Title") for entry_id in ids], name="kb")

    dataset = Dataset(folder / "out")
    knowledge = KnowledgeBase(folder / "knowledge")
    retriever = open_ranked(folder / "out/lens.jsonl", knowledge, dataset.image_roots)
    assert "left out: 1 of 3 entities" in capsys.readouterr().err
    queries = [Query(load_image(question.image, root=dataset.image_roots)) for question in dataset.questions("test")]
    assert [[hit.entry_id for hit in row] for row in retriever.search(queries, 5)] == [[ids[0]], [], [ids[1]]]

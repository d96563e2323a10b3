import json
from functools import partial
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import Evidence, Question
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.metrics.scoring.predictions import Prediction
from reflectune.metrics.scoring.scoring import join

from .conftest import csv_file, draw, read_set

entries = knowledge_reader("evqa").entries

HEADER = (
    "question,answer,dataset_image_ids,dataset_name,dataset_category_id,question_type,wikipedia_url,wikipedia_title,"
    "evidence,evidence_section_id,evidence_section_title,encyclopedic_vqa_split,question_original,"
    "wikipedia_url_used_in_train"
).split(",")
WIKI = "https://en.wikipedia.org/wiki/"
GLDV2, GLDV2_2 = "0a1b2c3d4e5f6071", "ffee2c3d4e5f6071"
BIRD = "val/00123_Animalia_Chordata_Aves_Pica_pica/5f1c.jpg"
PLANT = "val/04567_Plantae_Rosa_canina/77aa.jpg"
ROWS: list[dict[str, str]] = [
    dict(zip(HEADER, values, strict=True))
    for values in (
        ("What colours does this bird have?", "red&&blue|red&&navy", "2690123|2690999", "inaturalist", "3456",
         "multi_answer", WIKI + "Magpie", "Magpie", "", "1", "Description", "test",
         "What colours does the magpie have?", "False"),
        ('How tall is this "tower", in metres?', "56|56 m", f"{GLDV2}|{GLDV2_2}", "landmarks", "77", "templated",
         WIKI + "Leaning_Tower", "Leaning Tower", "It is 56 m tall,\nand it leans.", "0", "Leaning Tower", "test",
         "How tall is the Leaning Tower?", "True"),
        ("In which state is the city of this tower?", "Italy", GLDV2, "landmarks", "77", "2_hop",
         f"{WIKI}Leaning_Tower|{WIKI}Pisa", "Leaning Tower|Pisa", "", "3|0", "Location|Pisa", "test",
         "In which state is the city of this tower?", "True|False"),
        ("Who named this plant?", "Linnaeus", "2690999", "inaturalist", "12", "automatic", WIKI + "Dog_rose",
         "Dog rose", "", "", "", "test", "Who named the dog rose?", "False"),
    )
]  # fmt: skip


read_evqa = partial(read_set, "evqa", split="test")


def expected(
    row: int, image: str, answers: tuple[str, ...], entities: tuple[str, ...], sections: dict[str, int]
) -> Question:
    source = ROWS[row]
    kept = ("question_type", "dataset_name", "dataset_category_id", "question_original", "wikipedia_url_used_in_train")
    meta = {"row": str(row), **{name: source[name] for name in kept}}
    kind = source["question_type"]
    return Question(
        id=f"evqa_test_{row:08d}",
        image=image,
        text=source["question"],
        answers=answers,
        answer_type="multi_answer" if kind == "multi_answer" else "string",
        split="test",
        requires_retrieval=True,
        entity_ids=tuple(WIKI + entity for entity in entities),
        evidence=tuple(Evidence(WIKI + entity, section) for entity, section in sections.items()),
        meta={**meta, "two_hop": "yes"} if kind == "2_hop" else meta,
    )


EXPECTED = [
    expected(0, f"inaturalist/{BIRD}", ("red&&blue", "red&&navy"), ("Magpie",), {"Magpie": 1}),
    expected(1, f"landmarks/0/a/1/{GLDV2}.jpg", ("56", "56 m"), ("Leaning_Tower",), {"Leaning_Tower": 0}),
    expected(2, f"landmarks/0/a/1/{GLDV2}.jpg", ("Italy",), ("Leaning_Tower", "Pisa"), {"Leaning_Tower": 3, "Pisa": 0}),
    expected(3, f"inaturalist/{PLANT}", ("Linnaeus",), ("Dog_rose",), {}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    landmarks = [f"landmarks/{'/'.join(image_id[:3])}/{image_id}.jpg" for image_id in (GLDV2, GLDV2_2)]
    draw(tmp_path / "images", *landmarks, f"inaturalist/{BIRD}", f"inaturalist/{PLANT}")
    names = [(1, "val/0/other.jpg"), (2690123, BIRD), (2690999, PLANT)]
    fields = {"width": 500, "height": 375, "license": 0, "rights_holder": "a", "date": "2019", "latitude": 1.5,
              "longitude": None, "location_uncertainty": None}  # fmt: skip
    layout = {
        "info": {"year": 2021},
        "images": [{"id": number, "file_name": name, **fields} for number, name in names],
        "categories": [{"id": 123, "name": "Pica pica", "image_dir_name": "00123_Animalia"}],
        "annotations": [{"id": 9, "image_id": 2690123, "category_id": 123}],
        "licenses": [],
    }
    (tmp_path / "val.json").write_text(json.dumps(layout))
    return tmp_path


def read(folder: Path, *rows: dict[str, str], **options: object) -> list[Question]:
    source = {"questions": csv_file(folder / "test.csv", *rows), "inaturalist": folder / "val.json"}
    return read_evqa(source, folder / "images", **options)


def test_the_four_types_of_question(folder: Path) -> None:
    assert read(folder, *ROWS) == EXPECTED


def test_every_image_of_a_row_on_demand(folder: Path) -> None:
    by_image = read(folder, ROWS[0], ROWS[3], images_per_question=5)
    assert [(q.id, q.image) for q in by_image] == [
        ("evqa_test_00000000", f"inaturalist/{BIRD}"),
        ("evqa_test_00000000-2", f"inaturalist/{PLANT}"),
        ("evqa_test_00000001", f"inaturalist/{PLANT}"),
    ]
    assert {q.meta["row"] for q in by_image[:2]} == {"0"}
    joined = join(
        [Prediction("x:1", ("E-VQA_0",), "red"), Prediction("x:2", ("E-VQA_1",), "red")],
        by_image,
        "strict",
        "evqa_exact",
    )
    assert (len(joined.pairs), joined.counts["missing"], joined.counts["coverage"]) == (2, 0, 1.0)
    with pytest.raises(UserError, match="must be 1 or more"):
        read(folder, ROWS[0], images_per_question=0)


def test_echosights_ids_find_the_questions_even_after_a_row_is_left_out(folder: Path) -> None:
    bad: list[BadRow] = []
    kept = read(folder, ROWS[0], {**ROWS[1], "question": ""}, *ROWS[2:], reject=bad.append)
    assert [(q.id, q.meta["row"]) for q in kept][1:] == [("evqa_test_00000002", "2"), ("evqa_test_00000003", "3")]
    assert [error.row_id for error in bad] == ["evqa_test_00000001"]
    joined = join([Prediction("x:1", ("E-VQA_3",), "Linnaeus")], kept, "official")
    assert joined.pairs[0][0] == EXPECTED[3]


def test_a_record_that_is_cut_off_has_a_number_too(folder: Path) -> None:
    path = csv_file(folder / "test.csv", *ROWS)
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], lines[1][:40], *lines[2:]]))
    bad: list[BadRow] = []
    source = {"questions": path, "inaturalist": folder / "val.json"}
    assert read_evqa(source, folder / "images", reject=bad.append) == EXPECTED[1:]
    assert [str(error) for error in bad] == [f"{path}:2: has 2 values for 14 columns; fix the line"]


def test_entities_and_sections_are_those_of_the_knowledge_base(folder: Path) -> None:
    article = {"title": "Magpie", "section_titles": ["Magpie", "Description"], "section_texts": ["A bird.", "Red."],
               "image_urls": [], "image_reference_descriptions": [], "image_section_indices": [],
               "url": WIKI + "Magpie"}  # fmt: skip
    (folder / "kb.json").write_text(json.dumps({WIKI + "Magpie": article}))
    (entry,) = entries(folder / "kb.json")
    (question,) = read(folder, ROWS[0])
    assert question.entity_ids == (entry.id,)
    assert entry.sections[question.evidence[0].section].title == "Description"


def test_inaturalists_json_is_needed_only_for_its_images(folder: Path) -> None:
    path = csv_file(folder / "test.csv", *ROWS)
    assert {q.image for q in read_evqa(path)} == {""}
    with pytest.raises(UserError, match="give their file names as the role `inaturalist`"):
        read_evqa(path, folder / "images")
    path = csv_file(folder / "test.csv", *ROWS[1:3])
    assert [q.image for q in read_evqa(path, folder / "images")] == [EXPECTED[1].image, EXPECTED[2].image]


def test_a_json_without_images_is_refused(folder: Path) -> None:
    (folder / "val.json").write_text(json.dumps({"2690123": BIRD}))
    with pytest.raises(UserError, match=r"val.json: its field `images` is not a JSON array"):
        read(folder, ROWS[0])
    for source in ({"inaturalist": folder}, {"questions": folder, "landmarks": folder}):
        with pytest.raises(UserError, match="roles are questions, inaturalist, lens, and questions is needed"):
            read_evqa(source)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question": " "}, "field `question`: is empty"),
        ({"question_type": "infoseek"}, "field `question_type`: is 'infoseek'; it must be one of templated"),
        ({"dataset_name": "coco"}, "field `dataset_name`: is 'coco'"),
        ({"dataset_image_ids": "|"}, "field `dataset_image_ids`: is empty"),
        ({"dataset_image_ids": "5"}, "image 5 is not in the json of iNaturalist; train has its images"),
        ({"dataset_image_ids": "1"}, "no image of `val/0/other.jpg` below"),
        ({"dataset_image_ids": "abc", "dataset_name": "landmarks"}, "no image of `abc` below"),
        ({"evidence_section_id": "one"}, r"field `evidence_section_id`: is 'one' \(str\)"),
        ({"evidence_section_id": "1|2"}, r"field `evidence_section_id`: is '1\|2' for 1 articles"),
    ],
)
def test_a_bad_row_is_named(folder: Path, change: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=f"test.csv:3: id evqa_test_00000001: .*{problem}"):
        read(folder, ROWS[0], {**ROWS[0], **change})

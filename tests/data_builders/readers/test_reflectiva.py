from functools import partial
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import Question

from .conftest import array, draw, read_set


def said(*values: str) -> list[dict[str, str]]:
    return [{"from": ("human", "gpt")[place % 2], "value": value} for place, value in enumerate(values)]


ASKED = "<image>\nWhich place is this animal endemic to?"
PASSAGE = "<paragraph>The giant panda lives in China.</paragraph>"
INFOSEEK = {
    "__key__": "infoseek_train_00000000",
    "image": "infoseek/images/oven_01963180.jpg",
    "conversations": said(ASKED, "[Retrieval]", PASSAGE, "[Relevant]China"),
}
LLAVA = {
    "id": "000000033471",
    "image": "coco/train2017/000000033471.jpg",
    "conversations": said("What colour is the bus?\n<image>", "[No Retrieval] Red.", "And the sky?", "Blue."),
}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return draw(tmp_path / "images", "01/oven_01963180.JPEG", "coco/train2017/000000033471.jpg", "ab12.jpg")


read = partial(read_set, "reflectiva")


def test_a_row_with_retrieval_gives_its_passage_and_verdict(tmp_path: Path, images: Path) -> None:
    other = {**INFOSEEK, "conversations": said(ASKED, "[Retrieval]", PASSAGE, "[No Relevant]")}
    path = array(tmp_path / "train_multiturn_llava_infoseek.json", INFOSEEK, other)
    first, second = read(path, images)
    assert first == Question(
        *("infoseek_train_00000000", "01/oven_01963180.JPEG", "Which place is this animal endemic to?", ("China",)),
        *(None, "string", "train", True),
        meta={"passage": "The giant panda lives in China.", "relevance": "relevant"},
    )
    assert (second.id, second.answers) == ("infoseek_train_00000000-2", ())
    assert second.meta["relevance"] == "not_relevant"


def test_llavas_rows_give_a_question_a_round_that_needs_no_retrieval(tmp_path: Path, images: Path) -> None:
    worded = {"id": "words", "conversations": said("How much is 2 + 2?", "[No Retrieval]4")}
    path = array(tmp_path / "train_multiturn_mix.json", LLAVA, worded)
    image = "coco/train2017/000000033471.jpg"
    assert read(path, images) == [
        Question("000000033471", image, "What colour is the bus?", ("Red.",), None, "string", "train", False),
        Question("000000033471-2", image, "And the sky?", ("Blue.",), None, "string", "train", False),
        Question("words", "", "How much is 2 + 2?", ("4",), None, "string", "train", False),
    ]


def test_encyclopedic_vqas_rows_have_ids_and_images_of_their_own(tmp_path: Path, images: Path) -> None:
    turns = said("<image>\nWhere is it?", "[Retrieval]", PASSAGE, "[Relevant] China && Nepal")
    row = {"unique_id": 17, "image_path": "/leonardo/visualRAG/a/b/ab12.jpg", "conversations": turns}
    (question,) = read(array(tmp_path / "train_multiturn_encyclopedic.json", row), images)
    assert (question.id, question.image, question.answers) == ("17", "ab12.jpg", ("China && Nepal",))
    assert question.answer_type == "multi_answer"


@pytest.mark.parametrize(("need", "retrieve"), [("[No Retrieval]", False), ("[Retrieval]", True)])
def test_okvqas_rows_say_in_a_field_whether_to_retrieve(tmp_path, images, need, retrieve) -> None:
    turns = said("<image>\nWhat race is it?", "marathon")
    row = {"id": 5, "image": "ab12.jpg", "need_retrieval": need, "conversations": turns}
    (question,) = read(array(tmp_path / "train_multiturn_okvqa.json", row), images)
    assert question == Question("5", "ab12.jpg", "What race is it?", ("marathon",), None, "string", "train", retrieve)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"conversations": "none"}, "is 'none'"),
        ({"conversations": []}, "has the turns none; `human` and `gpt` must take turns"),
        ({"conversations": said(ASKED)}, "has the turns human; "),
        ({"conversations": said("<image>", "[No Retrieval]Red.")}, "has no question in a turn"),
        ({"conversations": said(ASKED, "China")}, "begins with neither"),
        ({"conversations": said(ASKED, "[Retrieval]", "a passage", "[Relevant]China")}, "has no <paragraph>"),
        ({"conversations": said(ASKED, "[Retrieval]", PASSAGE, "China")}, "has no <paragraph>"),
        ({"conversations": said(ASKED, "[Retrieval]", PASSAGE, "[Relevant]China", "Why?", "So.")}, "no <paragraph>"),
        ({"image": "infoseek/images/oven_9.jpg"}, "field `image`: no image of `oven_9.jpg`"),
        ({"__key__": None}, "field `id`: is missing"),
    ],
)
def test_a_bad_row_is_named_and_may_be_left_out(tmp_path, images, change, problem) -> None:
    path = array(tmp_path / "train_multiturn_infoseek.json", {**INFOSEEK, **change}, LLAVA)
    with pytest.raises(UserError, match=f"infoseek.json:1: .*{problem}"):
        read(path, images)
    bad: list[BadRow] = []
    assert len(read(path, images, reject=bad.append)) == 2
    assert len(bad) == 1

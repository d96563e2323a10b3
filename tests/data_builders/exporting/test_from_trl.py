import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import FollowUp
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.data_builders.exporting.from_trl import import_trl
from reflectune.data_builders.exporting.run import export
from reflectune.formats.reflection_data import (
    read_examples,
    read_manifest,
)
from reflectune.models.rendering.turns import ANSWER_PROMPTS
from reflectune.models.schemes.examples import PromptedExample, ReflectionExample
from reflectune.models.schemes.mmkb_rag import SCHEME as MMKB_RAG

READ = ANSWER_PROMPTS["read_short"].removeprefix("{passage} ")
SHORT, LIST = ANSWER_PROMPTS["answer_short"], ANSWER_PROMPTS["answer_list"]


def to_trl(data: Path, output: Path, images: Any = "absolute", *, space: bool = True) -> list[dict[str, Any]]:
    export(ExportConfig(data=str(data), to="trl", output=str(output), images=images, space=space))
    if images == "copy":
        return [json.loads(line) for line in (output / "train" / "metadata.jsonl").read_text().splitlines()]
    return pq.read_table(output / "train.parquet").to_pylist()


def from_trl(data: Path, output: Path, scheme: str = "mr2ag", **settings: Any) -> Path:
    import_trl(ExportConfig(data=str(data), from_format="trl", output=str(output), scheme=scheme, **settings))
    return output


def written(folder: Path, rows: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    Image.new("RGB", (8, 8)).save(folder / "x.png")
    (folder / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return folder


def said(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"messages": messages, "images": ["x.png"], **more}


@pytest.mark.parametrize("space", [True, False])
def test_what_is_read_back_asks_and_answers_the_same(reflected: Path, tmp_path: Path, space: bool) -> None:
    """Passages come back as their text: which part was the title is not in a conversation."""
    to_trl(reflected, tmp_path / "chat", space=space)
    before = read_examples(reflected / "train.parquet", ReflectionExample)

    after = read_examples(from_trl(tmp_path / "chat", tmp_path / "ours") / "train.parquet", ReflectionExample)

    assert after[2].follow_ups == (FollowUp("Is < image> it deep?", "Yes, [ Relevant] 40 m."),)
    assert after[3].follow_ups == before[3].follow_ups
    for one, other in zip(before, after, strict=True):
        assert (one.id, one.retrieve, one.style) == (other.id, other.retrieve, other.style)
        assert other.answer == one.answer.replace("[Relevant]", "[ Relevant]")
        assert [(b.relevant, b.answer) for b in one.branches] == [(b.relevant, b.answer) for b in other.branches]
    assert after[0].branches[0].passage.text == "Gold Tower: A tower of gold. History. It was founded in 1872."


TALK = ["What?", "[No Retrieval] A bus.", "Red?", "[No Retrieval] Yes.", "Why?", "[No Retrieval] It is painted."]


@pytest.mark.parametrize("names", [{}, {"id": "t"}])
@pytest.mark.parametrize("counts", [(6,), (2, 4, 6)])
def test_a_conversation_comes_in_one_row_or_in_one_for_each_round(
    tmp_path: Path, counts: tuple[int, ...], names: dict[str, str]
) -> None:
    rows = [said(*TALK[:count], **names) for count in counts]
    data = written(tmp_path / "chat", [*rows, said("What?", "[No Retrieval] A bus.", id="u" if names else "")])

    talk, other = read_examples(from_trl(data / "train.jsonl", tmp_path / "ours") / "train.parquet", ReflectionExample)

    assert (talk.question, talk.answer, talk.style) == ("What?", "A bus.", "free")
    assert talk.follow_ups == (FollowUp("Red?", "Yes."), FollowUp("Why?", "It is painted."))
    assert other.follow_ups == ()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[*TALK[:3], "Yes."]], r"go on so in each round; found 'Red\?' of the user and 'Yes\.'"),
        ([TALK[:2], TALK], "one for each round, every one longer by a round"),
        ([TALK[:4], TALK], "one for each round, every one longer by a round"),
    ],
)
def test_a_conversation_with_a_gap_is_refused(tmp_path: Path, rows: list[list[str]], message: str) -> None:
    data = written(tmp_path / "chat", [said(*row, id="t") for row in rows])

    with pytest.raises(UserError, match=message):
        from_trl(data / "train.jsonl", tmp_path / "ours")


def test_messages_of_somebody_else_are_read_and_keep_their_words(tmp_path: Path) -> None:
    """No ids, no columns of ours: rows of one image and question that follow one another belong together."""
    rows = [
        said("When?", "[Retrieval]", f"In 1872. {READ}", "[Relevant] 1872"),
        said("When?", "[Retrieval]", f"It is tall. {READ}", "[Irrelevant]"),
        said("Which colour?", "[No Retrieval] red"),
        said("Which colour?", "[No Retrieval] blue"),
        said("Which colours?", "[No Retrieval]"),
        said("Which colours?", "[No Retrieval]", LIST, "red && blue"),
    ]

    ours = from_trl(written(tmp_path / "chat", rows), tmp_path / "ours")
    again = to_trl(ours, tmp_path / "again")

    examples = read_examples(ours / "train.parquet", ReflectionExample)
    assert [(example.retrieve, len(example.branches), example.answer, example.style) for example in examples] == [
        (True, 2, "", "short"),
        (False, 0, "red", "free"),
        (False, 0, "blue", "free"),
        (False, 0, "red && blue", "list"),
    ]
    gate, *others = [row["prompt"] + row["completion"] for row in again]
    assert [message["content"] for message in gate] == ["When?", "[Retrieval]"]  # counted once, in a row of its own
    assert others == [row["messages"] for row in rows]


def test_blocks_of_text_and_image_are_read(tmp_path: Path) -> None:
    content = [{"type": "image"}, {"type": "text", "text": "Which colour?"}]
    row = said("", "[No Retrieval] red")
    row["messages"][0]["content"] = content

    ours = from_trl(written(tmp_path / "chat", [row]), tmp_path / "ours")

    assert read_examples(ours / "train.parquet", ReflectionExample)[0].question == "Which colour?"


def test_images_held_as_bytes_become_files(reflected: Path, tmp_path: Path) -> None:
    to_trl(reflected, tmp_path / "chat")
    file = tmp_path / "chat" / "train.parquet"
    table = pq.read_table(file)
    held = [[{"bytes": Path(cell[0]["path"]).read_bytes(), "path": None}] for cell in table["images"].to_pylist()]
    column = pa.array(held, table.schema.field("images").type)
    pq.write_table(table.set_column(4, "images", column), file)

    ours = from_trl(tmp_path / "chat", tmp_path / "ours")

    examples = read_examples(ours / "train.parquet", ReflectionExample)
    with Image.open(read_manifest(ours).image_root / examples[0].image) as image:
        assert image.convert("RGB").getpixel((0, 0)) == (200, 30, 30)
    assert len(list((ours / "images").iterdir())) == 2


def test_mmkb_rags_rows_without_ids_are_gathered_by_their_question(tmp_path: Path) -> None:
    prompts = MMKB_RAG.prompts
    rows = [
        said(f"When? {prompts['ret']}", "[Ret]"),
        said(f"When? {prompts['srt'].format(passage='In 1872.')}", "[Rel]"),
        said(f"When? {prompts['read_short'].format(passage='In 1872.')}", "1872"),
        said(f"Where? {prompts['ret']}", "[NoRet]"),
    ]

    ours = from_trl(written(tmp_path / "chat", rows), tmp_path / "ours", "mmkb_rag")

    examples = read_examples(ours / "train.parquet", PromptedExample)
    assert [(example.question, [b.prompt for b in example.branches]) for example in examples] == [
        ("When?", ["ret", "srt", "vqa"]),
        ("Where?", ["ret"]),
    ]


BAD = {
    "the line is not JSON": "{",
    "`prompt` should be a list of messages": {"text": "Q", "images": ["x.png"]},
    "half of a surrogate pair": said("Q \ud83e", "[No Retrieval] a"),
    "there is no image": {"messages": said("Q", "[No Retrieval] a")["messages"]},
    "should hold one image, found 2": said("Q", "[No Retrieval] a", images=["x.png", "x.png"]),
    "image not found": said("Q", "[No Retrieval] a", images=["y.png"]),
    "holds a URL": said("Q", "[No Retrieval] a", images=["https://example.org/x.png"]),
    "message 0 should be of role `user`, found `system`": {
        "messages": [{"role": "system", "content": "Be brief."}],
        "images": ["x.png"],
    },
    "should end with the assistant's turn": said("Q"),
    "the question is empty": said(" ", "[No Retrieval] a"),
    "the assistant should say [Retrieval]": said("Q", "a"),
    "a row is about one passage, this has 2": said(
        "Q", "[Retrieval]", f"P {READ}", "[Irrelevant]", f"R {READ}", "[Irrelevant]"
    ),
    "the second turn of the user should be a passage": said("Q", "[Retrieval]", "P", "[Irrelevant]"),
    "the verdict should be [Irrelevant]": said("Q", "[Retrieval]", f"P {READ}", "[Relevant]"),
    "after it should come a row for each passage": said("Q", "[Retrieval]"),
    "after the row that ends with [No Retrieval] should come its answer": said("Q", "[No Retrieval]"),
    "the user's turn after [No Retrieval] should be": said("Q", "[No Retrieval]", "Be brief.", "a"),
    "the assistant's answer after [No Retrieval] is empty": said("Q", "[No Retrieval]", SHORT, " "),
    "should begin with the column `question`": said("Q", "[No Retrieval] a", question="Another?"),
    "a block of type `video`": {
        "messages": [{"role": "user", "content": [{"type": "video"}]}, {"role": "assistant", "content": "a"}],
        "images": ["x.png"],
    },
}


@pytest.mark.parametrize("message", list(BAD))
def test_a_row_that_is_not_of_our_form_is_named_with_the_reason(tmp_path: Path, message: str) -> None:
    folder = written(tmp_path / "chat", [said("Which colour?", "[No Retrieval] red")])
    row = BAD[message]
    with (folder / "train.jsonl").open("a") as file:
        file.write("\n" + (row if isinstance(row, str) else json.dumps(row)))

    with pytest.raises(UserError) as caught:
        from_trl(folder, tmp_path / "ours")

    assert "row 2: " in str(caught.value)
    assert message in str(caught.value)
    assert not (tmp_path / "ours" / "train.parquet").exists()


def test_bad_rows_can_be_left_out_and_are_listed(tmp_path: Path) -> None:
    folder = written(tmp_path / "chat", [said("Q", "a"), said("Which colour?", "[No Retrieval] red")])

    ours = from_trl(folder, tmp_path / "ours", on_error="skip")

    assert len(read_examples(ours / "train.parquet", ReflectionExample)) == 1
    (rejected,) = [json.loads(line) for line in (ours / "rejected.jsonl").read_text().splitlines()]
    assert rejected["row"] == "row 1"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [said("Q", "[No Retrieval] a", id="1"), said("R", "[No Retrieval] a", id="1")],
            "different images or questions",
        ),
        ([said("Q", "[No Retrieval] a", id="1"), said("Q", "[No Retrieval] b", id="1")], "it can have one"),
        ([said("Q", "[No Retrieval]", id="1"), said("Q", "[No Retrieval] b", id="1")], "it can have one"),
        (
            [said("Q", "[No Retrieval]", id="1"), said("Q", "[Retrieval]", f"P {READ}", "[Irrelevant]", id="1")],
            "it can have one",
        ),
        (
            [
                said("Q", "[Retrieval]", f"P {READ}", "[Irrelevant]", id="1"),
                said("Q", "[Retrieval]", f"P {READ.replace('document,', 'documents,')}", "[Irrelevant]", id="1"),
            ],
            "the second turn of the user should be a passage",
        ),
        (
            [
                said("Q", "[Retrieval]", f"P {READ}", "[Irrelevant]", id="1"),
                said("Q", "[Retrieval]", f"{ANSWER_PROMPTS['read_list'].format(passage='P')}", "[Irrelevant]", id="1"),
            ],
            "its rows ask for answers of different kinds: list, short",
        ),
        (
            [said("Q", "[No Retrieval] a", id=i) for i in ("1", "2", "1")],
            "the question `1` comes again; put its rows one after the other",
        ),
    ],
)
def test_rows_of_one_id_that_contradict_each_other_are_refused(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_trl(written(tmp_path / "chat", rows), tmp_path / "ours")


def test_documents_behind_an_unknown_question_need_the_column_question(tmp_path: Path) -> None:
    row = said(f"When? {MMKB_RAG.prompts['read_short'].format(passage='In 1872.')}", "1872")

    with pytest.raises(UserError, match="add a column `question`"):
        from_trl(written(tmp_path / "chat", [row]), tmp_path / "ours", "mmkb_rag")
    ours = from_trl(written(tmp_path / "other", [{**row, "question": "When?"}]), tmp_path / "ours", "mmkb_rag")

    assert read_examples(ours / "train.parquet", PromptedExample)[0].branches[0].documents[0].text == "In 1872."

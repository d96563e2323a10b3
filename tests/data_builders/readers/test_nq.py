import copy
import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.readers.registry import knowledge_reader

from .conftest import jsonl, parquet, read_set

entries, read = knowledge_reader("nq").entries, partial(read_set, "nq")

URL = "https://en.wikipedia.org//w/index.php?title=Email_marketing&amp;oldid=814071202"
LEAD = "<P> The term `` e-mail '' ( 1993 ) , however , is Ann 's or Bob\xa0Ray 's . </P>"
TEXT = (
    "Email marketing - Wikipedia <H1> Email marketing </H1> Jump to : navigation , search "
    '<Table> <Tr> <Td_colspan="2"> Since </Td> <Td> 1978 </Td> </Tr> </Table> '
    f"{LEAD} <H2> Types ( edit ) </H2> <Ul> <Li> cold mail </Li> <Li> opt in mail </Li> </Ul> <P> </P>"
)
TOKENS = TEXT.split(" ")


def place(first: str, last: str) -> dict[str, int]:
    start = TOKENS.index(first)
    return {"start_token": start, "end_token": TOKENS.index(last, start) + 1}


NOWHERE = {"start_token": -1, "end_token": -1}
TABLE, PARAGRAPH, LIST = place("<Table>", "</Table>"), place("<P>", "</P>"), place("<Ul>", "</Ul>")
ITEM = place("<Li>", "</Li>")
EMPTY = {"start_token": len(TOKENS) - 2, "end_token": len(TOKENS)}
CANDIDATES = [
    {**TABLE, "top_level": True},
    {**place("<Tr>", "</Tr>"), "top_level": False},
    {**PARAGRAPH, "top_level": True},
    {**LIST, "top_level": True},
    {**ITEM, "top_level": False},
    {**EMPTY, "top_level": True},
]


def annotation(long: dict[str, int], *short: dict[str, int], verdict: str = "NONE") -> dict[str, Any]:
    index = next((i for i, candidate in enumerate(CANDIDATES) if long.items() <= candidate.items()), -1)
    answers = {"long_answer": {**long, "candidate_index": index}, "short_answers": list(short)}
    return {"annotation_id": 593165450220027640, "yes_no_answer": verdict, **answers}


def simplified(example_id: object, *annotations: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "example_id": example_id,
        "question_text": "who uses opt-in e-mail",
        "document_url": URL,
        "document_text": TEXT,
        "long_answer_candidates": CANDIDATES,
        "annotations": list(annotations),
        **fields,
    }


NAMES = annotation(PARAGRAPH, place("Ann", "Ann"), place("Bob\xa0Ray", "Bob\xa0Ray"))
ROWS = [
    simplified(5655493461695504401, NAMES),
    simplified(-2543388002166163252, annotation(ITEM, place("cold", "mail"))),
    simplified(3, annotation(LIST, verdict="YES")),
    simplified(4, annotation(LIST)),
    simplified(5, annotation(NOWHERE)),
]
SECTIONS = (
    Section("Email marketing", "Since 1978"),
    Section("Email marketing", "The term \"e-mail\" (1993), however, is Ann's or Bob Ray's."),
    Section("Types", "cold mail opt in mail"),
    Section("Types", ""),
)


def original(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the development set."""
    tokens = [token.replace("Td_", "Td ") for token in TOKENS]
    return {
        **{name: value for name, value in row.items() if name != "document_text"},
        "document_title": "Email marketing",
        "document_html": "<!DOCTYPE html>",
        "question_tokens": row["question_text"].split(),
        "document_tokens": [
            {"token": token, "html_token": token.startswith("<"), "start_byte": 0, "end_byte": 0} for token in tokens
        ],
    }


def hub(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the Hub: objects of lists instead of lists of objects."""
    codes = {"NONE": -1, "NO": 0, "YES": 1}
    sizes = {"start_byte": 0, "end_byte": 0}
    full, annotations = original(row), row["annotations"]
    tokens = full["document_tokens"]
    return {
        "id": str(row["example_id"]),
        "document": {
            "html": "<!DOCTYPE html>",
            "title": "Email marketing",
            "tokens": columns([{"token": t["token"], "is_html": t["html_token"], **sizes} for t in tokens]),
            "url": URL,
        },
        "question": {"text": row["question_text"], "tokens": full["question_tokens"]},
        "long_answer_candidates": columns([{**candidate, **sizes} for candidate in CANDIDATES]),
        "annotations": {
            "id": [str(item["annotation_id"]) for item in annotations],
            "long_answer": [{**item["long_answer"], **sizes} for item in annotations],
            "short_answers": [
                columns([{**span, **sizes, "text": ""} for span in item["short_answers"]]) for item in annotations
            ],
            "yes_no_answer": [codes[item["yes_no_answer"]] for item in annotations],
        },
    }


def columns(items: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = list(items[0]) if items else ["start_token", "end_token", "start_byte", "end_byte", "text"]
    return {name: [item[name] for item in items] for name in names}


def test_questions_with_the_sections_that_answer_them(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "train.jsonl", *ROWS)
    (article,) = entries(path)
    shared: dict[str, Any] = {"image": "", "text": "who uses opt-in e-mail", "split": "train"}
    shared |= {"requires_retrieval": True, "entity_ids": (article.id,)}
    assert read(path) == [
        Question(id=name, answers=(answer,), answer_type=kind, evidence=(Evidence(article.id, section),), **shared)
        for name, answer, kind, section in (
            ("5655493461695504401", "Ann && Bob Ray", "multi_answer", 1),
            ("-2543388002166163252", "cold mail", "string", 2),
            ("3", "yes", "string", 2),
        )
    ]


def test_questions_without_an_answer_if_asked_for(tmp_path: Path) -> None:
    *_, long_alone, nothing = read(jsonl(tmp_path / "train.jsonl", *ROWS), answerable_only=False)
    assert (long_alone.id, long_alone.answers, [e.section for e in long_alone.evidence]) == ("4", (), [2])
    assert (nothing.id, nothing.answers, nothing.evidence) == ("5", (), ())


def test_the_three_layouts_say_the_same(tmp_path: Path) -> None:
    plain = jsonl(tmp_path / "train.jsonl", *ROWS)
    full = tmp_path / "dev.jsonl.gz"
    full.write_bytes(gzip.compress(jsonl(tmp_path / "dev.jsonl", *map(original, ROWS)).read_bytes()))
    (tmp_path / "hub").mkdir()
    parquet(tmp_path / "hub" / "train-00000-of-00001.parquet", *map(hub, ROWS))
    assert read(plain) == read(full) == read(tmp_path / "hub")
    assert list(entries(plain)) == list(entries(full)) == list(entries(tmp_path / "hub"))


def test_an_article_is_one_entry_and_another_version_of_it_another(tmp_path: Path) -> None:
    newer = simplified(6, annotation(PARAGRAPH, place("Ann", "Ann")), document_text=TEXT.replace("1978", "1979"))
    path = jsonl(tmp_path / "train.jsonl", *ROWS, newer)
    first, second = entries(path)
    url = "https://en.wikipedia.org//w/index.php?title=Email_marketing&oldid=814071202"
    assert first == Entry(first.id, "Email marketing", url, SECTIONS[1].text, sections=SECTIONS)
    assert first.id.startswith("Email marketing@")
    assert second.sections[0].text == "Since 1979"
    assert second.id != first.id
    assert read(path)[-1].evidence == (Evidence(second.id, 1),)


def test_several_annotators(tmp_path: Path) -> None:
    ann, bob = place("Ann", "Ann"), place("Bob\xa0Ray", "Bob\xa0Ray")
    given = [annotation(NOWHERE), annotation(TABLE, ann), *[annotation(PARAGRAPH, bob)] * 2]
    (question,) = read(jsonl(tmp_path / "dev.jsonl", simplified(1, *given)))
    assert question.answers == ("Bob Ray", "Ann")
    assert [evidence.section for evidence in question.evidence] == [0, 1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question_text": None}, "field `question_text`: is null"),
        ({"document_text": TEXT.replace("<H1>", "")}, "has no title"),
        ({"long_answer_candidates": [{**PARAGRAPH, "top_level": "perhaps"}]}, "field `top_level`"),
        ({"long_answer_candidates": [{"start_token": 5, "end_token": 999, "top_level": True}]}, "of 63 tokens"),
        ({"long_answer_candidates": [{**TABLE, "top_level": True}]}, "in no top-level candidate"),
        ({"long_answer_candidates": {"start_token": [1], "end_token": []}}, "not of lists of one length"),
        ({"annotations": "none"}, "field `annotations`: is 'none'"),
        ({"annotations": [annotation(PARAGRAPH, verdict="PERHAPS")]}, "field `yes_no_answer`: is PERHAPS"),
        ({"annotations": [annotation(PARAGRAPH, {"start_token": 9, "end_token": 2})]}, "is 9, with the end at 2"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = jsonl(tmp_path / "train.jsonl", ROWS[0], {**copy.deepcopy(ROWS[1]), **change})
    with pytest.raises(UserError, match=f"train.jsonl:2: id -2543388002166163252: .*{problem}"):
        read(path)


def test_a_damaged_line_and_a_row_of_another_layout(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "train.jsonl", ROWS[0], {"example_id": 7, "question": "who?"})
    path.write_text(path.read_text() + json.dumps(ROWS[1])[:200])
    for reader in (lambda reject: read(path, reject=reject), lambda reject: list(entries(path, reject=reject))):
        noted: list[BadRow] = []
        assert len(reader(noted.append)) == 1
        assert [(error.line, error.row_id) for error in noted] == [(2, "7"), (3, "")]
        assert "has no `document_text`, `document_tokens` or `document`" in str(noted[0])
        assert "not a whole JSON object" in str(noted[1])

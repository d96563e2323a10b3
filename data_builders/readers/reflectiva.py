"""ReflectiVA's released training data, conversations with reflection tokens, as questions; and its knowledge base.

The 100k knowledge base for InfoSeek (`Wiki100k_ver_1_0-all.json`) is a JSON dict of rows of Wiki6M.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Entry, Question
from reflectune.data_builders.readers.files import one_path
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.json_documents import read_json_array, read_json_dict
from reflectune.data_builders.readers.rows import Placed, SourceRow, identifier, placed, rows, text
from reflectune.data_builders.readers.wiki6m import article

read_source = read_json_dict

_IDS = ("__key__", "unique_id", "id")
_IMAGES = ("image", "image_path", "image_mo_srv_path")
_RETRIEVAL = re.compile(r"\[(No )?Retrieval\]\s*")
_RELEVANCE = re.compile(r"\[(No )?Relevant\]\s*")
_PARAGRAPH = re.compile(r"<paragraph>(.*?)</paragraph>", re.DOTALL)
_IMAGE_TOKEN = "<image>"


def questions(
    source: Path | Mapping[str, Any], *, split: str, images: ImageFolder, reject: Reject = stop
) -> Iterator[Placed[Question]]:
    """Yield the questions of one file of `aimagelab/ReflectiVA-Data` on the Hub.

    A file (`{train,val}_multiturn…{infoseek,encyclopedic,mix,okvqa}….json`) is a JSON array. A row has an id
    (`__key__`: InfoSeek, `unique_id`: E-VQA, `id`: the others), the path of an image (`image`, in other versions
    `image_path` or `image_mo_srv_path`; LLaVA's rows may have none) and `conversations[{from, value}]`, where `human`
    and `gpt` take turns:

    - with retrieval: the question; `[Retrieval]`; `<paragraph>…</paragraph>`; `[Relevant]` or `[No Relevant]`, with the
      answer if there is one;
    - without: the question; `[No Retrieval]` with the answer; in LLaVA's rows further questions and answers, each a
      question of its own.

    OK-VQA's rows have `need_retrieval`: a text that contains "No" means False. A token in the answer overrides it.

    The release has one row per passage, as text without its place. So questions have no evidence; `Question.meta` has
    the `passage` and its `relevance` (`relevant` or `not_relevant`). Ids repeat: the second question of an id becomes
    `<id>-2`, the third `<id>-3`.

    Args:
        source: The file.
        images: Folder that the images' paths are relative to, or that holds the images by name.

    Raises:
        UserError: The source is not a path.
    """
    seen: Counter[str] = Counter()
    make = partial(_questions, split=split, images=images, seen=seen)
    for row_questions, line in placed(read_json_array(one_path(source, "ReflectiVA"), reject), make, reject):
        yield from ((question, line) for question in row_questions)


def _questions(row: SourceRow, *, split: str, images: ImageFolder, seen: Counter[str]) -> list[Question]:
    row.id_field = next((field for field in _IDS if row.get(field) not in (None, "")), "")
    turns = _turns(row)
    retrieve = _needs_retrieval(row, turns[1])
    rounds = [_with_passage(row, turns)] if retrieve and len(turns) > 2 else _without_passage(turns)
    row_id, image = identifier(row, row.id_field or "id"), _image(row, images)
    row_questions = []
    for question_text, answer, meta in rounds:
        question_text = question_text.replace(_IMAGE_TOKEN, " ").strip()
        if not question_text:
            raise row.bad("conversations", "has no question in a turn of `human`", "leave the row out")
        seen[row_id] += 1
        row_questions.append(
            Question(
                id=row_id if seen[row_id] == 1 else f"{row_id}-{seen[row_id]}",
                image=image,
                text=question_text,
                answers=(answer,) if answer else (),
                answer_type="multi_answer" if "&&" in answer else "string",
                split=split,
                requires_retrieval=retrieve,
                meta=meta,
            )
        )
    return row_questions


def _turns(row: SourceRow) -> list[str]:
    """Return the texts of the turns, which begin with `human` and end with `gpt`."""
    turns = rows(row, "conversations")
    speakers = [turn.get("from") for turn in turns]
    if not turns or speakers != ["human", "gpt"] * (len(turns) // 2):
        problem = f"has the turns {', '.join(map(str, speakers)) or 'none'}"
        raise row.bad("conversations", problem, "`human` and `gpt` must take turns, `human` first: leave the row out")
    return [text(turn, "value", empty=True) for turn in turns]


def _needs_retrieval(row: SourceRow, reply: str) -> bool:
    token = _RETRIEVAL.match(reply)
    if token:
        return not token.group(1)
    if row.get("need_retrieval") is None:
        fix = "download the file again, or leave the row out"
        raise row.bad("conversations", "the first answer begins with neither [Retrieval] nor [No Retrieval]", fix)
    return "No" not in text(row, "need_retrieval")


def _with_passage(row: SourceRow, turns: list[str]) -> tuple[str, str, dict[str, str]]:
    passage, verdict = _PARAGRAPH.search(turns[2]), _RELEVANCE.match(turns[3])
    if passage is None or verdict is None or len(turns) != 4:
        problem = "has no <paragraph> with one [Relevant] or [No Relevant] after it"
        raise row.bad("conversations", problem, "download the file again, or leave the row out")
    relevance = "not_relevant" if verdict.group(1) else "relevant"
    return turns[0], turns[3][verdict.end() :], {"passage": passage.group(1).strip(), "relevance": relevance}


def _without_passage(turns: list[str]) -> list[tuple[str, str, dict[str, str]]]:
    """Return every round of question and answer."""
    return [
        (question, _RETRIEVAL.sub("", reply, count=1), {})
        for question, reply in zip(turns[::2], turns[1::2], strict=True)
    ]


def _image(row: SourceRow, images: ImageFolder) -> str:
    """Return the path of the image, found by its path on the authors' machine or by its name."""
    field = next((field for field in _IMAGES if row.get(field) not in (None, "")), "")
    if not field:
        return ""
    path = text(row, field)
    return images.find_for(row, field, path) or images.path(row, field, PurePosixPath(path).name)


def entry(row: SourceRow, images: ImageFolder) -> Entry:
    """Make an entry of a member of the dict, whose name is its id, and its title if it has none.

    Images are in the folder that is or contains `wikipedia_images_full`.
    """
    name = text(row, "key")
    titled = SourceRow({**row, "wikipedia_title": row.get("wikipedia_title") or name}, row.file, row.line)
    return article(titled, name, images)

"""The readers by the name that a config calls them by. A reader's module is imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.rejected import Reject, stop
from reflectune.core.types import Entry, Metric, Question
from reflectune.data_builders.readers.files import RowSource
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.rows import Placed, SourceRow, each

QUESTIONS: Mapping[str, str] = {
    "aokvqa": "aokvqa",
    "ara": "ara",
    "evqa": "evqa",
    "fvqa": "fvqa",
    "hotpotqa": "hotpotqa",
    "infoseek": "infoseek",
    "infoseek_human": "infoseek_human",
    "livevqa": "livevqa",
    "llava_instruct": "llava_instruct",
    "m2kr": "m2kr",
    "mmsearch": "mmsearch",
    "nq": "nq",
    "okvqa": "okvqa",
    "own": "own_questions",
    "reflectiva": "reflectiva",
    "viquae": "viquae",
}
"""Sets of questions and the modules that read them: `questions(source, *, split, images, reject, **options)`."""

METRIC_OF: Mapping[str, Metric] = {
    "aokvqa": "vqa",
    "evqa": "evqa",
    "fvqa": "exact_match",
    "hotpotqa": "exact_match",
    "infoseek": "infoseek",
    "infoseek_human": "exact_match",
    "livevqa": "cover_match",
    "llava_instruct": "rouge_l",
    "mmsearch": "cover_match",
    "nq": "exact_match",
    "okvqa": "vqa",
    "own": "exact_match",
    "viquae": "exact_match",
}
"""The metric that each set is scored by, unless a config says another.

`ara`, `m2kr` and `reflectiva` are layouts of several sets, and have none: `metric` says it. LiveVQA and MMSearch are
published with a language model as the judge; cover match is what needs none. A-OKVQA's own program leaves no annotator
out.
"""

KNOWLEDGE: Mapping[str, str] = {
    "echosight_100k": "evqa",
    "evqa": "evqa",
    "hotpotqa": "hotpotqa",
    "m2kr": "m2kr",
    "nq": "nq",
    "own": "own_knowledge",
    "own_folder": "own_folder",
    "reflectiva_100k": "reflectiva",
    "wiki18": "wiki18",
    "wiki6m": "wiki6m",
}
"""Knowledge bases and the modules that read them: `read_source(source, reject)` and `entry(row, images)`."""


WITH_ADDRESSES: tuple[str, ...] = ("echosight_100k", "evqa", "wiki6m")
"""Knowledge bases that name pictures by address; their modules have `pictures(row)`."""


@dataclass(frozen=True)
class KnowledgeReader:
    """How a knowledge base is read: rows from the file, and an entry from each row, which any process may do.

    Attributes:
        read_source: Gives the rows.
        entry: Makes an entry of one.
        pictures: Gives the addresses of its pictures, each with the path below `knowledge_images` that `entry` looks
            for it at; nothing for a knowledge base that names none.
    """

    read_source: RowSource
    entry: Callable[[SourceRow, ImageFolder], Entry]
    pictures: Callable[[SourceRow], Iterable[tuple[str, str]]] = lambda row: ()

    def entries(self, source: Path, *, images: ImageFolder | None = None, reject: Reject = stop) -> Iterator[Entry]:
        """Yield the entries of a file or folder, in its order; without `images` they have no images."""
        return each(self.read_source(source, reject), lambda row: self.entry(row, images or ImageFolder()), reject)


def question_reader(name: str) -> Callable[..., Iterator[Placed[Question]]]:
    """The function `questions` of a set, which gives each question with its place.

    Raises:
        UserError: There is no such reader.
    """
    return _module(name, QUESTIONS, "questions").questions


def knowledge_reader(name: str) -> KnowledgeReader:
    """The reader of a knowledge base.

    Raises:
        UserError: There is no such reader.
    """
    module = _module(name, KNOWLEDGE, "knowledge")
    if name not in WITH_ADDRESSES:
        return KnowledgeReader(module.read_source, module.entry)
    return KnowledgeReader(module.read_source, module.entry, module.pictures)


def option_problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with a config's options for a reader of questions; empty if all are its own."""
    given = {"source", "split", "images", "reject"}
    valid = [option for option in inspect.signature(question_reader(name)).parameters if option not in given]
    known = ", ".join(valid) or "none"
    return [f"`options`: the reader {name} has no `{key}`; it has {known}" for key in options if key not in valid]


def _module(name: str, names: Mapping[str, str], what: str) -> ModuleType:
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean `{near[0]}`? There are" if near else "there are"
        raise UserError(f"no reader `{name}` for {what}; {hint} {', '.join(names)}")
    return importlib.import_module(f"reflectune.data_builders.readers.{names[name]}")

"""The readers by name. A reader's module is imported on demand."""

from __future__ import annotations

import difflib
import importlib
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError

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
    "mrag_bench": "mrag_bench",
    "nq": "nq",
    "okvqa": "okvqa",
    "own": "own_questions",
    "reflectiva": "reflectiva",
    "viquae": "viquae",
}
"""Sets of questions and their modules, which have `questions(source, *, split, images, reject, **options)`.

`split` is the name of the questions' split, and `reject` is called with each bad row.
"""

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
    "mrag_bench": "choice",
    "nq": "exact_match",
    "okvqa": "vqa",
    "own": "exact_match",
    "viquae": "exact_match",
}
"""Default metric of each set.

`ara`, `m2kr` and `reflectiva` are layouts of several sets without a default. LiveVQA and MMSearch are published with a
language model as the judge; cover match needs none. A-OKVQA's own program compares with all annotators at once.
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
"""Knowledge bases and their modules, which have `read_source(source, reject)` and `entry(row, images)`.

Modules of knowledge bases that name images by URL also have `images(row)`.
"""


@dataclass(frozen=True)
class KnowledgeReader:
    """A reader of a knowledge base.

    Attributes:
        read_source: Yields the rows of a file.
        entry: Makes an entry of a row, in any process.
        images: Yields the URLs of a row's images, each with its path below `knowledge_images`; nothing for a
            knowledge base without URLs.
    """

    read_source: RowSource
    entry: Callable[[SourceRow, ImageFolder], Entry]
    images: Callable[[SourceRow], Iterable[tuple[str, str]]]

    def entries(self, source: Path, *, images: ImageFolder | None = None, reject: Reject = stop) -> Iterator[Entry]:
        """Yield the entries of a file or folder, in its order; without `images` they have no images."""
        return each(self.read_source(source, reject), lambda row: self.entry(row, images or ImageFolder()), reject)


def question_reader(name: str) -> Callable[..., Iterator[Placed[Question]]]:
    """Return the function `questions` of a set, which yields each question with its file and line.

    Raises:
        UserError: No reader has this name.
    """
    return _module(name, QUESTIONS, "questions").questions


def knowledge_reader(name: str) -> KnowledgeReader:
    """Return the reader of a knowledge base.

    Raises:
        UserError: No reader has this name.
    """
    module = _module(name, KNOWLEDGE, "knowledge")
    return KnowledgeReader(module.read_source, module.entry, getattr(module, "images", lambda row: ()))


def option_problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the problems of a config's options for a reader of questions."""
    given = {"source", "split", "images", "reject"}
    valid = [option for option in inspect.signature(question_reader(name)).parameters if option not in given]
    known = ", ".join(valid) or "none"
    issues = [f"`options`: the reader {name} has no `{key}`; it has {known}" for key in options if key not in valid]
    hints = typing.get_type_hints(question_reader(name))
    for option in (option for option in valid if option in options):
        try:
            TypeAdapter(hints[option]).validate_python(options[option], strict=True)
        except ValidationError as error:
            issues.append(f"`options`: `{option}` is {options[option]!r}: {error.errors()[0]['msg']}")
    return issues


def _module(name: str, names: Mapping[str, str], kind: str) -> ModuleType:
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean `{near[0]}`? There are" if near else "there are"
        raise UserError(f"no reader `{name}` for {kind}; {hint} {', '.join(names)}")
    return importlib.import_module(f"reflectune.data_builders.readers.{names[name]}")

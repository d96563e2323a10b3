"""Facts that a person read off the summaries, for things of which no pattern tells enough."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.types import AnswerType
from reflectune.data_builders.gallery.facts import Fact
from reflectune.data_builders.gallery.sources.encyclopedia import Article


def reviewed_facts(article: Article) -> Iterator[Fact]:
    """The reviewed facts of an article: each brings its own questions, and its summary states the answer.

    Raises:
        UserError: A row of the list is wrong.
    """
    for number, (question, held_out, *answers) in enumerate(_rows().get(article.title, ())):
        answer_type: AnswerType = "string"
        yield Fact(article.title, f"note{number + 1}", tuple(answers), answer_type, asked=((question,), (held_out,)))


@cache
def _rows(path: Path | None = None) -> dict[str, list[list[str]]]:
    path = path or Path(__file__).with_name("reviewed_facts.json")
    rows: dict[str, list[list[str]]] = read_json(path, "the list of reviewed facts")
    for title, facts in rows.items():
        for row in facts:
            if len(row) < 3 or not all("{it}" in text.lower() for text in row[:2]):
                raise UserError(f"{path}: {title}: {row} is not [question with {{it}}, the same, answer, …]")
    return rows

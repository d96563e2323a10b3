"""PMSR's entity-mention recall, quirks included: the share of questions whose entity is named in a retrieved text.

This is the recall of PMSR (Table 1, "cumulative") and MI-RAG. It is not article recall: a text that names the entity
counts, whichever article it belongs to, and every iteration adds texts. Never compare the two.

The rows are those that PMSR's program writes, and these functions give the results of its evaluation. Quirks are kept:
a name is a substring, so "Rome" is mentioned by "Romeo"; a name that is empty after normalization ("The") is always
mentioned; accents are removed from names in a list, and never from the text.
"""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectune.core.errors import UserError
from reflectune.metrics.official.evqa import DELETED, LEFT_OUT
from reflectune.metrics.official.vqa import DIGITS, VERDICTS

Row = Mapping[str, Any]


@dataclass(frozen=True)
class IterationRecall:
    """Cumulative recall after an iteration, as fractions of 1: by source, and over both."""

    text: float
    image: float
    combined: float


def entity_mention_recall(rows: Sequence[Row]) -> float:
    """Share of rows in whose retrieved texts the entity is named; a row without any text counts as not named."""
    return sum(map(row_mentions, rows)) / len(rows) if rows else 0.0


def row_mentions(row: Row) -> bool:
    """Return True if a row's texts of all iterations name its `entity_text`, or its answers if it has no entity."""
    known = normalise(knowledge(row))
    return bool(knowledge(row)) and any(_holds(group, known) for group in _targets(row, keep_empty=True))


def recall_by_iteration(rows: Sequence[Row]) -> list[IterationRecall]:
    """Return the recall after each iteration, cumulative; a row that stopped earlier keeps its value.

    Raises:
        UserError: A row has texts in one string and no texts by record, as PMSR's early versions wrote them.
    """
    steps = [[(normalise(text), normalise(image)) for text, image in _iterations(row)] for row in rows]
    targets = [_targets(row, keep_empty=False) for row in rows]
    return [_recall_until(count, steps, targets) for count in range(1, max(map(len, steps), default=0) + 1)]


def knowledge(row: Row) -> str:
    """Return all texts of a row as one: as the run put them together, else from its records."""
    trajectory = _trajectory(row)
    whole = trajectory.get("all_knowledge") or row.get("knowledge")
    if whole:
        return str(whole)
    records = [record for record in trajectory.get("records") or [] if isinstance(record, Mapping)]
    return "\n\n".join(part for record in records for part in (_text(record), _image(record)) if part)


def normalise(text: str) -> str:
    """Return E-VQA's `preprocess_answer` without its contractions, as PMSR has it."""
    lowered = text.lower().replace("\n", " ").replace("\t", " ").strip().replace("<extra_id_0> ", "")
    words = LEFT_OUT.sub(" ", lowered.translate(DELETED)).split()
    return " ".join(DIGITS.get(word, VERDICTS.get(word, word)) for word in words)


def literal(value: Any) -> Any:
    """Return the list, tuple or mapping that a string spells (`"['A', 'B']"`), else the value itself."""
    if not isinstance(value, str) or value.strip()[:1] not in tuple("[{("):
        return value
    try:
        return ast.literal_eval(value.strip())
    except (SyntaxError, TypeError, ValueError):  # TypeError: a set of lists
        return value


def _recall_until(
    count: int, steps: Sequence[Sequence[tuple[str, str]]], targets: Sequence[list[list[str]]]
) -> IterationRecall:
    hits = [0, 0, 0]
    for row_steps, groups in zip(steps, targets, strict=True):
        text = " ".join(part for part, _ in row_steps[:count] if part)
        image = " ".join(part for _, part in row_steps[:count] if part)
        both = " ".join(part for part in (text, image) if part)
        for source, known in enumerate((text, image, both)):
            hits[source] += bool(known) and any(_holds(group, known) for group in groups)
    return IterationRecall(*(hit / len(steps) for hit in hits))


def _targets(row: Row, keep_empty: bool) -> list[list[str]]:
    """Return groups of normalised names; a row is a hit if all names of any group are found."""
    entity = literal(row.get("entity_text"))
    if isinstance(entity, list):
        groups = [group for name in entity for group in _listed_groups(str(name))]
    elif not _missing(entity):
        groups = _groups(_as_list(entity))
    else:
        groups = _groups(_references(row))
        if keep_empty or not _without_empty(groups):
            groups += _groups(_as_list(row.get("answer")))
    # recall over all iterations keeps empty names, which always match; recall by iteration drops them
    return groups if keep_empty else _without_empty(groups)


def _without_empty(groups: list[list[str]]) -> list[list[str]]:
    return [group for group in groups if group not in ([""], [])]


def _groups(names: Sequence[Any]) -> list[list[str]]:
    """Return a group for each name, except mappings (numerical ranges) and empty names."""
    texts = ("" if isinstance(name, Mapping) else str(name).strip() for name in names)
    return [
        [normalise(part) for part in text.split("|") if part.strip()] if "|" in text else [normalise(text)]
        for text in texts
        if text
    ]


def _listed_groups(name: str) -> list[list[str]]:
    """Return the groups of a name in a list: itself, and itself without accents unless it is joined by `|`."""
    if "|" in name:
        return [group for group in _groups([name]) if group]
    return _groups([name, _without_accents(name)])


def _holds(group: Sequence[str], known: str) -> bool:
    return all(name in known for name in group)


def _without_accents(text: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))


def _references(row: Row) -> list[Any]:
    given = row.get("input")
    inner = given if isinstance(given, Mapping) else {}
    candidates = (
        row.get("answer_eval"),
        row.get("gold_answer"),
        row.get("answer"),
        inner.get("answer_eval"),
        inner.get("answer"),
    )
    for value in candidates:
        if not isinstance(value, bool) and not _missing(value) and (names := _as_list(value)):
            return names
    return []


def _iterations(row: Row) -> list[tuple[str, str]]:
    """Return (texts of passages, captions of images) of each record."""
    records = _trajectory(row).get("records")
    if not isinstance(records, list) or not records:
        return [(whole, "")] if (whole := knowledge(row)) else []
    iterations = [(_text(record), _image(record)) for record in records if isinstance(record, Mapping)]
    if any(text or image for text, image in iterations) or not knowledge(row):
        return iterations
    raise UserError(
        f"row {row.get('record_id')!r} has `all_knowledge` but no `text_results` or `image_results` in its records: "
        "recall by iteration can't be read from it; run PMSR's program again with a version that saves its records"
    )


def _trajectory(row: Row) -> Mapping[str, Any]:
    trajectory = row.get("trajectory")
    return trajectory if isinstance(trajectory, Mapping) else {}


def _text(record: Mapping[str, Any]) -> str:
    parts = []
    for passage in record.get("text_results") or []:
        if isinstance(passage, Mapping):
            title, text = (str(passage.get(key) or "").strip() for key in ("title", "text"))
            parts.append(f"{title}\n{text}" if title and text and title != text else text or title)
    return "\n\n".join(filter(None, parts))


def _image(record: Mapping[str, Any]) -> str:
    pairs = [pair for pair in record.get("image_results") or [] if isinstance(pair, Mapping)]
    return "\n\n".join(filter(None, (str(pair.get("caption") or "").strip() for pair in pairs)))


def _as_list(value: Any) -> list[Any]:
    parsed = literal(value)
    if parsed is None or parsed == "":
        return []
    return list(parsed) if isinstance(parsed, (list, tuple)) else [parsed]


def _missing(value: Any) -> bool:
    return value is None or value == "" or str(value).strip().lower() == "nan"

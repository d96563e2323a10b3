"""Passages for a diagnosis of the tuned model: evidence, the rest of its article, and look-alikes' passages."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import read_json, read_row
from reflectune.core.errors import UserError
from reflectune.core.types import Evidence, Passage, Question
from reflectune.data_builders.annotators.string import annotate_by_string, is_yes_or_no
from reflectune.formats.dataset import LOOK_ALIKES, PROBES, companion
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages

GOLD, SAME_ARTICLE, LOOK_ALIKE, SEVERAL = "gold", "same_article", "look_alike", "several"
STATING = "stating"
_MAX_LOOK_ALIKES: Final = 2
"""Maximum number of listed look-alikes for a question."""


@dataclass(frozen=True)
class DiagnosticProbe:
    """A passage to judge, and its relation to the question.

    `source` is `gold`, `same_article` (another section of the gold article), or `look_alike:<attribute>`: a section on
    the same subject about an entity that differs in this attribute alone, or in `several`.
    """

    passage: Passage
    source: str


def attribute_of(source: str) -> str | None:
    """Return the attribute in which a look-alike differs (or `several`); None if the passage is not a look-alike's."""
    kind, _, attribute = source.partition(":")
    return attribute if kind == LOOK_ALIKE else None


def gold_passages(question: Question, passages: Sequence[Passage]) -> list[Passage]:
    """Return the passages of the evidence sections that state an answer; all passages of a section where none does.

    A section of several paragraphs is evidence as a whole; the `string` annotator finds those that state the answer.
    """
    gold = []
    for evidence in question.evidence:
        section = [p for p in passages if Evidence(p.entry_id, p.section) == evidence]
        holding = [p for p in section if annotate_by_string(question, p).relevant]
        gold += holding or section
    return gold


def is_stating(question: Question, passage: Passage) -> bool:
    """Return True if a passage is of the question's entity and states an accepted answer."""
    gold_entries = {*question.entity_ids, *(evidence.entry_id for evidence in question.evidence)}
    return passage.entry_id in gold_entries and annotate_by_string(question, passage).relevant


def is_searchable(question: Question) -> bool:
    """Return True if `is_stating` applies: the answer isn't yes or no, and the question's entity is known."""
    return not is_yes_or_no(question) and bool(question.entity_ids or question.evidence)


class DiagnosticPassages:
    """Finds the probes of a question in a data set.

    Look-alikes come from the data set's `probes.jsonl`, or else from `look_alikes.json`, which lists groups of easily
    confused entries. Of those, the sections under the evidence's heading that don't state an accepted answer are used.
    A data set without these files has no look-alikes.
    """

    def __init__(
        self, root: Path, manifest: Mapping[str, Any], knowledge: KnowledgeBase, lead: Lead, seed: int
    ) -> None:
        """Read the data set's look-alikes.

        Args:
            root: The data set's folder.
            manifest: The data set's manifest.
            knowledge: The data set's knowledge base.
            lead: Text before each passage.
        """
        self._knowledge, self._lead, self._seed = knowledge, lead, seed
        self._written = _read_written(companion(root, manifest, PROBES))
        self._listed = _read_listed(companion(root, manifest, LOOK_ALIKES), knowledge)

    def build(self, question: Question) -> list[DiagnosticProbe]:
        """Return the probes of a question with evidence, gold first; none if its evidence has no passage."""
        entries = dict.fromkeys(evidence.entry_id for evidence in question.evidence)
        passages = [p for entry_id in entries for p in self._passages(entry_id)]
        gold = gold_passages(question, passages)
        if not gold:
            return []
        sections = set(question.evidence)
        others = [p for p in passages if Evidence(p.entry_id, p.section) not in sections]
        return [
            *(DiagnosticProbe(p, GOLD) for p in gold),
            *(DiagnosticProbe(p, SAME_ARTICLE) for p in others),
            *(self._written.get(question.id) or self._alike(question, gold[0])),
        ]

    def _passages(self, entry_id: str) -> list[Passage]:
        return split_passages(self._knowledge.get(entry_id), lead=self._lead)

    def _alike(self, question: Question, gold: Passage) -> list[DiagnosticProbe]:
        """Return listed look-alikes' passages under the heading of a gold passage."""
        alike = self._listed.get(gold.entry_id, [])
        rng = random.Random(f"{self._seed} {question.id}")
        return [
            DiagnosticProbe(passage, f"{LOOK_ALIKE}:{SEVERAL}")
            for entry_id in rng.sample(alike, min(len(alike), _MAX_LOOK_ALIKES))
            for passage in self._passages(entry_id)
            if passage.heading == gold.heading and not annotate_by_string(question, passage).relevant
        ]


def _read_written(path: Path | None) -> dict[str, list[DiagnosticProbe]]:
    probes: dict[str, list[DiagnosticProbe]] = defaultdict(list)
    for number, row in _rows(path):
        try:
            probe = DiagnosticProbe(Passage(**row["passage"]), f"{LOOK_ALIKE}:{row['attribute']}")
            probes[row["question_id"]].append(probe)
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number}: expected question_id, attribute and passage (the fields of a Passage): {error}"
            ) from error
    return dict(probes)


def _read_listed(path: Path | None, knowledge: KnowledgeBase) -> dict[str, list[str]]:
    """Return the other entries of each entry's groups; an entry may be in several groups."""
    groups = read_json(path, "the look-alikes") if path else []
    if not isinstance(groups, list) or not all(
        isinstance(g, list) and all(isinstance(e, str) for e in g) for g in groups
    ):
        raise UserError(f"{path}: expected a list of lists of entry ids")
    others: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        for entry_id in group:
            knowledge.get(entry_id)  # raises if the entry is missing
            others[entry_id] += [other for other in group if other not in (entry_id, *others[entry_id])]
    return dict(others)


def _rows(path: Path | None) -> Iterable[tuple[int, dict[str, Any]]]:
    if path is None:
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield number, read_row(line, f"{path}, line {number}")

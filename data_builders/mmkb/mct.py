"""MCT labels of MMKB-RAG (arXiv 2504.10074, §3.2, Algorithm 3): mixed lists of documents, derived from probes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.data_builders.probing.labels import Rule, SrtLabel, is_right
from reflectune.data_builders.probing.records import DocumentProbe, Probe

Noise = Literal["no_rel", "unhelpful"]
RelScores = Mapping[tuple[str, str], float]
"""A trained model's [Rel] probability by question id and passage id."""


@dataclass(frozen=True)
class Mixing:
    """How Algorithm 3 mixes irrelevant documents in.

    Attributes:
        tau: Percentage of the mixed list that is irrelevant, in [0, 100): for r relevant documents r·τ/(100 - τ),
            rounded half up, are drawn from the question's own; all of them if there are fewer.
        noise: What is irrelevant. `no_rel`: documents labelled `[NoRel]`, as Algorithm 3 has it; by the rule `paper` no
            question has both labels, so there is none. `unhelpful`: all from which the answer was wrong, the label
            `[NoRel]` included.
        seed: Of draw and shuffle, together with the question's id.
    """

    tau: float = 50.0
    noise: Noise = "unhelpful"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a share that no list can have; UserError."""
        if not 0 <= self.tau < 100:
            raise UserError(f"`tau` is a percentage of the mixed list, at least 0 and below 100; found {self.tau}")


@dataclass(frozen=True)
class MctLabel:
    """A mixed list of documents, which of them to keep, and what these say.

    Attributes:
        question_id: The question.
        documents: The list as the model reads it.
        keep: Positions of the relevant documents, counted from 1 as P_MCT numbers them, most relevant first.
        summary: What the relevant documents say, by the target model; "" if there is no summary of just these.
        wanted: How many irrelevant documents τ asks for; the list may have fewer.
    """

    question_id: str
    documents: tuple[Passage, ...]
    keep: tuple[int, ...]
    summary: str
    wanted: int

    @property
    def mixed_in(self) -> int:
        """How many irrelevant documents the list has."""
        return len(self.documents) - len(self.keep)


def mct_label(
    probe: Probe, labels: Sequence[SrtLabel], rule: Rule, mixing: Mixing, rel_scores: RelScores | None = None
) -> MctLabel | None:
    """Algorithm 3: a question with more than one `[Rel]` document; None for others.

    Args:
        probe: The question's probe.
        labels: Its documents' labels.
        rule: Which answers are right.
        mixing: Which irrelevant documents are mixed in.
        rel_scores: What orders `keep`; None takes the retriever's score. Equal ones keep the order of the documents.

    Raises:
        UserError: A relevant document has no score.
    """
    relevant = [label.document for label in labels if label.relevant]
    if len(relevant) < 2:
        return None
    ordered = sorted(relevant, key=lambda document: (-_score(probe.question_id, document, rel_scores), document.rank))
    rng = random.Random(f"{mixing.seed}:{probe.question_id}")
    candidates = _irrelevant(probe, labels, rule, mixing.noise)
    wanted = int(len(relevant) * mixing.tau / (100 - mixing.tau) + 0.5)
    drawn = rng.sample(candidates, min(wanted, len(candidates)))
    mixed = rng.sample([*relevant, *drawn], len(relevant) + len(drawn))
    places = {document.passage.id: place for place, document in enumerate(mixed, start=1)}
    return MctLabel(
        question_id=probe.question_id,
        documents=tuple(document.passage for document in mixed),
        keep=tuple(places[document.passage.id] for document in ordered),
        summary=summary_of(probe, ordered),
        wanted=wanted,
    )


def summary_of(probe: Probe, documents: Sequence[DocumentProbe]) -> str:
    """What the target model says of just these documents, "" if it wasn't asked.

    The model's own words if it wrote some about this very set; else the sentences that it chose, one per document, in
    this order and each once, if it chose one of every document.
    """
    if probe.summary and {document.passage.id for document in documents} == set(probe.summarised):
        return probe.summary
    chosen = [document.sentence for document in documents]
    return " ".join(dict.fromkeys(chosen)) if all(chosen) else ""


def _score(question_id: str, document: DocumentProbe, rel_scores: RelScores | None) -> float:
    if rel_scores is None:
        return document.score
    key = (question_id, document.passage.id)
    if key not in rel_scores:
        raise UserError(f"`rel_scores`: question {question_id} has no score for passage {key[1]}; score all of them")
    return rel_scores[key]


def _irrelevant(probe: Probe, labels: Sequence[SrtLabel], rule: Rule, noise: Noise) -> list[DocumentProbe]:
    """What Algorithm 3 may mix in, best first."""
    by_id = {label.document.passage.id: label.relevant for label in labels}
    return [
        document
        for document in probe.documents
        if (
            not by_id[document.passage.id]
            if document.passage.id in by_id
            else noise == "unhelpful" and is_right(document.replies, rule) is False
        )
    ]

"""MCT labels of MMKB-RAG (arXiv 2504.10074, §3.2, Algorithm 3): mixed lists of documents, derived from probes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.core.values import Seed
from reflectune.data_builders.probing.labels import SrtLabel, is_right
from reflectune.data_builders.probing.records import DocumentProbe, Probe

Noise = Literal["no_rel", "unhelpful", "conflicts"]
RelScores = Mapping[tuple[str, str], float]
"""Probability of [Rel] by a trained model, by question id and passage id."""


class MixingSettings(Settings):
    """Composition of the mixed lists of Algorithm 3.

    For r relevant documents, r·τ/(100 - τ) irrelevant ones (rounded half up) are drawn from the question's own, or all
    if there are fewer. `no_rel` draws from those labelled `[NoRel]`, as in Algorithm 3; with `rule: paper` no question
    has both labels, so there are none. `unhelpful` draws from all with a wrong answer, including the `[NoRel]` ones;
    `conflicts` too, first from those of another entry under the heading of a relevant one.
    """

    tau: float = setting(50.0, "percentage of irrelevant documents in the mixed lists of MCT", ge=0)
    noise: Noise = setting(
        "unhelpful",
        "documents to mix in: no_rel, unhelpful (all with a wrong answer), or conflicts (look-alikes' first)",
    )
    min_relevant: int = setting(2, "minimum number of relevant documents of a mixed list; Algorithm 3: 2", ge=1)
    seed: Seed = setting(0, "seed of every draw")

    @cross_check
    def tau_problems(self) -> Iterator[str]:
        """Yield the problem of an invalid percentage."""
        if self.tau >= 100 or 0 < self.tau < 1:
            yield f"`tau` is a percentage of the mixed list, 0, or at least 1 and below 100; found {self.tau}"


@dataclass(frozen=True)
class MctLabel:
    """A mixed list of documents, the ones to keep, and their summary.

    Attributes:
        question_id: The question.
        documents: The list as the model reads it.
        keep: Positions of the relevant documents, from 1 as P_MCT numbers them, most relevant first.
        summary: Summary of exactly the relevant documents by the target model; "" if there is none.
        expected: Number of irrelevant documents by τ. The list may have fewer.
    """

    question_id: str
    documents: tuple[Passage, ...]
    keep: tuple[int, ...]
    summary: str
    expected: int

    @property
    def mixed_in(self) -> int:
        """Number of irrelevant documents in the list."""
        return len(self.documents) - len(self.keep)


def mct_label(
    probe: Probe, labels: Sequence[SrtLabel], mixing: MixingSettings, rel_scores: RelScores | None = None
) -> MctLabel | None:
    """Return the label by Algorithm 3; None for a question with fewer than `min_relevant` `[Rel]` documents.

    If the model summarised only some of these, since all were too long or a later metric added others, the list has
    only the summarised ones.

    Args:
        probe: The question's probe.
        labels: Labels of its documents.
        mixing: Composition of the list.
        rel_scores: Scores that order `keep`; None takes the retriever's. Ties keep the order of the documents.

    Raises:
        UserError: A relevant document has no score.
    """
    relevant = [label.document for label in labels if label.relevant]
    summarised = [document for document in relevant if document.passage.id in probe.summarised]
    if probe.summary and len(summarised) == len(probe.summarised) >= mixing.min_relevant:
        relevant = summarised  # the summary is of these only; the others stay out of the list
    if len(relevant) < mixing.min_relevant:
        return None
    ordered = sorted(
        relevant, key=lambda document: (-rel_score(probe.question_id, document, rel_scores), document.rank)
    )
    rng = random.Random(f"{mixing.seed}:{probe.question_id}")
    irrelevant = _irrelevant(probe, labels, mixing.noise)
    conflicting = _conflicting(irrelevant, relevant) if mixing.noise == "conflicts" else []
    expected = int(len(relevant) * mixing.tau / (100 - mixing.tau) + 0.5)
    drawn: list[DocumentProbe] = []
    for group in (conflicting, [document for document in irrelevant if document not in conflicting]):
        drawn += rng.sample(group, min(expected - len(drawn), len(group)))
    mixed = rng.sample([*relevant, *drawn], len(relevant) + len(drawn))
    positions = {document.passage.id: position for position, document in enumerate(mixed, start=1)}
    return MctLabel(
        question_id=probe.question_id,
        documents=tuple(document.passage for document in mixed),
        keep=tuple(positions[document.passage.id] for document in ordered),
        summary=summary_of(probe, ordered),
        expected=expected,
    )


def summary_of(probe: Probe, documents: Sequence[DocumentProbe]) -> str:
    """Return the target model's summary of exactly these documents; "" if there is none.

    It is the model's own words on this set of documents, or else the sentences that it chose, in this order and
    without duplicates, if it chose one of every document.
    """
    if probe.summary and {document.passage.id for document in documents} == set(probe.summarised):
        return probe.summary
    chosen = [document.sentence for document in documents]
    return " ".join(dict.fromkeys(chosen)) if all(chosen) else ""


def rel_score(question_id: str, document: DocumentProbe, rel_scores: RelScores | None) -> float:
    """Return a document's trained [Rel] probability, or its retrieval score if there are none."""
    if rel_scores is None:
        return document.score
    key = (question_id, document.passage.id)
    if key not in rel_scores:
        raise UserError(f"`rel_scores`: question {question_id} has no score for passage {key[1]}; score all of them")
    return rel_scores[key]


def _irrelevant(probe: Probe, labels: Sequence[SrtLabel], noise: Noise) -> list[DocumentProbe]:
    """Return the documents that may be mixed in, best first."""
    by_id = {label.document.passage.id: label.relevant for label in labels}

    def may_be_mixed_in(document: DocumentProbe) -> bool:
        if document.passage.id in by_id:
            return not by_id[document.passage.id]
        return noise != "no_rel" and is_right(document.reply) is False

    return [document for document in probe.documents if may_be_mixed_in(document)]


def _conflicting(irrelevant: Sequence[DocumentProbe], relevant: Sequence[DocumentProbe]) -> list[DocumentProbe]:
    """Return the documents of other entries than the relevant ones', under the heading of one of these."""
    headings = {document.passage.heading for document in relevant}
    entries = {document.passage.entry_id for document in relevant}
    return [d for d in irrelevant if d.passage.heading in headings and d.passage.entry_id not in entries]

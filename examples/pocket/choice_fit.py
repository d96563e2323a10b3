"""Fit MMKB-RAG's choice of documents, `srt_fusion`, `k` and `threshold`, on judged documents of held-out questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.inference.reading.document_choice import fuse, fusion_features, keep_relevant
from reflectune.inference.reading.ranking import document_shares
from reflectune.metrics.reporting.gates import fit_logistic, logistic_loss

CHOICE_FILE: Final = "choice.json"
TEMPERATURES: Final = (0.005, 0.01, 0.02, 0.05, 0.1)
"""Values of `s_ret_temperature` to try."""
_RIDGE: Final = 1e-3


@dataclass(frozen=True)
class JudgedDocument:
    """Document of a question: its entry, S_ret, Score_SRT, and True if the answer from it is right."""

    entry: str
    s_ret: float
    score: float
    right: bool


@dataclass(frozen=True)
class DocumentChoice:
    """Fitted values of `evaluate`'s keys, and `f1` of the kept documents; `k` is 0 for `auto`."""

    s_ret_temperature: float
    srt_fusion: tuple[float, ...]
    k: int
    threshold: float
    f1: float

    @classmethod
    def read(cls, folder: Path) -> DocumentChoice:
        """Read the choice that `choose` wrote into a folder."""
        row = read_json(folder / CHOICE_FILE, "the fitted choice")
        values = {field.name: row[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**values, "srt_fusion": tuple(row["srt_fusion"])})

    @property
    def flags(self) -> str:
        """The values as options of `evaluate`."""
        fusion = " ".join(f"{weight:.6g}" for weight in self.srt_fusion)
        kept = f"--k {self.k or 'auto'} --threshold {self.threshold:g}"
        return f"--s_ret_temperature {self.s_ret_temperature:g} --srt_fusion {fusion} {kept}"


def fit_choice(questions: Sequence[Sequence[JudgedDocument]]) -> DocumentChoice:
    """Fit a, b and c by maximum likelihood of `right`, and the number to keep by F1 of the kept documents.

    F1 is the mean over questions with a right document; questions are those that nothing was trained on.

    Raises:
        UserError: All documents are right, or none is.
    """
    questions = [documents for documents in questions if documents]
    right = np.array([document.right for documents in questions for document in documents], dtype=float)
    if len(set(right.tolist())) < 2:
        raise UserError(f"a choice is fitted on right and wrong documents; found {len(right)} of one kind; judge more")
    fits = []
    for temperature in TEMPERATURES:
        shares = [document_shares([d.entry for d in q], [d.s_ret for d in q], temperature) for q in questions]
        pairs = [(d, s) for q, row in zip(questions, shares, strict=True) for d, s in zip(q, row, strict=True)]
        rows = np.array([fusion_features(d.score, share) for d, share in pairs])
        weights = fit_logistic(rows, right, np.zeros(3), _RIDGE)
        fits.append((logistic_loss(rows @ weights, right), weights.tolist(), temperature, shares))
    _, weights, temperature, shares = min(fits, key=lambda fit: fit[0])
    chances = [
        [fuse(d.score, share, weights) for d, share in zip(q, row, strict=True)]
        for q, row in zip(questions, shares, strict=True)
    ]
    most = max(map(len, questions))
    options = [(k, 0.5) for k in range(1, most + 1)] + [(0, step / 20) for step in range(1, 20)]
    f1, k, threshold = max(((_f1(questions, chances, *option), *option) for option in options), key=lambda o: o[0])
    return DocumentChoice(temperature, tuple(weights), k, threshold, f1)


def _f1(
    questions: Sequence[Sequence[JudgedDocument]], chances: Sequence[Sequence[float]], k: int, threshold: float
) -> float:
    scores = []
    for documents, question_chances in zip(questions, chances, strict=True):
        if right := sum(document.right for document in documents):
            kept, _ = keep_relevant(question_chances, k, threshold)
            scores.append(2 * sum(documents[position].right for position in kept) / (len(kept) + right))
    return float(np.mean(scores))

"""E-VQA's official score: exact match or list overlap, or else the answer-equivalence model BEM, given its logits.

Written after `encyclopedic_vqa/evaluation_utils.py` of google-research, which it matches to the last digit. Quirks are
kept: "3.5" reads as "35", " and " splits a list even inside a name, "AND" does not. Where that file raises ValueError,
so does this one, with its words.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Sequence

import numpy as np

from reflectune.metrics.official.vqa import CONTRACTIONS, DIGITS, VERDICTS

BemLogits = Callable[[str, str, str], Sequence[float]]
"""(candidate, reference, question) -> two logits: not equivalent, equivalent. BEM reads them in this order."""

QUESTION_TYPES = ("templated", "automatic", "multi_answer", "2_hop")

DELETED = str.maketrans("", "", string.punctuation + "‘’´`")
LEFT_OUT = re.compile(r"\b(the answer is|a|an|the)\b")
"""Punctuation and words that the comparison of answers ignores, in PMSR's program too."""
_SPAN_PREFIX = "<extra_id_0> "


def evaluate_example(
    question: str, references: Sequence[str], candidate: str, question_type: str, bem_logits: BemLogits
) -> float:
    """Return 1.0 if the candidate agrees with any reference by exact match or by BEM, else 0.0.

    Args:
        question: The question, which only BEM reads.
        references: Accepted answers; for `multi_answer` each is a list joined by `&&`.
        candidate: The answer given.
        question_type: One of `QUESTION_TYPES`. Only `multi_answer` is compared as a list.
        bem_logits: Returns BEM's logits; called only where exact match fails. The official code raises ValueError for
            more than 512 word pieces; raise it too for the same results.

    Raises:
        ValueError: A reference is empty, or the question type is unknown.
    """
    if not references:
        raise ValueError("Reference list cannot be empty.")
    return max(_score(question, reference, candidate, question_type, bem_logits) for reference in references)


def single_exact_match(reference: str, candidate: str) -> bool:
    """Return True if both are equal after `preprocess_answer`; ValueError if the reference is empty after it."""
    expected = preprocess_answer(reference)
    if not expected:
        raise ValueError("Reference answer is empty after preprocessing.")
    return expected == preprocess_answer(candidate)


def multi_exact_match(reference: str, candidate: str, iou_threshold: float = 0.5) -> bool:
    """Return True if two lists overlap enough: intersection over union ≥ threshold.

    The reference is split at `&&`; the candidate at commas, " and " and " & " (before lower-casing).
    """
    return _overlaps(reference, list_items(candidate), iou_threshold)


def list_items(candidate: str) -> list[str]:
    """Split an answer into items as the official code does: at commas, " and " and " & "."""
    return candidate.replace(" and ", ",").replace(" & ", ",").split(",")


def comma_list(answer: str) -> str:
    """Return a list of answers with commas, as the official code expects it.

    Our instruction asks models to connect several answers by `&&` (mR²AG, arXiv 2411.15041, §7.3); the official code
    splits its references there, but not the candidate.

    Example:
        >>> comma_list("red&&blue")
        'red,blue'
    """
    return answer.replace("&&", ",")


def answer_readings(answer: str) -> list[list[str]]:
    """Return the items of an answer to our instruction, in each possible reading.

    An answer with `&&` is split there alone. Any other answer has two readings: as the official code splits it, names
    such as "Trinidad and Tobago" included, and as one item.

    Example:
        >>> answer_readings("Trinidad and Tobago&&Washington, D.C.")
        [['Trinidad and Tobago', 'Washington, D.C.']]
        >>> answer_readings("Trinidad and Tobago")
        [['Trinidad', 'Tobago'], ['Trinidad and Tobago']]
    """
    return [answer.split("&&")] if "&&" in answer else [list_items(answer), [answer]]


def list_match(answer: str, references: Sequence[str]) -> bool:
    """Return True if a list, by one of its `answer_readings`, overlaps enough with a reference.

    Raises:
        ValueError: A reference is empty.
    """
    return any(_overlaps(reference, items) for reference in references for items in answer_readings(answer))


def list_iou(target: Collection[str], prediction: Collection[str]) -> float:
    """Return the intersection over union of two lists read as sets; ValueError if the target is empty."""
    if not target:
        raise ValueError("Target list should not be empty.")
    expected, found = set(target), set(prediction)
    return len(expected & found) / len(expected | found)


def preprocess_answer(text: str) -> str:
    """Lower case; no punctuation, articles or "the answer is"; digits for number words; single spaces."""
    text = text.lower().replace("\n", " ").replace("\t", " ").strip()
    if text.startswith(_SPAN_PREFIX):
        text = text.replace(_SPAN_PREFIX, "")
    words = LEFT_OUT.sub(" ", text.translate(DELETED)).split()
    digits = [DIGITS.get(word, VERDICTS.get(word, word)) for word in words]
    return " ".join(CONTRACTIONS.get(word, word) for word in digits)


def bem_segments(question: str, reference: str, candidate: str, question_type: str) -> tuple[str, str, str]:
    """Return (candidate, reference, question) as BEM reads them: as written, except a multi-answer reference's `&&`."""
    listed = comma_list(reference) if question_type == "multi_answer" else reference
    return candidate, listed, question


def _score(question: str, reference: str, candidate: str, question_type: str, bem_logits: BemLogits) -> float:
    if not reference:
        raise ValueError("Reference answer cannot be empty.")
    if question_type not in QUESTION_TYPES:
        raise ValueError(f"Unknown question type. Valid options are {list(QUESTION_TYPES)}")
    match = multi_exact_match if question_type == "multi_answer" else single_exact_match
    if match(reference, candidate):
        return 1.0
    logits = bem_logits(*bem_segments(question, reference, candidate, question_type))
    return float(_softmax(logits)[1] >= 0.5)


def _overlaps(reference: str, items: Sequence[str], iou_threshold: float = 0.5) -> bool:
    """Return True if a list's items overlap enough with a reference, which is split at `&&`.

    Raises:
        ValueError: The reference is empty.
    """
    expected = _preprocessed(reference.split("&&"))
    if not expected:
        raise ValueError("Reference list is empty after preprocessing.")
    return list_iou(expected, _preprocessed(items)) >= iou_threshold


def _softmax(logits: Sequence[float]) -> np.ndarray:
    values = np.squeeze(np.asarray(logits))
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def _preprocessed(answers: Sequence[str]) -> list[str]:
    return [preprocessed for answer in answers if (preprocessed := preprocess_answer(answer))]

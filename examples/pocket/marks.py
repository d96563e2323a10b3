"""The marks of pocket: thresholds that were set before anything was trained, and the report that compares with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectune.examples.scores import at, equal_depth
from reflectune.metrics.reporting.breakdown import in_per_cent

Metrics = Mapping[str, Any]
"""Content of a metrics.json."""


@dataclass(frozen=True)
class Mark:
    """A score and the range that it should lie in.

    Attributes:
        name: Name of the score.
        expected: The range in words.
        score: The measured score (`value`, `low`, `high`, `n` as in metrics.json), or None.
        least: Lower bound of the value.
        most: Upper bound of the value.
        above_zero: True if the interval must lie above 0 as well.
    """

    name: str
    expected: str
    score: Metrics | None
    least: float = 0.0
    most: float = 1.0
    above_zero: bool = False

    @property
    def verdict(self) -> str:
        """`reached`, `missed`, or `not measured`."""
        if self.score is None:
            return "not measured"
        reached = self.least <= self.score["value"] <= self.most
        return "reached" if reached and (not self.above_zero or self.score["low"] > 0) else "missed"

    @property
    def line(self) -> str:
        """The mark's row of a Markdown table."""
        return f"| {self.name} | {self.expected} | {in_per_cent(self.score)} | {self.verdict} |"


def marks(looked: Metrics, mr2ag: Metrics, mmkb: Metrics) -> list[Mark]:
    """Return the table of marks.

    Args:
        looked: Scores of stage 2 by `examples.pocket.look`.
        mr2ag: metrics.json of mR²AG's evaluation.
        mmkb: metrics.json of MMKB-RAG's evaluation.
    """
    has_tuned = any(name.endswith("_tuned") for name in mr2ag.get("pipelines", {}))
    lead = at(mr2ag, "comparisons", "mr2ag - best_baseline") if has_tuned else None
    stating_first = at(mmkb, "reflection", "srt", "overall", "stating_first")
    base, tuned = at(mr2ag, "visual", "base"), at(mr2ag, "visual", "tuned")
    mct = at(mmkb, "reflection", "mct") or {}
    malformed = {"value": mct["malformed"] / mct["replies"]} if mct.get("replies") else None
    forgetting = {"value": base["value"] - tuned["value"]} if base and tuned else None
    retrieval, relevance = mr2ag.get("retrieval") or {}, mr2ag.get("relevance") or {}
    known = at(mmkb, "reflection", "ret_knowledge", "overall", "auroc")
    return [
        Mark("caption of a held-out image, out of 8", "≥ 65", looked.get("caption"), 0.65),
        Mark("visual questions, base", "≥ 60", base, 0.6),
        Mark("lost on them by reflection tuning", "≤ 2", forgetting, -1.0, 0.02),
        Mark("closed book", "5 to 50", at(mr2ag, "pipelines", "closed_book", "overall"), 0.05, 0.5),
        Mark("article retrieved first, of 10,033", "≤ 60", retrieval.get("article_recall@1"), 0.0, 0.6),
        Mark("article among the first 5", "≥ 70", retrieval.get("article_recall@5"), 0.7),
        Mark("gate: knowledge against visual", "≥ 97", at(mr2ag, "gate", "accuracy"), 0.97),
        Mark("RET: known against unknown, AUROC", "≥ 70", known, 0.7),
        Mark("stating passage against its article's others", "≥ 85", relevance.get("within_article"), 0.85),
        Mark("stating passage against look-alikes'", "≥ 75", relevance.get("look_alikes"), 0.75),
        Mark("answer, stating passage given", "≥ 70", at(mr2ag, "answer", "gold_passage"), 0.7),
        Mark(
            "mR²AG over the best baseline at equal depth, tuned ones included",
            "≥ 5, interval above 0",
            lead,
            0.05,
            above_zero=True,
        ),
        Mark(
            "MMKB-RAG over naive RAG at equal depth",
            "≥ 5, interval above 0",
            at(mmkb, "comparisons", "mmkb_rag - best_baseline"),
            0.05,
            above_zero=True,
        ),
        Mark("SRT: a stating document first where one was retrieved", "≥ 80", stating_first, 0.8),
        Mark("MCT: malformed replies", "≤ 5", malformed, 0.0, 0.05),
        *_calibrations(mr2ag, mmkb),
    ]


def _calibrations(mr2ag: Metrics, mmkb: Metrics) -> list[Mark]:
    made = []
    for metrics, key, name in (
        (mr2ag, "gate", "gate"),
        (mr2ag, "relevance", "S_rel"),
        (mmkb, "ret", "RET"),
        (mmkb, "srt", "SRT"),
    ):
        before, scaled = (at(metrics, "calibration", key, error) for error in ("ece", "ece_scaled"))
        unscaled = f", {100 * before['value']:.1f} before" if before else ""
        made.append(Mark(f"{name}: calibration error after scaling{unscaled}", "≤ 5", scaled, 0.0, 0.05))
    return made


def pipeline_table(metrics: Metrics) -> list[str]:
    """Return the score of every pipeline of an evaluation, and the leads, as lines of a Markdown table."""
    lines = ["| pipeline | per cent of the knowledge questions |", "|---|---|"]
    for name, scores in metrics["pipelines"].items():
        lines.append(f"| `{name}` | {in_per_cent(scores['overall'])} |")
    return [*lines, *(f"| {name} | {in_per_cent(lead)} |" for name, lead in metrics["comparisons"].items())]


def report(table: Sequence[Mark], mr2ag: Metrics, mmkb: Metrics, minutes: Mapping[str, float]) -> str:
    """Return the tables of a run as Markdown."""
    lines = ["| | mark | | |", "|---|---|---|---|", *(mark.line for mark in table), ""]
    if mr2ag:
        lines += [f"In brackets: 95 % intervals; of the scores, over {mr2ag['resampled']}.", ""]
        lines += ["## At equal depth", "", "```", *equal_depth(dict(mr2ag)), "```", ""]
    if mmkb:
        lines += ["## MMKB-RAG", "", *pipeline_table(mmkb), ""]
    return "\n".join([*lines, *minutes_table(minutes)])


def minutes_table(minutes: Mapping[str, float]) -> list[str]:
    """Return the minutes of the stages as lines of Markdown; [] without any."""
    if not minutes:
        return []
    rows = [f"| {name} | {value} |" for name, value in minutes.items()]
    heading = [
        "## Minutes",
        "",
        "By the clock; independent stages ran side by side.",
        "",
        "| stage | minutes |",
        "|---|---|",
    ]
    return [*heading, *rows, f"| all | {sum(minutes.values()):.0f} |", ""]

"""Tables of the report, as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from reflectune.core.html import Cell, Table, render
from reflectune.inference.scoring.evaluation import BEST_BASELINE, BEST_OF_ALL, BESTS

GATE_TITLES = {
    "gate": "gate: knowledge-based or visual",
    "relevance": "S_rel: a gold passage or another",
    "ret": "RET: the base model is wrong or right",
    "srt": "SRT: the document states an answer or not",
}
"""Titles of gates by their name in metrics.json: the two classes that a gate separates."""
COST_HEADS = {
    "passages": "passages read",
    "calls": "model calls",
    "searches": "searches",
    "read": "tokens read",
    "computed": "tokens computed",
    "generated": "tokens written",
    "seconds": "seconds",
}
"""Heads of `COSTS`."""
COMPUTE = ("calls", "read", "computed")
"""Costs that stand next to each score."""


def plain_names(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the plain name of each pipeline, and of the best ones."""
    names = metrics["names"]
    titles = {BEST_BASELINE: "best baseline", BEST_OF_ALL: "best of all baselines and controls"}
    return names | {best: f"{title} ({names[metrics[best]]})" for best, title in titles.items() if metrics[best]}


def scores(metrics: Mapping[str, Any]) -> Markup:
    """Return the official scores of every pipeline by split and type, with leads and scores by group."""
    heads, names = metrics["metric"]["columns"], plain_names(metrics)
    tables = {name: table for name, table in metrics["pipelines"].items() if name not in BESTS}
    types = sorted({kind for table in tables.values() for kind in table["by_type"]} - set(heads))
    rows = [
        [
            Cell(names[name], note) if (note := _reader(metrics, name)) else names[name],
            *(score_cell(table.get(column)) for column in heads),
            *(score_cell(table["by_type"].get(kind)) for kind in types),
            _share(metrics["coverage"][name]),
            *(number(metrics["costs"][name][cost]) for cost in COMPUTE),
        ]
        for name, table in tables.items()
    ]
    kinds = (kind.replace("_", " ") for kind in types)
    head = ["pipeline", *heads.values(), *kinds, "answered", *(COST_HEADS[cost] for cost in COMPUTE)]
    caption = (
        f"{metrics['metric']['caption']}; knowledge-based questions, in %, with 95 % bootstrap intervals over "
        f"{metrics['resampled']}. Calls and tokens are those of a scored question, on average."
    )
    return _html(Table(head, rows, caption), _splits(metrics), _gains(metrics), _groups(metrics))


def _reader(metrics: Mapping[str, Any], name: str) -> str:
    """Return the contexts that a tuned baseline was trained on, and a note if it reads others."""
    if not (reader := metrics["readers"].get(name)):
        return ""
    words = {"none": "no context"}
    tuned_on = ", ".join(words.get(form, form) for form in reader["tuned_on"]) or "unknown contexts"
    reads = words.get(reader["reads"], reader["reads"])
    return f"reader tuned on {tuned_on}" + (f"; here it reads {reads}" if reader["as_tuned"] is False else "")


def parts(metrics: Mapping[str, Any]) -> Markup:
    """Return each decision by itself: gate, relevance, answers, visual questions, retrieval."""
    relevance, answer, visual = metrics["relevance"], metrics["answer"], metrics["visual"]
    scored = f"metric {metrics['metric']['name']}"
    rows = [
        ("Retrieval gate, accuracy", "knowledge-based against visual questions", metrics["gate"]["accuracy"]),
        ("Retrieval gate, AUROC", "the same, over all thresholds", metrics["gate"]["auroc"]),
        ("Relevance within the article", "evidence against other sections, balanced", relevance["within_article"]),
        ("Relevance against look-alikes", "evidence against their same section, balanced", relevance["look_alikes"]),
        *(
            (f"Look-alikes rejected: {attribute}", f"differing in {attribute} alone", score)
            for attribute, score in relevance["by_attribute"].items()
        ),
        ("Answer, gold passage given", f"the tuned model, {scored}", answer["gold_passage"]),
        ("Answer, whole gold article given", f"the base model, {scored}", answer["gold_article"]),
        ("Visual questions, tuned", f"through the gate, {scored}", visual["tuned"]),
        ("Visual questions, base", f"closed book, {scored}", visual["base"]),
        *(
            (f"Retrieval, {name.replace('_', ' ')}", "by images and titles, weighted as above", score)
            for name, score in metrics["retrieval"].items()
        ),
        *(_reflection(metrics["reflection"], metrics["metric"]["columns"]) if metrics["reflection"] else ()),
    ]
    cells = [[name, score_cell(score), "–" if score is None else str(score["n"]), about] for name, about, score in rows]
    return _html(Table(["decision", "%", "questions", "measured on"], cells, prose=3))


def _reflection(
    reflection: Mapping[str, Any], heads: Mapping[str, str]
) -> Iterator[tuple[str, str, Mapping[str, float] | None]]:
    """Yield MMKB-RAG's decisions: name, description, score."""
    titles = {**heads, "overall": "all questions"}
    for scope, title in ((scope, titles.get(scope, scope)) for scope in reflection["ret"]):
        ret, known, srt = (reflection[name][scope] for name in ("ret", "ret_knowledge", "srt"))
        wrong = "against: the base model's closed-book answer is wrong"
        yield f"RET, AUROC, {title}", wrong, ret["auroc"]
        yield f"RET, AUROC, {title}, knowledge-based", f"{wrong}; without the visual ones", known["auroc"]
        yield f"RET, accuracy, {title}", f"{wrong}; at γ", ret["accuracy"]
        yield f"RET, calibration error, {title}", f"{wrong}; ten bins, lower is better", ret["calibration_error"]
        yield f"SRT, first document states an answer, {title}", "where one of its documents does", srt["stating_first"]
        yield f"Retriever's order, the same, {title}", "the same questions", srt["stating_first_retriever"]
        yield f"A document states an answer, {title}", "of the question's entity", srt["stating_retrieved"]
    yield "Retrieved", "RET at γ, all questions", reflection["retrieved"]


def rankings(metrics: Mapping[str, Any]) -> Markup:
    """Return the scores of mR²AG's eight rankings (Table 5 of the paper), and a verdict on the full product."""
    measured = metrics["rankings"]
    if not measured:
        return _html(notes=["mr2ag was not run; no other pipeline ranks its answers by products."])
    label, heads = {"full": "ret·rel·ans (the full product)"}, metrics["metric"]["columns"]
    rows = [
        [label.get(name, name.replace("*", "·")), *(score_cell(table.get(column)) for column in heads)]
        for name, table in measured["scores"].items()
    ]
    caption = (
        "Answers chosen among mr2ag's candidates by each product of S_ret, S_rel, S_ans, without the run's exponents "
        "and votes. “random” is the exact expectation of a random choice; ties share equally."
    )
    return _html(Table(["ranked by", *heads.values()], rows, caption), notes=ranking_sentences(measured, heads))


def ranking_sentences(measured: Mapping[str, Any], heads: Mapping[str, str]) -> list[str]:
    """Return a sentence per column that compares the full product with the other rankings."""
    sentences = []
    for column, leads in measured["full_product_leads"].items():
        behind = [name.replace("*", "·") for name, lead in leads.items() if lead["high"] < 0]
        ties = [name.replace("*", "·") for name, lead in leads.items() if lead["low"] <= 0 <= lead["high"]]
        verdict = "is the best"
        if behind:
            verdict = f"is behind {', '.join(behind)}"
        elif ties:
            verdict = f"ties with {', '.join(ties)}"
        sentences.append(
            f"{heads[column].capitalize()}: the full product {verdict}, by the 95 % intervals of its leads."
        )
    return sentences


def calibration(metrics: Mapping[str, Any]) -> Markup:
    """Return each gate's calibration error before and after scaling; "" if none was measured."""
    measured = metrics["calibration"]
    if not measured:
        return Markup()
    read_scaled = any("ece_uncalibrated" in numbers for numbers in measured.values())
    rows = [
        [
            GATE_TITLES[name],
            *([score_cell(numbers.get("ece_uncalibrated"))] if read_scaled else []),
            score_cell(numbers["ece"]),
            score_cell(numbers["ece_scaled"]),
            score_cell(numbers["reduction"], sign=True),
            *(f"{numbers[key]:.2f}" for key in ("scale_no", "scale_yes", "bias")),
            str(numbers["n"]),
        ]
        for name, numbers in measured.items()
    ]
    uncalibrated = ["without calibration.json, %"] if read_scaled else []
    head = ["gate", *uncalibrated, "error, %", "scaled, %", "points less", "scale of no", "of yes", "bias", "questions"]
    caption = (
        "Expected calibration error over ten bins of the gate's probabilities, and after beta calibration, where each "
        "half of the questions is scaled by the fit to the other half; with 95 % bootstrap intervals. The fit shown is "
        "that of all questions. A scale below 1 means that the gate is overconfident in its yes, or in its no."
    )
    return _html(Table(head, rows, caption))


def facts(values: Mapping[str, str]) -> Markup:
    """Return a table of names and values."""
    return _html(Table([], list(values.items()), prose=1))


def _splits(metrics: Mapping[str, Any]) -> Table | None:
    """Return scores by split, if the official columns don't show them already."""
    by_split = metrics["by_split"]
    splits = sorted({split for table in by_split.values() for split in table})
    shown = set(metrics["metric"]["columns"].values())
    if len(splits) <= 1 or set(splits) <= shown or (len(splits) == 2 and metrics["metric"]["name"] == "infoseek"):
        return None
    names = plain_names(metrics)
    rows = [
        [names[name], *(score_cell(table.get(split)) for split in splits)]
        for name, table in by_split.items()
        if name not in BESTS
    ]
    return Table(["pipeline", *splits], rows, "By split, two-hop questions included.")


def _gains(metrics: Mapping[str, Any]) -> Table | None:
    heads, names = metrics["metric"]["columns"], plain_names(metrics)
    rows = [
        [
            " − ".join(names[part] for part in name.split(" - ")),
            score_cell(gain, sign=True),
            heads[gain["of"]] if gain else "–",
        ]
        for name, gain in metrics["comparisons"].items()
    ]
    caption = "Difference of the scores in points, paired by question, with its 95 % interval; and the score compared."
    return Table(["difference", "points", "score"], rows, caption) if rows else None


def _groups(metrics: Mapping[str, Any]) -> Table | None:
    """Return scores and leads over the best baseline by group of questions, if groups are configured."""
    if not (parts := metrics["groups"]):
        return None
    names = plain_names(metrics)
    best = names.get(BEST_BASELINE)  # none without a baseline
    keys = ("score", "lead") if best else ("score",)
    rows = [
        [names[name], *(score_cell(part[name][key], sign=key == "lead") for part in parts.values() for key in keys)]
        for name in parts["overall"]
    ]
    counts = {part: max((row["score"] or {"n": 0})["n"] for row in table.values()) for part, table in parts.items()}
    titles = (f"{part}, {count}" if key == "score" else key for part, count in counts.items() for key in keys)
    caption = "By group, with the number of questions" + (f"; leads over the {best} in points." if best else ".")
    return Table(["pipeline", *titles], rows, caption)


def _html(*tables: Table | None, notes: Sequence[str] = ()) -> Markup:
    shown = [table for table in tables if table is not None]
    return render("inference/report/templates/tables.html", tables=shown, notes=notes)


def score_cell(score: Mapping[str, float] | None, sign: bool = False) -> str | Cell:
    """Return a score in per cent with its interval; a dash without a score."""
    if score is None:
        return "–"
    form = "+.1f" if sign else ".1f"
    value, low, high = (format(100 * score[name], form) for name in ("value", "low", "high"))
    return Cell(value, f"{low} … {high}")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def number(value: float | None) -> str:
    """Format a number with three significant digits, without decimals from 100 on; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

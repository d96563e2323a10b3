"""One question, one image, one answer, and how it came about in words."""

from __future__ import annotations

import textwrap
from pathlib import Path

from reflectune.core.images import load_image
from reflectune.data_builders.dataset import Dataset
from reflectune.inference.collaborators import open_reader, open_retriever, open_tuned
from reflectune.inference.config import AnswerConfig
from reflectune.inference.pipelines import base
from reflectune.inference.pipelines.mr2ag import MR2AG
from reflectune.inference.ranking import product
from reflectune.inference.trace import PassageTrace, Trace


def answer(config: AnswerConfig) -> Trace:
    """Answer the config's question with mr2ag."""
    image = load_image(config.image)
    knowledge = Dataset(Path(config.dataset)).knowledge
    retriever = open_retriever(config, knowledge)
    pipeline = MR2AG(
        open_reader(config, open_tuned(config)),
        retriever,
        knowledge,
        top_n=config.top_n,
        gamma=config.gamma,
        fallback=config.fallback,
        lead=config.lead,
    )
    return base.answer(pipeline, config.question, image)


def describe(config: AnswerConfig) -> str:
    """What would be done, for `--dry_run`."""
    return (
        f"would ask {config.model} “{config.question}” about {config.image}, looking up at most {config.top_n} "
        f"entries of {config.dataset} through the index {config.index}"
    )


def explain(trace: Trace) -> str:
    """The decision, the entries, the passages with their scores (best product first), and the answer, as plain text."""
    decision = "look it up" if trace.retrieved else "answer by looking"
    lines = [f"decision: {decision} (gate {_number(trace.gate)})"]
    if trace.hits:
        lines += ["entries:", *(f"  {hit.rank}. {hit.entry_id}  S_ret {hit.score:.3f}" for hit in trace.hits)]
    if trace.passages:
        lines.append("passages:")
        order = sorted(range(len(trace.passages)), key=lambda i: (i != trace.chosen, *_order(trace.passages[i])))
        lines += [line for i in order for line in _passage(trace.passages[i], chosen=i == trace.chosen)]
    if trace.fallback:
        lines.append(f"no passage was judged relevant; fallback: {trace.fallback}")
    lines.append(f"answer: {trace.answer or '(none)'}")
    return "\n".join(lines)


def _order(passage: PassageTrace) -> tuple[float, float]:
    """Highest product first, then highest S_rel."""
    scores = passage.scores
    return (-product(scores) if scores else 1.0, -(passage.s_rel or 0.0))


def _passage(passage: PassageTrace, chosen: bool) -> list[str]:
    scores = passage.scores
    total = f"  product {product(scores):.3f}" if scores else ""
    verdict = "relevant" if passage.relevant else "irrelevant"
    told = f" → {passage.answer}" if passage.answer is not None else ""
    where = f"{passage.passage.title} – {passage.passage.heading}".rstrip("– ")
    return [
        f"{'*' if chosen else ' '} {verdict:<10} S_ret {_number(passage.s_ret)}  S_rel {_number(passage.s_rel)}  "
        f"S_ans {_number(passage.s_ans)}{total}{told}",
        textwrap.indent(textwrap.shorten(f"{where}: {passage.passage.text}", 160, placeholder=" …"), " " * 4),
    ]


def _number(value: float | None) -> str:
    return "  –  " if value is None else f"{value:.3f}"

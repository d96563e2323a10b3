"""Labels the paragraphs of some questions' articles with each annotator, and writes the comparison."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from pathlib import Path

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.data_builders.agreement import measures
from reflectune.data_builders.agreement.config import CompareConfig
from reflectune.data_builders.annotators.choice import opened
from reflectune.data_builders.annotators.llm import LlmAnnotator
from reflectune.data_builders.annotators.protocol import Case, Judgement
from reflectune.data_builders.annotators.string import by_gold
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages


def run(config: CompareConfig) -> None:
    """Label, write `labels.jsonl` and `agreement.md`, and print the tables."""
    cases = all_cases(Dataset(Path(config.dataset)), config.split, config.limit, config.seed)
    questions = len({question.id for question, _ in cases})
    heading = f"{len(cases):,} paragraphs of {questions:,} questions of {config.split} of {config.dataset}"
    if config.dry_run:
        print(f"{heading}, to be labelled by {', '.join(config.annotators)}")
        return
    output = Path(config.output)
    with ExitStack() as stack:
        annotators = {
            name: stack.enter_context(opened(name, config, output / "llm_replies.jsonl")) for name in config.annotators
        }
        judgements = {name: annotate(cases) for name, annotate in annotators.items()}
        model_summaries = [
            annotate.model.summary() for annotate in annotators.values() if isinstance(annotate, LlmAnnotator)
        ]
    labels = {name: [judgement.label for judgement in judged] for name, judged in judgements.items()}
    truth = [judgement.label for judgement in by_gold(cases)] if config.truth == "gold" else None
    page = f"# Annotators\n\n{heading}.\n\n{measures.table(labels, truth)}\n"
    write_atomically(output / "labels.jsonl", _rows(cases, judgements))
    write_atomically(output / "agreement.md", page)
    print("\n".join([page, *model_summaries]))


def all_cases(dataset: Dataset, split: str, limit: int, seed: int) -> list[Case]:
    """Every paragraph of the articles of `limit` knowledge-based questions, drawn by seed, whose entities have one.

    Raises:
        UserError: There is none.
    """
    named = (q for q in dataset.stream(split) if q.is_knowledge_based and q.entity_ids)
    questions = [q for q in named if all(entry_id in dataset.knowledge for entry_id in q.entity_ids)]
    if len(questions) > limit:
        questions = random.Random(seed).sample(questions, limit)
    cases = [
        (question, passage)
        for question in questions
        for entry_id in question.entity_ids
        for passage in split_passages(dataset.knowledge.get(entry_id))
    ]
    if not cases:
        raise UserError(f"split {split} of {dataset.root} has no knowledge-based question whose entity has an article")
    return cases


def _rows(cases: list[Case], judgements: dict[str, list[Judgement]]) -> str:
    """One line a case: the question, the passage, and what each annotator says of it."""
    lines = []
    for position, (question, passage) in enumerate(cases):
        said = {
            name: {"label": judged[position].label, "answer": judged[position].answer, "note": judged[position].note}
            for name, judged in judgements.items()
        }
        row = {"question": question.id, "passage": passage.id, "text": passage.text, **said}
        lines.append(json.dumps(row, ensure_ascii=False))
    return "\n".join(lines) + "\n"

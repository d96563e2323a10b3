"""How often a reranker puts the right passage first, in a miniature world.

    python -m reflectune.examples.miniature.build_world --config configs/examples/miniature/world.yaml \
        --output runs/rerankers/world
    python benchmarks/rerankers.py --dataset runs/rerankers/world --output benchmarks/rerankers.md

Every knowledge-based question of one hop is asked twice: among the passages of the article that answers it, and among
those of the five articles that `miniature/clip` finds, if that one is among them. *Right fact*: the first passage tells
of what is asked, of whichever thing; no text says which of them the picture shows. *Right passage*: of the right thing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from reflectune.core.images import load_image
from reflectune.core.types import Passage, Question
from reflectune.examples.miniature.world.facts import RELATIONS
from reflectune.formats.dataset import Dataset, splits
from reflectune.formats.passages import split_passages
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.rerankers.loading import load_reranker
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever

ARTICLES = 5

TEXT = """# Rerankers

`python benchmarks/rerankers.py --dataset runs/rerankers/world`, on what
`python -m reflectune.examples.miniature.build_world --config configs/examples/miniature/world.yaml --output
runs/rerankers/world`
draws.

Each knowledge-based question of one hop of the default world (seed 0), among the passages of the article that answers
it, and among those of the five articles that `miniature/clip` finds, where that one is among them. *Right fact*: the
first passage tells of what is asked, of whichever thing. *Right passage*: of the thing in the picture, which no text
tells from one that looks nearly like it, so that no reranker of texts can be much better than the number of articles
that tell of it allows.

{table}

`miniature/text` was pre-trained by `python -m reflectune.examples.miniature.pretrain --family text --output DIR`, on
entities invented on the spot, in phrasings that training may use; its log lies beside its weights.
"""
HEAD = ["| questions | among | n | reranker | right fact first | right passage first |", "|---|---|---|---|---|---|"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="a world that build_world wrote")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dataset = Dataset(Path(arguments.dataset))
    rerankers = [load_reranker("words"), load_reranker("embedding", "miniature/text")]
    lines = list(HEAD)
    for phrasing in ("held_out", "seen"):
        questions = one_hop(dataset, phrasing)
        one = [passages_of(dataset, [question.entity_ids[0]]) for question in questions]
        lines += rows(f"{phrasing} phrasings", "its article", rerankers, questions, one)
        retrieved = zip(questions, retrieve(dataset, questions), strict=True)
        kept = [(question, ids) for question, ids in retrieved if question.entity_ids[0] in ids]
        with_gold, five = [question for question, _ in kept], [passages_of(dataset, ids) for _, ids in kept]
        lines += rows(f"{phrasing} phrasings", f"{ARTICLES} retrieved", rerankers, with_gold, five)
    page = TEXT.format(table="\n".join(lines))
    print(page)
    if arguments.output:
        arguments.output.write_text(page, encoding="utf-8")


def one_hop(dataset: Dataset, phrasing: str) -> list[Question]:
    """The knowledge-based questions of one hop that are asked in words of this kind."""
    questions = [question for split in splits(dataset.root) for question in dataset.questions(split)]
    return [
        question
        for question in questions
        if question.requires_retrieval and not question.meta.get("two_hop") and question.meta["phrasing"] == phrasing
    ]


def passages_of(dataset: Dataset, entry_ids: Sequence[str]) -> list[Passage]:
    """The passages of some entries, as pipelines read them."""
    entries = [dataset.knowledge.get(entry_id) for entry_id in entry_ids]
    return [passage for entry in entries for passage in split_passages(entry, lead="first_sentence")]


def retrieve(dataset: Dataset, questions: Sequence[Question]) -> list[list[str]]:
    """The entries that `miniature/clip` finds for each question's picture, best first."""
    encoder = load_encoder("miniature/clip")
    with tempfile.TemporaryDirectory() as folder:
        retriever = EntryRetriever(build_index(dataset.knowledge, encoder, folder), encoder)
    hits = retriever.search([load_image(question.image, root=dataset.root) for question in questions], ARTICLES)
    return [[hit.entry_id for hit in one] for one in hits]


def rows(
    phrasing: str,
    among: str,
    rerankers: Sequence[Reranker],
    questions: Sequence[Question],
    choices: list[list[Passage]],
) -> list[str]:
    """A row of the table for each reranker."""
    lines = []
    for reranker in rerankers:
        ranked = reranker.rank([question.text for question in questions], choices, top_k=1)
        firsts = [one[0].passage for one in ranked]
        fact = sum(tells(passage, question) for passage, question in zip(firsts, questions, strict=True))
        right = sum(is_evidence(passage, question) for passage, question in zip(firsts, questions, strict=True))
        shares = " | ".join(f"{100 * count / len(questions):.1f} %" for count in (fact, right))
        lines.append(f"| {phrasing} | {among} | {len(questions):,} | {reranker.name} | {shares} |")
    return lines


def is_evidence(passage: Passage, question: Question) -> bool:
    """Whether the world says that the question is answered there."""
    return any((one.entry_id, one.section) == (passage.entry_id, passage.section) for one in question.evidence)


def tells(passage: Passage, question: Question) -> bool:
    """Whether the passage tells of what is asked, of the right thing or of another."""
    return is_evidence(passage, question) or passage.heading == RELATIONS[question.meta["relation"]].heading


if __name__ == "__main__":
    main()

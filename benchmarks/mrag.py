"""mRAG's design space on a miniature world: modalities, rerankers, documents, the agent, and where gold stands.

    bash scripts/quickstart.sh
    python benchmarks/mrag.py --dataset runs/quickstart/world --index runs/quickstart/index --output benchmarks/mrag.md

The position study gives each question five whole articles, its own at every place in turn and the four that its picture
finds most readily besides, in their order. Both prompts are tried: mRAG's (its figure 8, documents first) and the one
of naive RAG here (documents behind the question), on which the miniature was trained.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from reflectune.core.images import load_image
from reflectune.core.types import Passage, Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages
from reflectune.inference.config import AgentFallback
from reflectune.inference.operators.models import LocalModel
from reflectune.inference.operators.reranking import UNREAD
from reflectune.inference.operators.searching import EntryDocuments
from reflectune.inference.operators.trajectory import Tools, TrajectoryPipeline, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, write
from reflectune.inference.pipelines.mrag import CAPTION, DocumentStages, Mrag, generate
from reflectune.inference.pipelines.mrag_agent import FAILS, MragAgent
from reflectune.inference.reading.reader import Reader
from reflectune.inference.scoring.scores import Measure, mean
from reflectune.inference.trace import Trace
from reflectune.metrics.reporting.intervals import paired_bootstrap
from reflectune.metrics.reporting.retrieval import article_recall_at_k, reciprocal_rank
from reflectune.models.loading import load
from reflectune.models.prefix.engine import PrefixEngine
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.entry_index import load_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query, modality_weights
from reflectune.retrieval.retrievers.two_stage import article_of

DEPTH, NEW_TOKENS, BATCH, SEED = 5, 16, 8, 0
SPLITS = ("val_unseen_question", "val_unseen_entity")
PROMPTS = ("naive RAG's", "mRAG's")
WAYS: Mapping[str, tuple[Any, Any]] = {
    "none": ("none", "all"),
    "pointwise": ("pointwise", "all"),
    "pairwise, `pairs: all`": ("pairwise", "all"),
    "pairwise, `pairs: both_orders`": ("pairwise", "both_orders"),
    "pairwise, `pairs: adjacent`": ("pairwise", "adjacent"),
    "listwise": ("listwise", "all"),
}

TEXT = """# mRAG's design space

`python benchmarks/mrag.py --dataset runs/quickstart/world --index runs/quickstart/index`, after
`bash scripts/quickstart.sh`; {model}, not fine-tuned, {n} knowledge-based questions of one hop of the two validation
splits, drawn by seed {seed}. Miniature numbers, not to be set beside the paper's. In %, with bootstrap intervals of
95 % by question.

## Where the right document stands

{placed} such questions, each with five whole articles: the right one at each place in turn, the others the four that
the picture finds most readily besides, in their order.

{positions}

{verdict}

## What is searched with, and what is searched

Recall of the right entry among the first 1 and 5 by `miniature/clip`. Captions are the base's own, by the paper's
prompt; it was never trained to write any.

{modalities}

## Reranking the first five, and answering from the first

By the base itself, by mRAG's prompts. *Unread*: replies of which no order could be read, of those asked for; each left
its documents as they were. Recall@5 is {recall}, the most that recall@1 can become.

{rerankers}

## Answering from more documents, and the agent

By mRAG's prompts, without reranking. *No answer*: questions at the end of which no document had an answer that the
model held to be valid.

{generation}
"""


@dataclass(frozen=True)
class Bench:
    """What everything here is measured with."""

    dataset: Dataset
    questions: list[Question]
    engine: PrefixEngine
    retriever: EntryRetriever
    measure: Measure

    def images(self, questions: Sequence[Question]) -> list[Any]:
        """Their pictures."""
        return [load_image(question.image, root=self.dataset.root) for question in questions]

    def batches(self) -> list[list[Question]]:
        """The questions in batches."""
        return [self.questions[start : start + BATCH] for start in range(0, len(self.questions), BATCH)]

    def run(
        self, start: Callable[[Question], Steps[TrajectoryResult]], modality: Any = "I", target: Any = "IT"
    ) -> list[Trace]:
        """Traces of a trajectory, one a question."""
        weights = modality_weights(modality, target)
        documents = EntryDocuments(self.retriever, self.dataset.knowledge, weights)
        model = LocalModel(self.engine, 64)
        tools = Tools({"reader": model, "answerer": model}, documents.search)
        pipeline = TrajectoryPipeline("mrag", start, tools)
        return [trace for batch in self.batches() for trace in pipeline.run(batch, self.images(batch))]

    def worth(self, answers: Sequence[str]) -> list[float]:
        """What the answers to the questions are worth, in order."""
        return [self.measure.worth(answer, q) for answer, q in zip(answers, self.questions, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="a world that build_world wrote")
    parser.add_argument("--index", required=True, help="its index by miniature/clip")
    parser.add_argument("--model", default="miniature/llava", help="the model that reranks and answers")
    parser.add_argument("--questions", type=int, default=120, help="how many, drawn from both validation splits")
    parser.add_argument("--placed", type=int, default=300, help="how many the position study asks")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dataset, encoder = Dataset(Path(arguments.dataset)), load_encoder("miniature/clip")
    retriever = EntryRetriever(load_index(arguments.index, dataset.knowledge, encoder), encoder)
    engine = PrefixEngine(load(arguments.model))
    questions = sample(dataset, arguments.questions)
    bench = Bench(dataset, questions, engine, retriever, Measure("infoseek"))
    placed = sample(dataset, arguments.placed)
    scores = positions(dataclasses.replace(bench, questions=placed))
    rerankers, recall = reranked(bench)
    page = TEXT.format(
        model=f"`{arguments.model}`",
        n=len(questions),
        placed=len(placed),
        seed=SEED,
        positions="\n".join(position_lines(scores)),
        verdict="\n\n".join(verdict(name, scores[name]) for name in PROMPTS),
        modalities="\n".join(modalities(bench)),
        rerankers="\n".join(rerankers),
        recall=recall,
        generation="\n".join(generated(bench)),
    )
    print(page)
    if arguments.output:
        arguments.output.write_text(page, encoding="utf-8")


def sample(dataset: Dataset, count: int) -> list[Question]:
    """Knowledge-based questions of one hop whose article is in the knowledge base."""
    questions = [
        question
        for split in SPLITS
        for question in dataset.questions(split)
        if question.requires_retrieval and question.entity_ids and not question.meta.get("two_hop")
    ]
    return random.Random(SEED).sample(questions, min(count, len(questions)))


# Where the right document stands.


def positions(bench: Bench) -> dict[str, dict[str, list[float]]]:
    """What answers are worth: by prompt, and by where the right article stands, `alone` and `left out` included."""
    found = bench.retriever.search(bench.images(bench.questions), DEPTH + 1)
    contexts: dict[str, dict[str, list[str]]] = {}
    for question, hits in zip(bench.questions, found, strict=True):
        gold = question.entity_ids[0]
        others = [hit.entry_id for hit in hits if hit.entry_id != gold]
        at = {str(place + 1): [*others[:place], gold, *others[place : DEPTH - 1]] for place in range(DEPTH)}
        contexts[question.id] = {"alone": [gold], **at, "left out": others[:DEPTH]}
    cases = list(next(iter(contexts.values())))
    read = {PROMPTS[0]: by_naive_prompt, PROMPTS[1]: by_paper_prompt}
    return {
        name: {case: bench.worth(read[name](bench, {q: c[case] for q, c in contexts.items()})) for case in cases}
        for name in PROMPTS
    }


def by_naive_prompt(bench: Bench, contexts: Mapping[str, Sequence[str]]) -> list[str]:
    """Answers from whole articles as `naive_rag` shows them: behind the question, paragraph by paragraph."""
    reader, answers = Reader(bench.engine, NEW_TOKENS), list[str]()
    for batch in bench.batches():
        passages = [
            [
                p
                for name in contexts[q.id]
                for p in split_passages(bench.dataset.knowledge.get(name), lead="first_sentence")
            ]
            for q in batch
        ]
        answers += [answer.text for answer in reader.answer_plainly(batch, bench.images(batch), passages)]
    return answers


def by_paper_prompt(bench: Bench, contexts: Mapping[str, Sequence[str]]) -> list[str]:
    """Answers from whole articles by mRAG's generation prompt."""

    def start(question: Question) -> Steps[TrajectoryResult]:
        entries = [bench.dataset.knowledge.get(name) for name in contexts[question.id]]
        articles: list[Passage] = [a for entry in entries if (a := article_of(entry, lead="first_sentence"))]
        reply = yield from generate(0, question, articles, NEW_TOKENS)
        return TrajectoryResult(reply.text, "answered")

    return [trace.answer for trace in bench.run(start)]


def position_lines(scores: Mapping[str, Mapping[str, list[float]]]) -> list[str]:
    """A row for each prompt."""
    cases = list(scores[PROMPTS[0]])
    heads = [f"at {case}" if case.isdigit() else case for case in cases]
    lines = ["| prompt | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    return lines + [f"| {name} | " + " | ".join(cell(scores[name][case]) for case in cases) + " |" for name in PROMPTS]


def verdict(name: str, scores: Mapping[str, list[float]]) -> str:
    """Whether the right document is lost in the middle or read best at the beginning, from paired differences."""
    places = [scores[str(place + 1)] for place in range(DEPTH)]
    ends, middle = np.mean([places[0], places[-1]], axis=0), np.mean(places[1:-1], axis=0)
    lost, first = less(ends, middle), less(places[0], np.mean(places[1:], axis=0))
    last, gold = less(places[-1], np.mean(places[:-1], axis=0)), less(scores["alone"], np.mean(places, axis=0))
    read = less(np.mean(places, axis=0), scores["left out"])
    if read.low <= 0:
        found = "it makes no use of the right document wherever it stands, so that nothing can be said of places"
    elif lost.low > 0:
        found = "it is lost in the middle"
    elif first.low > 0 or last.low > 0:
        found = f"it is read best at the {'beginning' if first.low > 0 else 'end'}, and not lost in the middle"
    elif first.high < 0 or last.high < 0:
        found = f"it is read worst at the {'beginning' if first.high < 0 else 'end'}, and not lost in the middle"
    else:
        found = "it is neither lost in the middle nor read better at either end"
    return (
        f"**By {name} prompt {found}.** Paired, in points: the two ends less the middle {points(lost)}; the first "
        f"place less the others {points(first)}; the last less the others {points(last)}; alone less among five "
        f"{points(gold)}; among five less left out {points(read)}."
    )


# The stages.


def modalities(bench: Bench) -> list[str]:
    """Recall by what is searched with and what is searched."""

    def describe(question: Question) -> Steps[TrajectoryResult]:
        reply = yield from write("caption", 0, CAPTION, {"question": question.text}, max_tokens=32)
        return TrajectoryResult(reply.text, "described")

    captions = [trace.answer for trace in bench.run(describe)]
    texts: dict[Any, list[str]] = {"I": [""] * len(captions), "IQ": [q.text for q in bench.questions]}
    texts |= {"IC": captions, "C": [c or q.text for c, q in zip(captions, bench.questions, strict=True)]}
    targets: dict[Any, str] = {"I": "images", "IT": "images and titles", "T": "titles"}
    images = bench.images(bench.questions)
    lines = ["| query | " + " | ".join(targets.values()) + " |", "|---|---|---|---|"]
    for modality, told in texts.items():
        queries = [Query(image, text) for image, text in zip(images, told, strict=True)]
        cells = []
        for target in targets:
            hits = bench.retriever.search_queries(queries, DEPTH, weights=modality_weights(modality, target))
            ids = [[hit.entry_id for hit in row] for row in hits]
            recalls = [
                [article_recall_at_k(r, q.entity_ids[:1], k) for r, q in zip(ids, bench.questions, strict=True)]
                for k in (1, DEPTH)
            ]
            cells.append(" · ".join(cell(values) for values in recalls))
        lines.append(f"| {modality} | " + " | ".join(cells) + " |")
    return lines


def reranked(bench: Bench) -> tuple[list[str], str]:
    """A row for each way of reranking, and recall@5."""
    lines = ["| reranking | recall@1 | MRR | unread | right answers from the first |", "|---|---|---|---|---|"]
    recall = ""
    for name, (how, pairs) in WAYS.items():
        traces = bench.run(Mrag(DocumentStages("I", DEPTH, how, pairs), 1, NEW_TOKENS))
        ids = [[read.passage.entry_id for read in trace.passages] for trace in traces]
        golds = [question.entity_ids[:1] for question in bench.questions]
        first, all_five = (
            [article_recall_at_k(row, gold, k) for row, gold in zip(ids, golds, strict=True)] for k in (1, DEPTH)
        )
        ranks = [reciprocal_rank(row, gold) for row, gold in zip(ids, golds, strict=True)]
        asked = sum(step.operator == "rerank" for trace in traces for step in trace.steps)
        unread = f"{sum(trace.tokens[UNREAD] for trace in traces)} of {asked}" if asked else "–"
        right = bench.worth([trace.answer for trace in traces])
        lines.append(f"| {name} | {cell(first)} | {cell(ranks)} | {unread} | {cell(right)} |")
        recall = cell(all_five)
    return lines, recall


def generated(bench: Bench) -> list[str]:
    """A row for each number of documents, and for the agent."""
    stages = DocumentStages("I", DEPTH, "none")
    ways: dict[str, Any] = {
        f"`mrag`, `answer_documents: {n}`": Mrag(stages, n, NEW_TOKENS) for n in range(1, DEPTH + 1)
    }
    ways |= {
        f"`mrag_agent`, `agent_fallback: {fallback}`": MragAgent(stages, NEW_TOKENS, fallback)
        for fallback in get_args(AgentFallback)
    }
    lines = ["| pipeline | right answers | less one document's, paired | no answer |", "|---|---|---|---|"]
    one: list[float] = []
    for name, way in ways.items():
        traces = bench.run(way)
        right = bench.worth([trace.answer for trace in traces])
        one = one or right
        failed = f"{sum(trace.ended == FAILS for trace in traces)} of {len(traces)}" if "agent" in name else "–"
        lines.append(f"| {name} | {cell(right)} | {'–' if right is one else points(less(right, one))} | {failed} |")
    return lines


def cell(values: Sequence[float]) -> str:
    """A mean with its interval."""
    score = mean(values, SEED)
    if score is None:
        return "–"
    return f"{100 * score['value']:.1f} ({100 * score['low']:.1f} to {100 * score['high']:.1f})"


def less(one: Any, other: Any) -> Any:
    """The paired difference of two lists of values, with its interval."""
    return paired_bootstrap(one, other, seed=SEED)


def points(difference: Any) -> str:
    """A difference in points, with its interval."""
    return f"{100 * difference.value:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


if __name__ == "__main__":
    main()

"""MI-RAG (arXiv 2509.00798, algorithm 1): search, reason and search again N times; answer from all records.

Iteration 0 searches with the question and a description of the image. Each further one searches with the question and
the last reasoning record (query expansion) and with two follow-up questions written from all records, in a text and a
multimodal knowledge base, and writes a record of the new information. The answer is read from the records alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from reflectune.core.config import cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.types import Passage, Question
from reflectune.inference.operators.budget import BudgetSpent
from reflectune.inference.operators.pair_images import PairImageSettings, images_of
from reflectune.inference.operators.query_reply import read_queries
from reflectune.inference.operators.requests import SearchReply, WriteReply
from reflectune.inference.operators.searching import SearchSettings
from reflectune.inference.operators.trajectory import Trajectory, TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, merge, search, sizes_of, texts_of, write
from reflectune.inference.pipelines.extraction import ExtractionSettings, Shorten, sample_shots, shortener
from reflectune.inference.pipelines.iterative import (
    Budgets,
    PairSettings,
    TrajectorySettings,
    answer_instruction,
    expand,
    iterative_recipe,
    searchable_budgets,
    split,
)
from reflectune.inference.pipelines.noise import NoiseSettings, drawn_passages, with_noise
from reflectune.inference.pipelines.recipe import PipelineParts
from reflectune.inference.pipelines.relevance_gate import (
    SUPPORTED,
    Judged,
    RelevanceGateSettings,
    is_evidence,
    relevant,
)
from reflectune.inference.pipelines.requirements import ANY_INDEX, OPTIONAL_TEXTS
from reflectune.models.schemes.reflectiva import SCHEME as REFLECTIVA

DESCRIBE = "Question: {question}\n Concisely describe image which is relevant to question.\n"
FOLLOW_UP = """\
Question: {question}
Knowledge: {documents}

Please first analyze all the information in a section named Analysis (## Analysis).
Generate two follow-up questions to search for additional information and helpful to confirm knowledge, in a section \
named Queries (## Queries).
Your output should be in the following format:

## Analysis
Analysis question and knowledge to ask context-specific queries that helps to address question.
## Queries
Question 1: question 1.
Question 2: question 2.
"""
_FOLLOW_UPS = 2
"""Number of queries that `FOLLOW_UP` requests; further ones are ignored."""
REASON = """\
Question: {question}
Knowledge: {documents}

Based on image, description and knowledge, summarize correct and relevant information with image and question.
"""
ANSWER = """\
Please answer the following question using the provided information and image.

Question: {question}
Relevant Knowledge: {documents}

"""
"""The prompts of the paper's figure A11. `answer_instruction` is appended to `ANSWER`."""
REASON_TEXTS = REASON.replace("image, description and knowledge", "knowledge").replace("image and question", "question")
ANSWER_TEXTS = ANSWER.replace("information and image", "information")
"""The same for a question without an image."""
REPEATS = "queries repeat"
"""End of a trajectory whose queries repeat (PMSR)."""


class DetailedSettings(ExtractionSettings, TrajectorySettings):
    """Settings of a detailed answer and its extraction."""

    detailed_answer: bool = setting(
        False, "MI-RAG, PMSR: ask for a detailed answer, as in the papers; else for a short one, as all pipelines do"
    )

    @property
    def answer_tokens(self) -> int:
        """Maximum number of tokens of a trajectory's answer."""
        return max(self.max_new_tokens, self.max_record_tokens) if self.detailed_answer else self.max_new_tokens

    @cross_check
    def extraction_problems(self) -> Iterator[str]:
        """Yield the problem of a missing detailed answer to shorten."""
        if self.extract_answer and not self.detailed_answer:
            yield "`extract_answer` shortens a detailed answer: set `detailed_answer: true`, or leave it out"


class RecordSettings(
    RelevanceGateSettings, NoiseSettings, PairImageSettings, PairSettings, SearchSettings, DetailedSettings
):
    """Settings of pipelines that write reasoning records."""

    iterations: int = setting(4, "MI-RAG, PMSR: maximum number of searches after the first", ge=0)
    text_passages: int = setting(20, "MI-RAG, PMSR: passages of an iteration from the text index", ge=0)
    answer_each: bool = setting(
        False, "MI-RAG, PMSR: answer after every iteration, from the records so far, to score each of them"
    )

    answer_form: Literal["paper", "reflectiva"] = setting(
        "paper", "MI-RAG, PMSR: prompt of the answer: the paper's, or the one of ReflectiVA's training data"
    )

    def budgets(self, parts: PipelineParts) -> Budgets:
        """Return the maximum number of passages of an iteration, by knowledge base.

        Raises:
            UserError: No knowledge base would be searched.
        """
        most = {
            "texts": self.text_passages if parts.texts is not None else 0,
            "pairs": self.pair_passages if parts.retriever is not None else 0,
        }
        if budgets := {base: number for base, number in most.items() if number}:
            return budgets
        raise UserError(
            "MI-RAG and PMSR would search nothing: set `text_passages` above 0 and give a `text_index`, or "
            "`pair_passages` and an `index`"
        )

    @cross_check
    def form_problems(self) -> Iterator[str]:
        """Yield the problem of a detailed answer by a prompt for a short one."""
        if self.answer_form == "reflectiva" and self.detailed_answer:
            yield "`answer_form: reflectiva` asks for a short answer: leave out `detailed_answer`"


class MiRagSettings(RecordSettings):
    """Settings of MI-RAG."""

    query_sources: Literal["both", "expansion", "generation"] = setting(
        "both", "MI-RAG: queries of an iteration: the expanded one, the generated ones, or both"
    )


Retrieved = tuple[SearchReply, list[Passage]]
"""The results of a search, and the passages among them to read."""


@dataclass
class Findings:
    """Findings of a trajectory so far.

    Attributes:
        records: Reasoning records, in order, without empty ones.
        passages: Passages that records were written from, by id.
        judged: Judgements of passages by the relevance gate.
    """

    records: list[str] = field(default_factory=list)
    passages: dict[str, Passage] = field(default_factory=dict)
    judged: Judged = field(default_factory=dict)


@dataclass(frozen=True)
class RecordTrajectory(ABC):
    """A trajectory of one question that searches, writes records, and answers from them.

    Attributes:
        settings: The settings; `iterations` is N, 4 in the papers.
        budgets: Maximum passages of an iteration, by knowledge base.
        shorten: Shortens each answer.
    """

    settings: RecordSettings
    budgets: Budgets
    shorten: Shorten | None = None

    def __call__(self, question: Question) -> Steps[TrajectoryResult]:
        """Generate the steps."""
        self.settings.check_image(question)
        findings = Findings()
        ended = f"after {self.settings.iterations} iterations"
        answer: WriteReply | None = None
        with contextlib.suppress(BudgetSpent):
            ended, answer = yield from self._progress(question, findings, ended)
        answer = answer or (yield from self._answer(question, max(len(findings.records) - 1, 0), findings))
        passages = tuple(findings.passages.values())
        used: tuple[int, ...] = ()
        if findings.judged:
            passages = tuple(findings.judged)
            used = tuple(k for k, it in enumerate(passages) if it == findings.passages.get(it.id))
        return TrajectoryResult(
            answer.text,
            ended,
            answer.score,
            passages,
            used=used,
            records=tuple(findings.records),
            judged=findings.judged,
        )

    def _progress(self, question: Question, findings: Findings, ended: str) -> Steps[tuple[str, WriteReply | None]]:
        """Search and reason, and add each iteration's results to the findings.

        Findings stay if a budget ends the trajectory. An empty record is left out: the next query is expanded by the
        record before it.

        Returns:
            Reason for the end (`ended` after all iterations), and the latest answer if every iteration has one.
        """
        records, answer = findings.records, None
        queries, description = yield from self._first(question)
        earlier = [*queries]
        for iteration in range(self.settings.iterations + 1):
            if iteration:
                queries = yield from self._next(iteration, question, records or description or [""])
                if (yield from self._repeats(iteration, question, queries, earlier)):
                    return REPEATS, answer
            found, passages = yield from self._retrieve(iteration, question, queries)
            passages = yield from relevant(iteration, question, passages, findings.judged, self.settings.gate_filter)
            findings.passages |= {passage.id: passage for passage in passages}
            opening = [] if iteration else description
            images = images_of(found, passages, self.settings.pair_images)
            shifted = {len(opening) + position: path for position, path in images.items()}
            documents, sizes = [*opening, *texts_of(passages)], [len(opening), *sizes_of(found, passages)]
            record = yield from self._reason(iteration, question, documents, shifted, sizes)
            records += [record] if record.strip() else []
            if self.settings.answer_each:
                answer = yield from self._answer(question, iteration, findings)
            is_last = iteration == self.settings.iterations
            if (yield from is_evidence(iteration, question, record, 0 if is_last else self.settings.gate_stop)):
                return SUPPORTED, answer
        return ended, answer

    def _first(self, question: Question) -> Steps[tuple[list[str], list[str]]]:
        """Return the first query, [Q; description], and the image's description; the question if it has no image."""
        if not question.image:
            return [question.text], []
        slots = {"question": question.text}
        described = yield from write(
            "caption", 0, DESCRIBE, slots, max_tokens=self.settings.max_record_tokens, form="text"
        )
        return [expand(question.text, described.text)], [described.text]

    @abstractmethod
    def _next(self, iteration: int, question: Question, records: Sequence[str]) -> Steps[list[str]]:
        """Write the queries of a further iteration from the records, at least one."""

    def _repeats(self, iteration: int, question: Question, queries: Sequence[str], earlier: list[str]) -> Steps[bool]:
        """Return True if queries repeat `earlier` ones, and add them to those. MI-RAG never stops on repetition."""
        yield from ()
        return False

    def _retrieve(self, iteration: int, question: Question, queries: Sequence[str]) -> Steps[Retrieved]:
        """Search with queries, each with its share of the budget."""
        tops = split(searchable_budgets(question, self.budgets), self._shares(queries))
        found = yield from search(iteration, queries, tops)
        return found, merge(found)

    def _shares(self, queries: Sequence[str]) -> list[int]:
        """Return the queries' shares of the budget."""
        return [1] * len(queries)

    def _generate(
        self, iteration: int, template: str, question: Question, records: Sequence[str], max_queries: int
    ) -> Steps[list[str]]:
        """Generate at most `max_queries` queries from all records."""
        slots, longest = {"question": question.text}, self.settings.max_record_tokens
        reply = yield from write(
            "rewrite", iteration, template, slots, documents=records, max_tokens=longest, form="queries"
        )
        return [*read_queries(reply.text, max_queries)]

    def _reason(
        self,
        iteration: int,
        question: Question,
        documents: Sequence[str],
        images: Mapping[int, str],
        sizes: Sequence[int],
    ) -> Steps[str]:
        """Reason over the results: write a record of the new information."""
        template = REASON if question.image else REASON_TEXTS
        slots, longest = {"question": question.text}, self.settings.max_record_tokens
        reply = yield from write(
            "reason",
            iteration,
            template,
            slots,
            documents=documents,
            max_tokens=longest,
            form="text",
            images=images,
            sizes=sizes,
        )
        return reply.text

    def _answer(self, question: Question, iteration: int, findings: Findings) -> Steps[WriteReply]:
        """Answer, and shorten the answer. If the short one can't be parsed, the detailed one is returned."""
        answer = yield from self._answer_in_detail(question, iteration, findings)
        if self.shorten is None:
            return answer
        return (yield from self.shorten(question, iteration, answer.text, findings.records)) or answer

    def _answer_in_detail(self, question: Question, iteration: int, findings: Findings) -> Steps[WriteReply]:
        """Answer from the records, or from the passages if there are none."""
        template = (ANSWER if question.image else ANSWER_TEXTS) + answer_instruction(
            question, detailed=self.settings.detailed_answer
        )
        earlier: list[tuple[str, str]] = []
        if is_reflectiva := self.settings.answer_form == "reflectiva":
            template = REFLECTIVA.prompts["answer"].replace("{passage}", "{documents}")
            earlier = [("{question}", REFLECTIVA.tokens["retrieve"])]
        reply = yield from write(
            "answer",
            iteration,
            template,
            {"question": question.text},
            documents=findings.records or texts_of([*findings.passages.values()]),
            max_tokens=self.settings.answer_tokens,
            model="answerer",
            earlier=earlier,
        )
        return dataclasses.replace(reply, text=REFLECTIVA.strip(reply.text)) if is_reflectiva else reply


@dataclass(frozen=True)
class MiRag(RecordTrajectory):
    """MI-RAG's trajectory of one question."""

    settings: MiRagSettings

    def _next(self, iteration: int, question: Question, records: Sequence[str]) -> Steps[list[str]]:
        expansion = [expand(question.text, records[-1])]
        if self.settings.query_sources == "expansion":
            return expansion
        generation = yield from self._generate(iteration, FOLLOW_UP, question, records, _FOLLOW_UPS)
        if self.settings.query_sources == "generation":
            return generation or expansion
        return [*expansion, *generation]

    def _shares(self, queries: Sequence[str]) -> list[int]:
        """Return half of the budget for the expanded query, and the other half for the generated ones."""
        if self.settings.query_sources == "generation":
            return [1] * len(queries)
        return [len(queries) - 1 or 1, *(1 for _ in queries[1:])]


Kind = TypeVar("Kind", bound=RecordSettings)


def with_options(
    make: Callable[[Kind, PipelineParts], RecordTrajectory],
) -> Callable[[Kind, PipelineParts], Trajectory]:
    """Add the options of `RecordSettings`: irrelevant passages among the records, a step that extracts an answer."""

    def made(settings: Kind, parts: PipelineParts) -> Trajectory:
        trajectory = dataclasses.replace(make(settings, parts), shorten=shorten_by(settings, parts))
        if not settings.noise:
            return trajectory
        drawn = drawn_passages(parts.knowledge, settings.noise, settings.lead)
        return with_noise(trajectory, drawn)

    return made


def shorten_by(settings: DetailedSettings, parts: PipelineParts) -> Shorten | None:
    """Return the step that shortens a detailed answer; None without `extract_answer`."""
    if not settings.extract_answer:
        return None
    shots = sample_shots(parts.folder, settings.extract_split, parts.knowledge, settings.lead)
    return shortener(shots, settings.max_new_tokens)


RECIPES = iterative_recipe(
    "mi_rag",
    "MI-RAG",
    MiRagSettings,
    with_options(lambda settings, parts: MiRag(settings, settings.budgets(parts))),
    requires=(ANY_INDEX, OPTIONAL_TEXTS),
    pair_text="section",
    has_own_depth=True,
)

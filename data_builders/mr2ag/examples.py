"""Select positive and negative passages for each mR²AG-IT question (§3.3). Pure functions; I/O is in `run.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from reflectune.core.config import Settings, setting
from reflectune.core.types import Passage, Question
from reflectune.core.values import Seed
from reflectune.data_builders.annotators.protocol import Annotation
from reflectune.data_builders.annotators.string import canonical_answer, is_yes_or_no, stated_answer, states_a_part
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import Branch, ReflectionExample

Item = TypeVar("Item")

StringFilter = Literal["strict", "strict_parts", "negatives", "off"]


class PassageSettings(Settings):
    """Number of passages of each source, and the filter of their labels.

    "Strict string searches …, ensuring answers appear only in evidence paragraphs" (section 3.3). `strict`: evidence
    must contain an accepted answer, and no negative may, including its title and lead. `strict_parts`: nor may a
    negative contain an item of a list of answers. `negatives`: evidence need not contain an answer, since a paragraph
    can support it in other words. `off`: the annotator alone decides.
    """

    string_filter: StringFilter = setting(
        "strict", "labels that string search rejects: strict, strict_parts, negatives or off; see PassageSettings"
    )
    positives: int = setting(1, "maximum evidence passages per question", ge=1)
    negatives_same_article: int = setting(2, "other passages of the question's article", ge=0)
    negatives_retrieved: int = setting(2, "hard negatives: passages of the best-ranked other entries", ge=0)
    negatives_random: int = setting(1, "passages of random entries", ge=0)
    seed: Seed = setting(0, "seed of every draw")


@dataclass(frozen=True)
class ExampleResult:
    """A question's example, or the reason why it has none.

    Attributes:
        example: The training example, or None.
        reason: Reason why there is none.
        answer_elsewhere: Number of passages that the filter rejected as negatives: they contain an answer.
        without_answer: Number of passages that the filter rejected as evidence: they contain no answer.
        unclear: Number of passages that the annotator could not judge.
    """

    example: ReflectionExample | None
    reason: str = ""
    answer_elsewhere: int = 0
    without_answer: int = 0
    unclear: int = 0


NO_EVIDENCE = "no paragraph of the question's articles is evidence"
NO_ANSWER_IN_EVIDENCE = "the evidence contains no accepted answer (`string_filter: strict`)"
ALL_UNCLEAR = "the annotator can't judge which paragraph is evidence"
YES_OR_NO = (
    "the answer is yes or no, which no string search finds (`annotator: llm` with `string_filter: negatives` finds its "
    "evidence)"
)


def candidates(question: Question, article: Sequence[Passage]) -> list[Passage]:
    """Return the passages that an annotator judges: the known evidence sections, else the whole article."""
    sections = {(evidence.entry_id, evidence.section) for evidence in question.evidence}
    if not sections:
        return list(article)
    return [passage for passage in article if (passage.entry_id, passage.section) in sections]


def knowledge_example(
    question: Question,
    article: Sequence[Passage],
    judged: Sequence[tuple[Passage, Annotation]],
    ranked: Sequence[Sequence[Passage]],
    draw_article: Callable[[random.Random], Sequence[Passage]],
    settings: PassageSettings,
) -> ExampleResult:
    """Select the passages of a knowledge-based question.

    A passage is `[Relevant]` if the annotator found evidence in it, and a negative only if it did not. The string
    filter then rejects passages whose label would be wrong.

    Args:
        question: The question.
        article: Passages of the question's own entries.
        judged: Judgements of the `candidates`.
        ranked: Passages of each other entry that the retriever ranked high, best entry first.
        draw_article: Draws the passages of a random entry.
        settings: Number of passages of each source.
    """
    sampler = _PassageSampler(question, random.Random(f"{settings.seed}:{question.id}"), settings.string_filter)
    positives = sampler.positives(judged, settings.positives)
    if not positives:
        return sampler.result(None, sampler.why_none())
    headings = {branch.passage.heading for branch in positives}
    ranked = _same_heading_first(ranked, headings, sampler.rng)
    retrieved = sampler.negatives("retrieved", ranked, settings.negatives_retrieved)
    same_article = [sampler.shuffled(article)]
    branches = [
        *positives,
        *sampler.negatives("same_article", same_article, settings.negatives_same_article, per_article=len(article)),
        *(
            replace(branch, source="look_alike") if branch.passage.heading in headings else branch
            for branch in retrieved
        ),
        *sampler.random_negatives(draw_article, settings.negatives_random, headings),
    ]
    example = ReflectionExample(
        id=question.id,
        image=question.image,
        question=question.text,
        retrieve=True,
        branches=tuple(sampler.shuffled(branches)),
        style=question.answer_style,
        source=question.split,
    )
    return sampler.result(example)


def visual_example(question: Question) -> ReflectionExample:
    """Return a visual-dependent question's example: no retrieval, its first answer, and its follow-up questions."""
    return ReflectionExample(
        id=question.id,
        image=question.image,
        question=question.text,
        retrieve=False,
        answer=canonical_answer(question),
        style=question.answer_style,
        source=question.split,
        follow_ups=question.follow_ups,
    )


def question_problem(question: Question) -> str:
    """Return the problem that makes a question unfit for training, or ""."""
    if not question.text.strip():
        return "the question is empty"
    if not question.image.strip():
        return "the question has no image (`without_image: blank` gives such questions a black one)"
    if question.more_images:
        return "the question has several images, and training reads one"
    if not any(answer.strip() for answer in question.answers):
        return "the question has no answer"
    if any(not (later.question.strip() and later.answer.strip()) for later in question.follow_ups):
        return "a later round of the conversation lacks its question or its answer"
    if question.follow_ups and question.answer_style != "free":
        return "it has follow-up questions, which need a free-form answer; set `answer_type: free_form`"
    if question.is_knowledge_based is None:
        return "the question has neither `requires_retrieval` nor an entity"
    if question.is_knowledge_based and not question.entity_ids:
        return "the knowledge-based question names no entity"
    return ""


@dataclass
class _PassageSampler:
    """Draws passages for one question: no passage twice, and no negative that contains an answer."""

    question: Question
    rng: random.Random
    string_filter: StringFilter
    used: set[str] = field(default_factory=set)
    answer_elsewhere: int = 0
    without_answer: int = 0
    unclear: int = 0

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return self.rng.sample(list(items), len(items))

    def result(self, example: ReflectionExample | None, reason: str = "") -> ExampleResult:
        return ExampleResult(example, reason, self.answer_elsewhere, self.without_answer, self.unclear)

    def positives(self, judged: Sequence[tuple[Passage, Annotation]], count: int) -> list[Branch]:
        """Return up to `count` evidence passages. Other evidence, and unclear passages, never become negatives."""
        relevant = []
        for passage, judgement in judged:
            if judgement.label == "irrelevant":
                continue
            self.used.add(passage.id)
            if judgement.label == "unclear":
                self.unclear += 1
            elif self.string_filter in ("strict", "strict_parts") and not stated_answer(self.question, passage):
                self.without_answer += 1
            else:
                relevant.append(Branch(passage, True, judgement.answer, "gold"))
        return self.shuffled(relevant)[:count]

    def why_none(self) -> str:
        """Return the reason for missing evidence."""
        if (self.without_answer or self.unclear) and is_yes_or_no(self.question):
            return YES_OR_NO
        if self.without_answer:
            return NO_ANSWER_IN_EVIDENCE
        return ALL_UNCLEAR if self.unclear else NO_EVIDENCE

    def negatives(
        self, source: str, articles: Sequence[Sequence[Passage]], count: int, per_article: int = 1
    ) -> list[Branch]:
        """Return up to `count` negatives, at most `per_article` from each article in turn."""
        branches: list[Branch] = []
        for passages in articles:
            taken = 0
            for passage in passages:
                if len(branches) == count or taken == per_article:
                    break
                if passage.id not in self.used and self._is_negative(passage):
                    branches.append(Branch(passage, False, "", source))
                    taken += 1
        return branches

    def random_negatives(
        self, draw_article: Callable[[random.Random], Sequence[Passage]], count: int, headings: set[str]
    ) -> list[Branch]:
        """Return negatives of random entries, half of them preferably under the evidence's heading."""
        branches: list[Branch] = []
        for _ in range(10 * count):  # an entry may have no suitable passage
            if len(branches) == count:
                break
            passages = self.shuffled(draw_article(self.rng))
            if self.rng.random() < 0.5:
                passages.sort(key=lambda passage: passage.heading not in headings)
            passages = [passage for passage in passages if passage.entry_id not in self.question.entity_ids]
            branches += self.negatives("random", [passages], 1)
        return branches

    def _is_negative(self, passage: Passage) -> bool:
        """Return True if the passage contains no accepted answer, including its title and lead."""
        self.used.add(passage.id)
        if self.string_filter == "off":
            return True
        shown = replace(passage, text=passage_text(passage))
        has_answer = bool(stated_answer(self.question, shown))
        if self.string_filter == "strict_parts":
            has_answer = has_answer or states_a_part(self.question, shown)
        self.answer_elsewhere += has_answer
        return not has_answer


def _same_heading_first(
    ranked: Sequence[Sequence[Passage]], headings: set[str], rng: random.Random
) -> list[list[Passage]]:
    """Shuffle the ranked entries and their passages, with those under the evidence's headings first."""
    articles = [rng.sample(list(passages), len(passages)) for passages in ranked]
    rng.shuffle(articles)
    for passages in articles:
        passages.sort(key=lambda passage: passage.heading not in headings)
    return sorted(articles, key=lambda passages: not passages or passages[0].heading not in headings)

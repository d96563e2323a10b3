"""mR²AG-IT examples from questions and articles (mR²AG, section 3.3): which passages hang from a question, and as what.

Pure functions over passages; reading, retrieving, annotating and writing are in `reflection_run`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.protocol import Annotation
from reflectune.data_builders.annotators.string import canonical_answer, is_yes_or_no, stated_answer, states_a_part
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import Branch, ReflectionExample

Item = TypeVar("Item")

StringFilter = Literal["strict", "strict_parts", "negatives", "off"]


@dataclass(frozen=True)
class Recipe:
    """How many passages of which source hang from a knowledge-based question.

    Attributes:
        positives: At most this many evidence paragraphs.
        same_article: Other paragraphs of the question's own articles.
        retrieved: Paragraphs of other entries that the retriever ranks high for the question's image, under the
            evidence's heading where there is one (source `look_alike`), else any (source `retrieved`).
        random: Paragraphs of entries drawn at random.
        seed: Of every draw, together with the question's id.
        string_filter: "Strict string searches …, ensuring answers appear only in evidence paragraphs" (section 3.3).
            `strict`: evidence must hold an accepted answer, and no negative may, nor its title or lead; `strict_parts`:
            nor may a negative hold a part of a list of answers; `negatives`: evidence needn't hold one, since a
            paragraph can support an answer in other words; `off`: the annotator alone decides.
        known_sections: Where the data set names evidence sections, look for evidence in them alone.
    """

    positives: int = 1
    same_article: int = 2
    retrieved: int = 2
    random: int = 1
    seed: int = 0
    string_filter: StringFilter = "strict"
    known_sections: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a question: an example, or the reason why there is none.

    Attributes:
        example: The training example, or None.
        reason: Why there is none.
        answer_elsewhere: Passages that the filter kept from being negatives, because an answer occurs in them.
        without_answer: Passages that the filter kept from being evidence, because no answer occurs in them.
        unclear: Passages of which the annotator couldn't say what they are.
    """

    example: ReflectionExample | None
    reason: str = ""
    answer_elsewhere: int = 0
    without_answer: int = 0
    unclear: int = 0


NO_EVIDENCE = "no paragraph of the question's articles is evidence"
NO_ANSWER_IN_EVIDENCE = "no accepted answer occurs in the evidence (`string_filter: strict`)"
ALL_UNCLEAR = "the annotator can't say which paragraph is evidence"
YES_OR_NO = (
    "the answer is yes or no, which no search for words finds (`annotator: llm` with `string_filter: negatives` can "
    "tell its evidence)"
)


def candidates(question: Question, article: Sequence[Passage], recipe: Recipe) -> list[Passage]:
    """The passages that an annotator judges: the evidence sections where they are known, else the whole article."""
    sections = {(evidence.entry_id, evidence.section) for evidence in question.evidence}
    if not sections or not recipe.known_sections:
        return list(article)
    return [passage for passage in article if (passage.entry_id, passage.section) in sections]


def knowledge_example(
    question: Question,
    article: Sequence[Passage],
    judged: Sequence[tuple[Passage, Annotation]],
    ranked: Sequence[Sequence[Passage]],
    draw_article: Callable[[random.Random], Sequence[Passage]],
    recipe: Recipe,
) -> Outcome:
    """Hang passages from a knowledge-based question.

    A passage is `[Relevant]` if the annotator found evidence in it, and a negative only if it did not; the string
    filter then takes out what would be a wrong label.

    Args:
        question: The question.
        article: The passages of the entries that the image shows.
        judged: What the annotator said of those that may be evidence (see `candidates`).
        ranked: For each other entry that the retriever ranked high, best first: its passages.
        draw_article: Draws the passages of an entry at random.
        recipe: How many passages of which source.
    """
    chosen = _Draw(question, random.Random(f"{recipe.seed}:{question.id}"), recipe.string_filter)
    positives = chosen.positives(judged, recipe.positives)
    if not positives:
        return chosen.outcome(None, chosen.why_none())
    headings = {branch.passage.heading for branch in positives}
    retrieved = chosen.negatives("retrieved", _same_heading_first(ranked, headings, chosen.rng), recipe.retrieved)
    branches = [
        *positives,
        *chosen.negatives("same_article", [chosen.shuffled(article)], recipe.same_article, per_article=len(article)),
        *(
            replace(branch, source="look_alike") if branch.passage.heading in headings else branch
            for branch in retrieved
        ),
        *chosen.random_negatives(draw_article, recipe.random, headings),
    ]
    example = ReflectionExample(
        id=question.id,
        image=question.image,
        question=question.text,
        retrieve=True,
        branches=tuple(chosen.shuffled(branches)),
        style=question.answer_style,
        source=question.split,
    )
    return chosen.outcome(example)


def visual_example(question: Question) -> ReflectionExample:
    """A visual-dependent question: no retrieval, its first answer, and the rest of its conversation."""
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
    """What makes a question unfit for training, or ""."""
    if not question.text.strip():
        return "the question is empty"
    if not question.image.strip():
        return "the question has no image (`without_image: blank` gives such questions a black one)"
    if not any(answer.strip() for answer in question.answers):
        return "the question has no answer"
    if any(not (later.question.strip() and later.answer.strip()) for later in question.follow_ups):
        return "a later round of the conversation lacks its question or its answer"
    if question.follow_ups and question.answer_style != "free":
        return "it goes on as a conversation, and asks for a word; `answer_type: free_form` asks for none"
    if question.is_knowledge_based is None:
        return "the question neither says whether it needs retrieval (`requires_retrieval`) nor names an entity"
    if question.is_knowledge_based and not question.entity_ids:
        return "the knowledge-based question names no entity"
    return ""


@dataclass
class _Draw:
    """The draws for one question: no passage twice, and no negative in which an answer occurs."""

    question: Question
    rng: random.Random
    string_filter: StringFilter
    used: set[str] = field(default_factory=set)
    answer_elsewhere: int = 0
    without_answer: int = 0
    unclear: int = 0

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return self.rng.sample(list(items), len(items))

    def outcome(self, example: ReflectionExample | None, reason: str = "") -> Outcome:
        return Outcome(example, reason, self.answer_elsewhere, self.without_answer, self.unclear)

    def positives(self, judged: Sequence[tuple[Passage, Annotation]], wanted: int) -> list[Branch]:
        """Up to `wanted` evidence passages. The rest of the evidence, and what is unclear, is never a negative."""
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
        return self.shuffled(relevant)[:wanted]

    def why_none(self) -> str:
        """Why there is no evidence."""
        if (self.without_answer or self.unclear) and is_yes_or_no(self.question):
            return YES_OR_NO
        if self.without_answer:
            return NO_ANSWER_IN_EVIDENCE
        return ALL_UNCLEAR if self.unclear else NO_EVIDENCE

    def negatives(
        self, source: str, articles: Sequence[Sequence[Passage]], wanted: int, per_article: int = 1
    ) -> list[Branch]:
        """Up to `wanted` negatives, taking up to `per_article` from each article in turn."""
        branches: list[Branch] = []
        for passages in articles:
            here = 0
            for passage in passages:
                if len(branches) == wanted or here == per_article:
                    break
                if passage.id not in self.used and self._is_negative(passage):
                    branches.append(Branch(passage, False, "", source))
                    here += 1
        return branches

    def random_negatives(
        self, draw_article: Callable[[random.Random], Sequence[Passage]], wanted: int, headings: set[str]
    ) -> list[Branch]:
        """Negatives of random entries, half of the time under an evidence passage's heading if there is one."""
        branches: list[Branch] = []
        for _ in range(10 * wanted):  # an entry may have no fit passage; draw another one, but not for ever
            if len(branches) == wanted:
                break
            passages = self.shuffled(draw_article(self.rng))
            if self.rng.random() < 0.5:
                passages.sort(key=lambda passage: passage.heading not in headings)
            passages = [passage for passage in passages if passage.entry_id not in self.question.entity_ids]
            branches += self.negatives("random", [passages], 1)
        return branches

    def _is_negative(self, passage: Passage) -> bool:
        """Whether no accepted answer stands in what the model reads of a passage, its title and lead included."""
        self.used.add(passage.id)
        if self.string_filter == "off":
            return True
        read = replace(passage, text=passage_text(passage))
        holds = bool(stated_answer(self.question, read))
        if self.string_filter == "strict_parts":
            holds = holds or states_a_part(self.question, read)
        self.answer_elsewhere += holds
        return not holds


def _same_heading_first(
    ranked: Sequence[Sequence[Passage]], headings: set[str], rng: random.Random
) -> list[list[Passage]]:
    """The ranked entries in a drawn order: first those with a passage under the evidence's headings, that one first."""
    articles = [rng.sample(list(passages), len(passages)) for passages in ranked]
    rng.shuffle(articles)
    for passages in articles:
        passages.sort(key=lambda passage: passage.heading not in headings)
    return sorted(articles, key=lambda passages: not passages or passages[0].heading not in headings)

"""ReAG's teacher: which passages state the answer, what is said of each, and thoughts that lead to the answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.string import annotate_by_string, canonical_answer, states_a_part
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.lessons.teacher import TrajectoryTeacher
from reflectune.inference.operators.requests import JudgeEachReply, JudgeEachRequest, JudgeReply, SearchReply
from reflectune.inference.pipelines.noise import irrelevant_texts
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample

LessonStage = Literal["critic", "answer", "grpo"]
"""What lessons are for: the critic's SFT, the answer's SFT, or the answer's GRPO."""

NAME: Final = "reag"
"""The pipeline whose prompts these are replies to."""


@dataclass(frozen=True)
class CriticShares:
    """How many passages a critic's lesson has.

    Attributes:
        negatives: Passages that don't state the answer, for each that does.
        hard_share: So many of them are among those found; the others are of entries that the question isn't about.
        distractors: Passages that don't state the answer which the teacher keeps beside those that do, at most.
    """

    negatives: int
    hard_share: float
    distractors: int


@dataclass
class ReagTeacher:
    """Replies to ReAG's prompts about one question.

    A passage is evidence if it is one of the paragraphs that the question's evidence names. A found passage that isn't
    and that states no part of an accepted answer is a hard negative. One that states the answer elsewhere is neither:
    nobody has said whether it supports the answer.

    Attributes:
        question: The question.
        teacher: Knows its evidence; None where none is known.
        knowledge: The entries.
        shares: How many passages a critic's lesson has.
        seed: Of what is drawn, with the question's id.
        lead: What stands before each passage.
    """

    question: Question
    teacher: TrajectoryTeacher | None
    knowledge: KnowledgeBase
    shares: CriticShares
    seed: int
    lead: Lead
    _passages: dict[str, Passage] = field(default_factory=dict)

    def see(self, found: SearchReply) -> None:
        """Remember the passages of a search by the texts that prompts show."""
        for hits in (hits for by_base in found.hits for hits in by_base.values()):
            self._passages.update({passage_text(hit.passage): hit.passage for hit in hits})

    def critic_lesson(self, asked: JudgeEachRequest) -> PromptedExample | None:
        """The critic's prompt about evidence, found or not, and about passages that don't state the answer.

        Returns:
            One example, a branch for each passage; None if the knowledge base holds no evidence.
        """
        prompt, rng = asked.prompt, self._rng("critic")
        positives = self._evidence()
        if not positives:
            return None
        wanted = self.shares.negatives * len(positives)
        hard = self._hard(prompt.documents)
        rng.shuffle(hard)
        whole, rest = divmod(wanted * self.shares.hard_share, 1)
        hard = hard[: int(whole) + (rng.random() < rest)]
        drawn = irrelevant_texts(self.knowledge, self.question, wanted, rng, self.lead)
        negatives = [*hard, *(text for text in drawn if text not in hard)][:wanted]
        replies = [("Yes", text) for text in positives] + [("No", text) for text in negatives]
        return PromptedExample(
            f"{self.question.id} {NAME} critic",
            self.question.image,
            prompt.texts["question"],
            tuple(PromptedBranch("vqa", reply=reply) for reply, _ in replies),
            source=f"{NAME} critic",
            template=prompt.template,
            system=prompt.system,
            branch_documents=tuple(text for _, text in replies),
        )

    def judged(self, asked: JudgeEachRequest) -> JudgeEachReply:
        """What an ideal critic says: evidence is kept, and a few passages beside it that don't state the answer."""
        rng, hard = self._rng("judge"), self._hard(asked.prompt.documents)
        distracting = set(rng.sample(hard, min(self.shares.distractors, len(hard))))
        kept = [self._is_evidence(text) or text in distracting for text in asked.prompt.documents]
        return JudgeEachReply(tuple(JudgeReply(float(keep), float(not keep), 1) for keep in kept))

    def thoughts(self, seen: Sequence[str]) -> str:
        """`<think>…</think><answer>…</answer>` from what is shown; "" if it doesn't have all of the evidence."""
        statements = [hop.statement(seen) for hop in self.teacher.hops] if self.teacher else []
        if not statements or not all(statements) or self.teacher is None:
            return ""
        thought = " ".join([f"The picture shows this: {self.teacher.description}", *statements])
        return f"<think>{thought}</think><answer>{canonical_answer(self.question)}</answer>"

    def answer(self, seen: Sequence[str]) -> str:
        """The accepted answer alone, if what is shown has all of the evidence."""
        return canonical_answer(self.question) if self.thoughts(seen) else ""

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed} {purpose} {self.question.id}")

    def _evidence(self) -> list[str]:
        """The texts of the passages that are evidence, as prompts show them."""
        entries = dict.fromkeys(evidence.entry_id for evidence in self.question.evidence)
        passages = [p for name in entries for p in split_passages(self.knowledge.get(name), lead=self.lead)]
        return [text for text in map(passage_text, passages) if self._is_evidence(text)]

    def _is_evidence(self, text: str) -> bool:
        return self.teacher is not None and any(hop.statement([text]) for hop in self.teacher.hops)

    def _hard(self, texts: Sequence[str]) -> list[str]:
        """Found passages that are no evidence and state no part of an answer."""
        return [text for text in dict.fromkeys(texts) if not self._is_evidence(text) and not self._states_answer(text)]

    def _states_answer(self, text: str) -> bool:
        passage = self._passages[text]
        return states_a_part(self.question, passage) or annotate_by_string(self.question, passage).relevant

"""ReAG's teacher: relevance of each passage, thoughts that lead to the answer, and the answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.string import annotate_by_string, canonical_answer, states_a_part
from reflectune.examples.lessons.teacher import TrajectoryTeacher
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.operators.requests import JudgeEachReply, JudgeEachRequest, JudgeReply, SearchReply
from reflectune.inference.pipelines.noise import irrelevant_texts
from reflectune.models.rendering.turns import passage_text
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample

LessonStage = Literal["critic", "answer", "grpo"]
"""Stage of training: the critic's SFT, the answer's SFT, or the answer's GRPO."""

NAME: Final = "reag"
"""Name of the pipeline."""


@dataclass(frozen=True)
class CriticShares:
    """Number of passages in a critic's lesson.

    Attributes:
        negatives: Passages that don't state the answer, for each that does.
        hard_share: Share of the negatives that are among the found passages; the rest is of unrelated entries.
        distractors: Maximum passages without the answer that the teacher keeps in addition to those with it.
    """

    negatives: int
    hard_share: float
    distractors: int


@dataclass
class ReagTeacher:
    """A teacher that replies to ReAG's prompts about one question.

    A passage is evidence if it is a paragraph that the question's evidence names. A found passage that is not evidence
    and states no part of an accepted answer is a hard negative. A passage that states the answer elsewhere is neither,
    since nothing is known about its support.

    Attributes:
        question: The question.
        teacher: Teacher that knows its evidence; None if there is none.
        knowledge: The knowledge base.
        shares: Number of passages in a critic's lesson.
        seed: Seed of the drawn passages, together with the question's id.
        lead: Lead of each passage.
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

    def critic_lesson(self, request: JudgeEachRequest) -> PromptedExample | None:
        """Return the critic's lesson on evidence, found or not, and on passages that don't state the answer.

        Returns:
            One example with a branch per passage; None if the knowledge base holds no evidence.
        """
        prompt, rng = request.prompt, self._rng("critic")
        positives = self._evidence()
        if not positives:
            return None
        count = self.shares.negatives * len(positives)
        hard = self._hard(prompt.documents)
        rng.shuffle(hard)
        whole, rest = divmod(count * self.shares.hard_share, 1)
        hard = hard[: int(whole) + (rng.random() < rest)]
        drawn = irrelevant_texts(self.knowledge, self.question, count, rng, self.lead)
        negatives = [*hard, *(text for text in drawn if text not in hard)][:count]
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

    def judged(self, request: JudgeEachRequest) -> JudgeEachReply:
        """Return an ideal critic's judgement: evidence and a few distractors are kept."""
        rng, hard = self._rng("judge"), self._hard(request.prompt.documents)
        distracting = set(rng.sample(hard, min(self.shares.distractors, len(hard))))
        relevant = [self._is_evidence(text) or text in distracting for text in request.prompt.documents]
        return JudgeEachReply(tuple(JudgeReply(float(keeps), float(not keeps), 1) for keeps in relevant))

    def thoughts(self, shown: Sequence[str]) -> str:
        """Return `<think>…</think><answer>…</answer>`; "" if the shown passages lack some of the evidence."""
        statements = [hop.statement(shown) for hop in self.teacher.hops] if self.teacher else []
        if not statements or not all(statements) or self.teacher is None:
            return ""
        thought = " ".join([f"The picture shows this: {self.teacher.description}", *statements])
        return f"<think>{thought}</think><answer>{canonical_answer(self.question)}</answer>"

    def answer(self, shown: Sequence[str]) -> str:
        """Return the accepted answer, if the shown passages have all of the evidence."""
        return canonical_answer(self.question) if self.thoughts(shown) else ""

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed} {purpose} {self.question.id}")

    def _evidence(self) -> list[str]:
        """Return the texts of the evidence passages, as prompts show them."""
        entries = dict.fromkeys(evidence.entry_id for evidence in self.question.evidence)
        passages = [p for name in entries for p in split_passages(self.knowledge.get(name), lead=self.lead)]
        return [text for text in map(passage_text, passages) if self._is_evidence(text)]

    def _is_evidence(self, text: str) -> bool:
        return self.teacher is not None and any(hop.statement([text]) for hop in self.teacher.hops)

    def _hard(self, texts: Sequence[str]) -> list[str]:
        """Return the found passages that are not evidence and state no part of an answer."""
        return [text for text in dict.fromkeys(texts) if not self._is_evidence(text) and not self._states_answer(text)]

    def _states_answer(self, text: str) -> bool:
        passage = self._passages[text]
        return states_a_part(self.question, passage) or annotate_by_string(self.question, passage).relevant

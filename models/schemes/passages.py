"""Schemes that reflect turn by turn: whether to retrieve, and after each passage whether it is evidence.

user:      <image> {question}
assistant: [No Retrieval] {answer}          or     [Retrieval], followed, once per passage, by
user:      {passage} {how to answer}
assistant: [Relevant] {answer}              or     [Irrelevant]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import AnswerStyle, FollowUp, Passage
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.rendering.renderer import Rendered, Renderer, Supervised
from reflectune.models.rendering.turns import (
    ANSWER,
    GAP,
    Gap,
    Slot,
    Turn,
    Turns,
    answer_prompt,
    passage_text,
    prompt_parts,
    question_turns,
)
from reflectune.models.rendering.untrusted import common_prefix
from reflectune.models.schemes.base import AskedAnswer, Gate, Scheme, gate_branch
from reflectune.models.schemes.examples import Branch, ReflectionExample
from reflectune.models.schemes.gate_outcomes import AnchoredPassage, KLAnchor


class PassageScheme(Scheme):
    """A scheme that reflects turn by turn, after the question and after each passage."""

    form = "a scheme that reflects turn by turn, as mr2ag does"
    example_type = ReflectionExample
    gates = (Gate("retrieve", "retrieve", "no_retrieve"), Gate("relevance", "relevant", "irrelevant"))
    long_question = 6
    gap: ClassVar[Gap | str] = GAP
    """Separator between a token and an answer. A base model has learned to answer with the tokens that follow the
    assistant's cue: after a space that the cue lacks, a word is tokenized differently, and a small model misspells it.
    """

    # Turns.

    def passage_turns(self, style: AnswerStyle) -> Turns:
        """Return the turns user: <image> {question}; assistant: [Retrieval]; user: {passage} {instruction}."""
        prompt = answer_prompt(style, documents=True, prompts=self.prompts)
        return (*question_turns(), self.reply("retrieve"), Turn("user", prompt_parts(prompt)))

    def direct_turns(self, style: AnswerStyle) -> Turns | None:
        """Return the turns up to an answer without retrieval that is asked for in a turn of its own; None if it is not.

        user: <image> {question}; assistant: [No Retrieval]; user: {instruction}. The instruction follows the gate, as
        it does with a passage: before it, the gate would learn which questions carry one. A free answer has none: it
        stands in the assistant's first turn, after the token (`conversation_turns`).
        """
        if style == "free":
            return None
        prompt = answer_prompt(style, documents=False, prompts=self.prompts)
        return (*question_turns(), self.reply("no_retrieve"), Turn("user", (prompt,)))

    def conversation_turns(self, follow_ups: int) -> Turns:
        """Return the turns of an answered question with follow-ups about the same image, answers included.

        user: <image> {question}; assistant: [No Retrieval] {answer}; then, for n = 2, 3, … up to `follow_ups` + 1,
        user: {question_n}; assistant: [No Retrieval] {answer_n}. Each reply begins with the token, since the gate is
        asked for every query of a user (§3.1 of mR²AG). With a token in the first reply only, later queries would
        teach that nothing is to be decided there.
        """
        turns = [*question_turns(), self.reply("no_retrieve", answer=True)]
        for number in range(2, follow_ups + 2):
            answered = (self.tokens["no_retrieve"], self.gap, Slot(f"answer_{number}"))
            turns += [Turn("user", (Slot(f"question_{number}"),)), Turn("assistant", answered)]
        return tuple(turns)

    def verdict_turns(self, style: AnswerStyle, *, relevant: bool) -> Turns:
        """Return `passage_turns` and the assistant's reply: its verdict, and its answer if the passage is evidence."""
        verdict = self.reply("relevant" if relevant else "irrelevant", answer=relevant)
        return (*self.passage_turns(style), verdict)

    def reply(self, role: str, *, answer: bool = False) -> Turn:
        """Return the turn assistant: a reflection token, and after it an answer if there is one."""
        return Turn("assistant", (self.tokens[role], *((self.gap, ANSWER) if answer else ())))

    # What a model reads on top of image and question (`Renderer.prefix`).

    def passage_branch(self, renderer: Renderer, passage: Passage, style: AnswerStyle = "short") -> list[int]:
        """Return the branch: [Retrieval], the passage with the instruction, up to the assistant's cue."""
        return renderer.after_prefix(self.passage_turns(style), {"passage": passage_text(passage)})

    def direct_branch(self, renderer: Renderer, style: AnswerStyle) -> list[int]:
        """Return the branch without retrieval, up to the answer: [No Retrieval] and the instruction."""
        turns = self.direct_turns(style)
        return [renderer.token_id("no_retrieve")] if turns is None else renderer.after_prefix(turns, {})

    def passage_reply(self, renderer: Renderer, branch: Branch, style: AnswerStyle = "short") -> Supervised:
        """Return ids and labels of the passage branch and its reply: the verdict, and an answer if it is relevant."""
        texts = {"passage": passage_text(branch.passage), "answer": branch.answer}
        return renderer.supervised(self.verdict_turns(style, relevant=branch.relevant), texts)

    def direct_reply(
        self, renderer: Renderer, answer: str, style: AnswerStyle, follow_ups: Sequence[FollowUp] = ()
    ) -> Supervised:
        """Return token ids and labels of `direct_branch` and the answer: [No Retrieval], the answer, and the ends.

        Args:
            renderer: Renderer of the model.
            answer: Answer to the question.
            style: Answer style.
            follow_ups: Follow-up questions after a free answer; each reply begins with [No Retrieval].

        Raises:
            UserError: A follow-up lacks its question or its answer, or the answer before them is not a free one.
        """
        if self.direct_turns(style) is None:
            for later in follow_ups:
                _require(later.question.strip(), "a conversation's later round has no question; leave the round out")
                _require(later.answer.strip(), f"the later question `{later.question}` of a conversation has no answer")
            return renderer.supervised(self.conversation_turns(len(follow_ups)), conversation_texts(answer, follow_ups))
        _require(not follow_ups, "a conversation goes on after a free answer alone; this one is asked for in a word")
        read, reply = self.direct_branch(renderer, style), renderer.reply_ids(answer)
        verdict = read[: read.index(renderer.end_token_id) + 1]
        return [*read, *reply], [*verdict, *[IGNORE] * (len(read) - len(verdict)), *reply]

    # Training examples.

    def problem(self, example: ReflectionExample) -> str:
        """See `Scheme.problem`."""
        if not example.retrieve and not example.answer.strip():
            return "a question without retrieval needs an answer"
        if example.retrieve and not example.branches:
            return "a question with retrieval needs a passage"
        if example.follow_ups and (example.retrieve or example.style != "free"):
            return "a conversation goes on (`follow_ups`) after a free answer without retrieval alone"
        if any(not (later.question.strip() and later.answer.strip()) for later in example.follow_ups):
            return "a later round of its conversation lacks its question or its answer"
        if any(branch.relevant and not branch.answer.strip() for branch in example.branches):
            return "a relevant branch has no answer"
        return ""

    def encode(self, renderer: Renderer, example: ReflectionExample, image: Image.Image) -> Tree:
        """Return a training question as a prefix and its branches, with mR²AG's labels (equations 8 and 9).

        A conversation stands in the prefix, all of its replies supervised. The assistant's tokens and its end of turn
        are supervised, nothing else. `[Retrieval]` and its end of turn stand in the prefix, so they count once for the
        question, however many passages it has.

        Raises:
            UserError: The example has no answer where it needs one, or no branch to read.
        """
        prefix = renderer.prefix(example.question, image)
        if not example.retrieve:
            _require(example.answer, f"training example {example.id}: a visual question needs an answer")
            said = self.direct_reply(renderer, example.answer, example.style, example.follow_ups)
            return Tree(_join(prefix, said), (), prefix.vision)
        _require(example.branches, f"training example {example.id}: a question to look up needs at least one passage")
        tails = []
        for branch in example.branches:
            if branch.relevant:
                where = f"training example {example.id}, passage {branch.passage.id}"
                _require(branch.answer, f"{where}: a relevant passage needs an answer")
            tails.append(self.passage_reply(renderer, branch, example.style))
        gate = renderer.shared_beginning(self.passage_turns("short"))
        shared = len(common_prefix([gate, *(ids for ids, _ in tails)]))
        ids, labels = tails[0]
        branches = tuple(Segment.of(ids[shared:], labels[shared:]) for ids, labels in tails)
        return Tree(_join(prefix, (ids[:shared], labels[:shared])), branches, prefix.vision)

    def shortened(
        self, renderer: Renderer, example: ReflectionExample, image: Image.Image, max_tokens: int
    ) -> ReflectionExample:
        """Return the example without the last rounds of a conversation, as far as they don't fit."""
        while example.follow_ups and self.encode(renderer, example, image).depth > max_tokens:
            example = replace(example, follow_ups=example.follow_ups[:-1])
        return example

    def roles(self, example: ReflectionExample) -> list[str]:
        """See `Scheme.roles`."""
        verdicts = ["relevant" if branch.relevant else "irrelevant" for branch in example.branches]
        return ["retrieve" if example.retrieve else "no_retrieve", *verdicts]

    def texts(self, example: ReflectionExample) -> Iterator[str]:
        """See `Scheme.texts`."""
        yield from (example.question, example.answer)
        for later in example.follow_ups:
            yield from (later.question, later.answer)
        for branch in example.branches:
            yield from (branch.passage.title, branch.passage.lead, branch.passage.heading, branch.passage.text)

    def has_answer(self, example: ReflectionExample) -> bool:
        """See `Scheme.has_answer`."""
        return not example.retrieve or any(branch.relevant for branch in example.branches)

    def ask(self, renderer: Renderer, example: ReflectionExample, image: Image.Image) -> AskedAnswer:
        """Return the prompt of an answer: after [No Retrieval], or after the first relevant passage and [Relevant]."""
        prefix = renderer.prefix(example.question, image)
        if not example.retrieve:
            return AskedAnswer(prefix, self.direct_branch(renderer, example.style), "", example.answer)
        gold = next(branch for branch in example.branches if branch.relevant)
        return AskedAnswer(prefix, self.passage_branch(renderer, gold.passage, example.style), "relevant", gold.answer)

    # Gates by themselves. A passage's gate and what is answered from it stand in one branch.

    def open(self, renderer: Renderer, question: str, image: Image.Image) -> Rendered:
        """See `Scheme.open`."""
        return renderer.prefix(question, image)

    def gate_turns(self, gate: Gate, style: AnswerStyle) -> Turns:
        """See `Scheme.gate_turns`."""
        return question_turns() if gate == self.gates[0] else self.passage_turns(style)

    def retrieval_gate(self, renderer: Renderer) -> Supervised:
        """See `Scheme.retrieval_gate`."""
        return gate_branch([], renderer.token_id("retrieve"), IGNORE)

    def relevance_gate(self, renderer: Renderer, passage: Passage, style: AnswerStyle) -> Supervised:
        """See `Scheme.relevance_gate`."""
        return gate_branch(self.passage_branch(renderer, passage, style), renderer.token_id("relevant"), IGNORE)

    def anchored_passage(self, renderer: Renderer, anchored: AnchoredPassage, style: AnswerStyle) -> Supervised:
        """See `Scheme.anchored_passage`."""
        if not anchored.answer:
            return self.relevance_gate(renderer, anchored.passage, style)
        ids, labels = self.passage_reply(renderer, Branch(anchored.passage, True, anchored.answer), style)
        silent = labels.index(renderer.token_id("relevant")) + (anchored.log_odds is None)
        return ids, [*[IGNORE] * silent, *labels[silent:]]

    def anchored_replies(self, renderer: Renderer, anchor: KLAnchor, style: AnswerStyle) -> list[Supervised]:
        """Return the answer without retrieval, without [No Retrieval]: that gate is refined."""
        if not anchor.direct:
            return []
        ids, labels = self.direct_reply(renderer, anchor.direct, style)
        return [(ids, [IGNORE, *labels[1:]])]


def conversation_texts(answer: str, follow_ups: Sequence[FollowUp]) -> Mapping[str, str]:
    """Return the texts of the slots of `PassageScheme.conversation_turns`, without the question."""
    later = {
        f"{name}_{number}": text
        for number, each in enumerate(follow_ups, start=2)
        for name, text in (("question", each.question), ("answer", each.answer))
    }
    return {"answer": answer, **later}


def _join(prefix: Rendered, said: Supervised) -> Segment:
    ids, labels = said
    return Segment.of([*prefix.ids, *ids], [*prefix.labels, *labels])


def _require(value: object, message: str) -> None:
    if not value:
        raise UserError(message)

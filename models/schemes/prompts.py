"""Schemes that ask prompt by prompt: every prompt goes on from the same image and question, in one user's turn.

user:      <image> {question} {prompt}
assistant: a reflection token, or words
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import AnswerStyle, Passage
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.rendering.renderer import Rendered, Renderer, Supervised
from reflectune.models.rendering.turns import (
    ANSWER,
    Slot,
    Turn,
    Turns,
    answer_turns,
    asking_turns,
    documents_text,
    fit_leading,
    prompt_parts,
)
from reflectune.models.schemes.base import AskedAnswer, Gate, Scheme, gate_branch
from reflectune.models.schemes.examples import PromptedBranch, PromptedExample, PromptName
from reflectune.models.schemes.gate_outcomes import AnchoredPassage, KLAnchor

_NO_PLACE: Final = (
    "P_SRT reads a document's place in the search results here (`prompts: search_result`), and it is unknown; probe "
    "retrieved documents alone, or train without it"
)


class PromptScheme(Scheme):
    """A scheme that asks each thing by a prompt of its own after the question."""

    form = "a scheme that asks prompt by prompt, as plain does"
    example_type = PromptedExample

    def prompt_turns(self, name: PromptName, style: AnswerStyle, *, documents: bool) -> Turns:
        """Return the turns user: <image> {question} {prompt}.

        Raises:
            UserError: The scheme lacks this prompt.
        """
        if name == "vqa":
            return answer_turns(self.prompts, style, documents=documents)
        if name not in self.prompts:
            raise UserError(f"the scheme {self.name} has no prompt `{name}`; it has {', '.join(self.prompts)}")
        return asking_turns(self.prompts[name])

    def reads_place(self, name: str) -> bool:
        """Return True if a prompt reads the document's place in the search results."""
        return "{found}" in self.prompts.get(name, "")

    def replied_turns(self, branch: PromptedBranch, style: AnswerStyle) -> Turns:
        """Return `prompt_turns`, and the assistant's reply: a token or words."""
        said = Turn("assistant", (self.tokens[branch.role] if branch.role else ANSWER,))
        return (*self.prompt_turns(branch.prompt, style, documents=bool(branch.documents)), said)

    def prompt_branch(
        self,
        renderer: Renderer,
        name: PromptName,
        passages: Sequence[Passage] = (),
        style: AnswerStyle = "short",
        found: str = "",
    ) -> list[int]:
        """Return the ids that continue `Renderer.question_prefix`: a prompt up to the assistant's cue.

        Args:
            renderer: Renderer of the model.
            name: Name of the prompt.
            passages: Its passages: one for `srt`, several for `mct` (numbered from 1), any number for `vqa`, several
                for `summary`.
            style: Answer style of `vqa`.
            found: Place of the document of `srt` in the search results; read by a prompt with the slot `found`.

        Raises:
            UserError: The prompt reads the place, and it is unknown.
        """
        if self.reads_place(name) and not found:
            raise UserError(_NO_PLACE)
        texts = {"passage": prompt_documents(name, passages), "found": found}
        return renderer.after_question(self.prompt_turns(name, style, documents=bool(passages)), texts)

    def prompt_reply(self, renderer: Renderer, branch: PromptedBranch, style: AnswerStyle = "short") -> Supervised:
        """Return ids and labels of `prompt_branch` and the reply: a reflection token or words, and the turn's end."""
        read = self.prompt_branch(renderer, branch.prompt, branch.documents, style, branch.found)
        token = [renderer.token_id(branch.role), renderer.end_token_id] if branch.role else []
        said = token or renderer.reply_ids(branch.reply)
        return [*read, *said], [*[IGNORE] * len(read), *said]

    # Training examples.

    def problem(self, example: PromptedExample) -> str:
        """See `Scheme.problem`."""
        if not example.branches:
            return "it has no branch, so that nothing is asked"
        for branch in example.branches:
            if bool(branch.role) == bool(branch.reply.strip()):
                return f"a branch `{branch.prompt}` needs either a reflection token (`role`) or words (`reply`)"
            if self.reads_place(branch.prompt) and not branch.found:
                return _NO_PLACE
        slots = [part.name for part in prompt_parts(example.template) if isinstance(part, Slot)]
        if unknown := sorted({*slots} - {"question", "documents"}):
            return f"the template has the slot `{unknown[0]}`; it can have `question` and `documents`"
        if example.template and any(branch.role or branch.documents for branch in example.branches):
            return "with a `template` a branch has only a `reply`"
        if not example.template and (example.system or example.branch_documents):
            return "`system` and `branch_documents` belong to a `template`, and there is none"
        if example.branch_documents and (example.documents or len(example.branch_documents) != len(example.branches)):
            return "`branch_documents` has one text for each branch, and then `documents` is empty"
        if example.follow_ups and not (example.template and len(example.branches) == 1):
            return "`follow_ups` continue the only branch of a `template`"
        if any(not later.answer.strip() for later in example.follow_ups):
            return "a later reply (`follow_ups`) is empty"
        return ""

    def template_turn(self, example: PromptedExample) -> Turn:
        """Return user: <image> {template}; see `PromptedExample` for prompts of a pipeline."""
        return Turn("user", prompt_parts(example.template), image=True)

    def encode(self, renderer: Renderer, example: PromptedExample, image: Image.Image) -> Tree:
        """Return a training question as a prefix and one branch per prompt. The replies are supervised.

        Raises:
            UserError: A branch has neither a token nor words to reply with, or there is none.
        """
        if not example.branches:
            raise UserError(f"training example {example.id}: nothing is asked; give it at least one branch")
        if example.template:
            return self._encode_template(renderer, example, image)
        prefix = renderer.question_prefix(example.question, image)
        branches = []
        for branch in example.branches:
            if not (branch.role or branch.reply):
                raise UserError(f"training example {example.id}, prompt {branch.prompt}: the reply is missing")
            branches.append(Segment.of(*self.prompt_reply(renderer, branch, example.style), branch.weight))
        return Tree(Segment.of(prefix.ids, prefix.labels), tuple(branches), prefix.vision)

    def _encode_template(self, renderer: Renderer, example: PromptedExample, image: Image.Image) -> Tree:
        """Encode a prompt of a pipeline with its replies; prompts with different documents share their beginning."""
        turns = renderer.under_system(example.system, self.template_turn(example))
        texts = [{"question": example.question, "documents": shown} for shown in example.shown_documents]
        replies = [renderer.reply_ids(branch.reply) for branch in example.branches]
        if example.branch_documents:
            prefix, rests = renderer.conversations(turns, texts, image)
        else:
            prefix, rests = renderer.conversation(turns, texts[0], image), [[]] * len(replies)
        later = self._later_rounds(renderer, example)
        segments = tuple(
            Segment.of([*rest, *reply, *later[0]], [*[IGNORE] * len(rest), *reply, *later[1]])
            for rest, reply in zip(rests, replies, strict=True)
        )
        return Tree(Segment.of(prefix.ids, prefix.labels), segments, prefix.vision)

    def _later_rounds(self, renderer: Renderer, example: PromptedExample) -> Supervised:
        """Return ids and labels of a trajectory after its first reply; tools' results are not supervised."""
        ids, labels = list[int](), list[int]()
        for later in example.follow_ups:
            read, said = renderer.after_reply(later.question), renderer.reply_ids(later.answer)
            ids += [*read, *said]
            labels += [*[IGNORE] * len(read), *said]
        return ids, labels

    def shortened(
        self, renderer: Renderer, example: PromptedExample, image: Image.Image, max_tokens: int
    ) -> PromptedExample:
        """Return the example whose answers are read from the leading documents that fit, as inference reads them.

        One with a template has its documents as they are.
        """
        if example.template:
            return example
        room = max_tokens - len(renderer.question_prefix(example.question, image).ids)

        def shorten(branch: PromptedBranch) -> PromptedBranch:
            if branch.prompt != "vqa":
                return branch
            count, _ = fit_leading(
                lambda count: self.prompt_reply(renderer, leading(branch, count), example.style)[0],
                len(branch.documents),
                room,
            )
            return leading(branch, count)

        return replace(example, branches=tuple(map(shorten, example.branches)))

    def roles(self, example: PromptedExample) -> list[str]:
        """See `Scheme.roles`."""
        return [branch.role for branch in example.branches if branch.role]

    def texts(self, example: PromptedExample) -> Iterator[str]:
        """See `Scheme.texts`."""
        yield from (example.system, example.template, example.question, example.documents, *example.branch_documents)
        for later in example.follow_ups:
            yield from (later.question, later.answer)
        for branch in example.branches:
            yield branch.reply
            for passage in branch.documents:
                yield from (passage.title, passage.lead, passage.heading, passage.text)

    def has_answer(self, example: PromptedExample) -> bool:
        """See `Scheme.has_answer`."""
        return not example.template and any(branch.prompt == "vqa" for branch in example.branches)

    def ask(self, renderer: Renderer, example: PromptedExample, image: Image.Image) -> AskedAnswer:
        """Return the first prompt for an answer (`vqa`)."""
        asking = next(branch for branch in example.branches if branch.prompt == "vqa")
        prompt = self.prompt_branch(renderer, "vqa", asking.documents, example.style)
        return AskedAnswer(renderer.question_prefix(example.question, image), prompt, "", asking.reply)

    # Gates by themselves.

    def open(self, renderer: Renderer, question: str, image: Image.Image) -> Rendered:
        """See `Scheme.open`."""
        return renderer.question_prefix(question, image)

    def gate_turns(self, gate: Gate, style: AnswerStyle) -> Turns:
        """See `Scheme.gate_turns`."""
        is_first = gate == self.gates[0]
        return self.prompt_turns("ret" if is_first else "srt", style, documents=not is_first)

    def retrieval_gate(self, renderer: Renderer) -> Supervised:
        """See `Scheme.retrieval_gate`."""
        return gate_branch(self.prompt_branch(renderer, "ret"), renderer.token_id("retrieve"), IGNORE)

    def relevance_gate(self, renderer: Renderer, passage: Passage, style: AnswerStyle) -> Supervised:
        """See `Scheme.relevance_gate`."""
        read = self.prompt_branch(renderer, "srt", [passage], style)
        return gate_branch(read, renderer.token_id("relevant"), IGNORE)

    def anchored_passage(self, renderer: Renderer, anchored: AnchoredPassage, style: AnswerStyle) -> Supervised:
        """See `Scheme.anchored_passage`."""
        return self.relevance_gate(renderer, anchored.passage, style)

    def anchored_replies(self, renderer: Renderer, anchor: KLAnchor, style: AnswerStyle) -> list[Supervised]:
        """Return the answer without documents, and the replies to the prompts that ask for words."""
        direct = (PromptedBranch("vqa", reply=anchor.direct),) if anchor.direct else ()
        replies = (PromptedBranch(cast(PromptName, r.prompt), r.documents, reply=r.words) for r in anchor.replies)
        return [self.prompt_reply(renderer, branch, style) for branch in (*direct, *replies)]


def leading(branch: PromptedBranch, count: int) -> PromptedBranch:
    """Return the branch with its first `count` documents."""
    return replace(branch, documents=branch.documents[:count])


def prompt_documents(name: PromptName, passages: Sequence[Passage]) -> str:
    """Return the documents of a prompt as one text: numbered from 1 for `mct`, so that they can be referred to."""
    return documents_text(passages, numbered=name == "mct")

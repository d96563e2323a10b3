"""Renders a scheme's conversations in a family's chat template, as token ids that untrusted text cannot forge."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from torch import Tensor

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.types import (
    AnswerStyle,
    Branch,
    FollowUp,
    Passage,
    PromptedBranch,
    PromptedExample,
    PromptName,
    ReflectionExample,
)
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.processing.untrusted import SafeTokenizer, cut_at_slots, slot_mark
from reflectune.models.schemes import base as layouts
from reflectune.models.schemes.base import Scheme, Slot, Turn

Chunks = tuple[str | Slot, ...]


@dataclass(frozen=True)
class Rendered:
    """One sequence that a model reads.

    Attributes:
        ids: Token ids, the image's placeholders expanded.
        labels: `ids` where supervised, else -100.
        vision: What the family's processor made of the image (`pixel_values`, `image_grid_thw`, …).
    """

    ids: list[int]
    labels: list[int]
    vision: Mapping[str, Tensor] = field(default_factory=dict)


class Renderer:
    """Binds a scheme to a family's processor: everything that training and inference feed to a model comes from here.

    Questions, passages and answers are untrusted: whatever characters they hold, they become plain text. Everything
    else gets the ids that the tokenizer gives the whole conversation.

    Args:
        scheme: Whose tokens and prompts to use, or None for a plain model. Its tokens must be in the tokenizer.
        processor: A transformers processor with a chat template, an image processor and a fast tokenizer.

    Raises:
        UserError: The processor lacks something, or its chat template cannot be continued turn by turn.
    """

    def __init__(self, scheme: Scheme | None, processor: Any) -> None:
        if getattr(processor, "chat_template", None) is None:
            raise UserError("the model's processor has no chat template; set one (chat_template.jinja in its folder)")
        self.scheme, self.tokenizer = scheme, processor.tokenizer
        self.processor = processor
        self.reflection_tokens: tuple[str, ...] = tuple(scheme.tokens.values()) if scheme else ()
        self._safe = SafeTokenizer(self.tokenizer, owned=(self.processor.image_token, *self.reflection_tokens))
        self.image_token_id: int = self.tokenizer.convert_tokens_to_ids(self.processor.image_token)
        self._closing = ""
        self.end_token_id = self._find_end()
        self.token_ids: Mapping[str, int] = self._find_reflection_tokens()

    @property
    def fingerprint(self) -> str:
        """A hash of the scheme, the chat template and the tokens: what decides the ids that a text becomes."""
        parts = [self.scheme, self.processor.chat_template, self.tokenizer.backend_tokenizer.to_str()]
        return fingerprint(parts)

    def token_id(self, role: str) -> int:
        """The id of a reflection token, by role (`retrieve`, `no_retrieve`, `relevant`, `irrelevant`)."""
        if role not in self.token_ids:
            raise UserError(f"the model has no `{role}` token: it was loaded without a scheme; give one, e.g. mr2ag")
        return self.token_ids[role]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, reflection tokens kept."""
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()

    def strip(self, text: str) -> str:
        """A decoded reply without reflection tokens and without runs of spaces."""
        return self.scheme.strip(text) if self.scheme else " ".join(text.split())

    # What a model reads.

    def prefix(self, question: str, image: Image.Image) -> Rendered:
        """Image and question up to the assistant's cue, where the gate's token comes next."""
        return self._read(self._chunks(layouts.question_turns(), cue=True), {"question": question}, image)

    def plain(
        self, question: str, image: Image.Image, passages: Sequence[Passage] = (), style: AnswerStyle = "short"
    ) -> Rendered:
        """One user's turn without reflection: image, question, any passages, how to answer, the assistant's cue."""
        turns = layouts.answer_turns(self._prompts, style, documents=bool(passages))
        fill = {"question": question, "passage": layouts.documents_text(passages)}
        return self._read(self._chunks(turns, cue=True), fill, image)

    def passage_branch(self, passage: Passage, style: AnswerStyle = "short") -> list[int]:
        """What goes on from `prefix`: [Retrieval], the passage with the instruction, up to the assistant's cue."""
        chunks = self._after_gate(layouts.passage_turns(self._need_scheme("mr2ag"), style), cue=True)
        return self._safe.encode_continuation(_fill(chunks, {"passage": layouts.passage_text(passage)}))

    def direct_branch(self, style: AnswerStyle = "short") -> list[int]:
        """What goes on from `prefix` without retrieval, up to the answer: [No Retrieval], and how to answer."""
        scheme = self._need_scheme("mr2ag")
        if style == "free":
            return [self.token_id("no_retrieve")]
        return self._safe.encode_continuation(
            _fill(self._after_gate(layouts.direct_turns(scheme, style), cue=True), {})
        )

    @functools.cached_property
    def _cue(self) -> str:
        """What the chat template writes behind the user's last words, up to where the assistant goes on."""
        return str(self._chunks(layouts.question_turns(), cue=True)[-1])

    @functools.cached_property
    def _before_reply(self) -> str:
        """What the chat template puts between its cue and a reply: a space, or nothing."""
        turns = (*layouts.question_turns(), Turn("assistant", (layouts.ANSWER,)))
        first = self._difference(layouts.question_turns(), turns, cue=False)[0]
        return first if isinstance(first, str) else ""

    @functools.cached_property
    def gate_suffix(self) -> list[int]:
        """What every `passage_branch` begins with: [Retrieval], the end of the turn, the next user turn's head."""
        chunks = self._after_gate(layouts.passage_turns(self._need_scheme("mr2ag"), "short"), cue=True)
        probes = [
            self._safe.encode_continuation(_fill(chunks, {"passage": text})) for text in ("The", "a", "1", "«", "木")
        ]
        return _common_prefix(probes)

    def question_prefix(self, question: str, image: Image.Image) -> Rendered:
        """Image and question, inside the user's turn: what all prompts of MMKB-RAG and of plain fine-tuning share."""
        scheme = self._need_scheme("mmkb_rag", "plain")
        chunks = self._chunks(layouts.answer_turns(scheme.prompts, "short", documents=False), cue=True)
        return self._read(chunks[: chunks.index(layouts.QUESTION) + 1], {"question": question}, image)

    def prompt_branch(
        self, name: PromptName, passages: Sequence[Passage] = (), style: AnswerStyle = "short"
    ) -> list[int]:
        """What goes on from `question_prefix`: a prompt up to the assistant's cue.

        Args:
            name: Which prompt.
            passages: What it is about: one for `srt`, several for `mct` (numbered from 1), any number for `vqa`,
                several for `summary`.
            style: How `vqa` asks for the answer, as `plain` does.
        """
        scheme = self._need_scheme("mmkb_rag", "plain")
        if name == "vqa":
            turns = layouts.answer_turns(scheme.prompts, style, documents=bool(passages))
        else:
            turns = layouts.prompt_turns(self._need_scheme("mmkb_rag"), name)
        chunks = self._chunks(turns, cue=True)
        tail = chunks[chunks.index(layouts.QUESTION) + 1 :]
        return self._safe.encode_continuation(
            _fill(tail, {"passage": layouts.documents_text(passages, numbered=name == "mct")})
        )

    def reply_ids(self, text: str) -> list[int]:
        """A reply in words behind the assistant's cue, and the token that ends it: what is scored, and trained on."""
        reply = self._before_reply + SafeTokenizer.clean(text)
        return [*self._safe.encode_continuation(reply, self._cue), self.end_token_id]

    # What a model is trained on.

    def encode_prompted(self, example: PromptedExample, image: Image.Image) -> Tree:
        """A training question of MMKB-RAG or of plain fine-tuning: a prefix and one branch per prompt.

        The replies are supervised.

        Raises:
            UserError: A branch has neither a token nor words to reply with, or there is none.
        """
        _need(example.branches, f"training example {example.id}: nothing is asked; give it at least one branch")
        prefix = self.question_prefix(example.question, image)
        branches = []
        for own in example.branches:
            _need(own.role or own.reply, f"training example {example.id}, prompt {own.prompt}: there is no reply")
            branches.append(Segment.of(*self.prompted_reply(own, example.style)))
        return Tree(Segment.of(prefix.ids, prefix.labels), tuple(branches), prefix.vision)

    def encode_example(self, example: ReflectionExample, image: Image.Image) -> Tree:
        """A training question as a prefix and its branches, with mR²AG's labels (equations 8 and 9).

        A conversation stands in the prefix, all of its replies supervised.

        The assistant's tokens and its end of turn are supervised, nothing else. `[Retrieval]` and its end of turn stand
        in the prefix, so they count once for the question, however many passages it has.

        Raises:
            UserError: The example has no answer where it needs one, or no branch to read.
        """
        prefix = self.prefix(example.question, image)
        if not example.retrieve:
            _need(example.answer, f"training example {example.id}: a visual question needs an answer")
            said = self.direct_reply(example.answer, example.style, example.follow_ups)
            return Tree(_join(prefix, *said), (), prefix.vision)
        _need(example.branches, f"training example {example.id}: a question to look up needs at least one passage")
        tails = []
        for branch in example.branches:
            if branch.relevant:
                _need(branch.answer, f"training example {example.id}, passage {branch.passage.id}: relevant, no answer")
            tails.append(self.passage_reply(branch, example.style))
        shared = len(_common_prefix([self.gate_suffix, *(ids for ids, _ in tails)]))
        head = [part[:shared] for part in tails[0]]
        branches = tuple(Segment.of(ids[shared:], labels[shared:]) for ids, labels in tails)
        return Tree(_join(prefix, *head), branches, prefix.vision)

    def prompted_reply(self, branch: PromptedBranch, style: AnswerStyle = "short") -> tuple[list[int], list[int]]:
        """Ids and labels of `prompt_branch` and the reply: a reflection token or words, and the turn's end."""
        read = self.prompt_branch(branch.prompt, branch.documents, style)
        said = [self.token_id(branch.role), self.end_token_id] if branch.role else self.reply_ids(branch.reply)
        return [*read, *said], [*[IGNORE] * len(read), *said]

    def direct_reply(
        self, answer: str, style: AnswerStyle = "short", follow_ups: Sequence[FollowUp] = ()
    ) -> tuple[list[int], list[int]]:
        """Ids and labels of `direct_branch` and the answer: [No Retrieval], the answer, and both turns' ends.

        Args:
            answer: To the question.
            style: How it is asked for.
            follow_ups: What is asked next, behind a free answer; each reply begins with [No Retrieval].

        Raises:
            UserError: A follow-up lacks its question or its answer, or the answer before them is not a free one.
        """
        scheme = self._need_scheme("mr2ag")
        if style == "free":
            for later in follow_ups:
                _need(later.question.strip(), "a conversation's later round has no question; leave the round out")
                _need(later.answer.strip(), f"the later question `{later.question}` of a conversation has no answer")
            turns = layouts.conversation_turns(scheme, len(follow_ups))
            return self._target(self._after_gate(turns), layouts.conversation_texts(answer, follow_ups))
        _need(not follow_ups, "a conversation goes on behind a free answer alone; this one is asked for in a word")
        read, reply = self.direct_branch(style), self.reply_ids(answer)
        verdict = read[: read.index(self.end_token_id) + 1]
        return [*read, *reply], [*verdict, *[IGNORE] * (len(read) - len(verdict)), *reply]

    def passage_reply(self, branch: Branch, style: AnswerStyle = "short") -> tuple[list[int], list[int]]:
        """Ids and labels of `passage_branch` and the reply: what is said of relevance, and the answer if it is."""
        scheme = self._need_scheme("mr2ag")
        verdict = layouts.reply(scheme, "relevant" if branch.relevant else "irrelevant", answer=branch.relevant)
        turns = (*layouts.passage_turns(scheme, style), verdict)
        fill = {"passage": layouts.passage_text(branch.passage), "answer": branch.answer}
        return self._target(self._after_gate(turns), fill)

    # How it is done.

    def _read(self, chunks: Chunks, fill: Mapping[str, str], image: Image.Image) -> Rendered:
        """Encode a conversation from its beginning, with the image's placeholder expanded by the processor."""
        _need(fill["question"].strip(), "a question is empty; give it a text, or leave it out")
        if not isinstance(image, Image.Image):
            raise UserError(f"the question `{fill['question']}` has no image; every question needs one")
        ids = self._safe.encode_from_start(_fill(chunks, fill))
        expansion, vision = self._see(image)
        place = ids.index(self.image_token_id)
        ids = [*ids[:place], *expansion, *ids[place + 1 :]]
        return Rendered(ids, [IGNORE] * len(ids), vision)

    def _see(self, image: Image.Image) -> tuple[list[int], dict[str, Tensor]]:
        """The ids that stand for the image, and what the model's vision tower reads."""
        made = self.processor(
            text=[self.processor.image_token], images=[image], return_tensors="pt", add_special_tokens=False
        )
        expansion = made.pop("input_ids")[0].tolist()
        vision = {name: value for name, value in made.items() if name not in _NOT_VISION}
        return expansion, vision

    def _target(self, chunks: Chunks, fill: Mapping[str, str]) -> tuple[list[int], list[int]]:
        """Ids and labels of a continuation: from every reflection token to the end of its turn is supervised.

        No untrusted text can contain either, so both are found by id. What follows the last end of turn is cut off.
        """
        ids = self._safe.encode_continuation(_fill(chunks, fill))
        labels, speaking, end = [], False, 0
        verdicts = set(self.token_ids.values())
        for place, token in enumerate(ids):
            speaking = speaking or token in verdicts
            labels.append(token if speaking else IGNORE)
            if speaking and token == self.end_token_id:
                speaking, end = False, place + 1
        return ids[:end], labels[:end]

    def _after_gate(self, turns: tuple[Turn, ...], *, cue: bool = False) -> Chunks:
        """What the template adds to `prefix` when the conversation goes on like this."""
        return self._difference(layouts.question_turns(), turns, cue)

    @functools.lru_cache(maxsize=256)  # noqa: B019  a renderer lives as long as its model
    def _difference(self, before: tuple[Turn, ...], turns: tuple[Turn, ...], cue: bool) -> Chunks:
        start, whole = self._render(before, cue=True), self._render(turns, cue=cue)
        if not whole.startswith(start):
            raise UserError(
                "this model's chat template changes earlier turns when a conversation goes on, so that a prefix cannot "
                f"be shared; expected the longer one to begin with {start!r}, found {whole!r}; set another template"
            )
        return cut_at_slots(whole[len(start) :])

    @functools.lru_cache(maxsize=256)  # noqa: B019
    def _chunks(self, turns: tuple[Turn, ...], *, cue: bool) -> Chunks:
        return cut_at_slots(self._render(turns, cue=cue))

    def _render(self, turns: tuple[Turn, ...], *, cue: bool) -> str:
        """The chat template's text, slots marked and our special tokens replaced by their secret names."""
        messages = [{"role": turn.role, "content": self._content(turn)} for turn in turns]
        text = self.processor.apply_chat_template(messages, add_generation_prompt=cue, tokenize=False)
        marks = [slot_mark(part) for turn in turns for part in turn.parts if isinstance(part, Slot)]
        lost = [mark for mark in marks if text.count(mark) != 1]
        if lost or text.count(self.processor.image_token) != 1:
            raise UserError(
                f"this model's chat template must show every text and the image ({self.processor.image_token}) once; "
                f"it made {text!r} of {messages!r}"
            )
        return self._safe.trust(text)

    def _content(self, turn: Turn) -> list[dict[str, str]]:
        text = "".join(slot_mark(part) if isinstance(part, Slot) else part for part in turn.parts)
        closing = self._closing if turn.role == "assistant" else ""
        image = [{"type": "image"}] if turn.image else []
        return [*image, {"type": "text", "text": text + closing}]

    def _find_end(self) -> int:
        """The token that ends the assistant's turn; a template without one (LLaVA-1.5's) gets the tokenizer's."""
        turns = (*layouts.question_turns(), Turn("assistant", (layouts.ANSWER,)))
        whole = self._render(turns, cue=False)
        ends = self._safe.specials_in(whole[whole.index(slot_mark(layouts.ANSWER)) :])
        if ends:
            return ends[0]
        self._closing = self.tokenizer.eos_token or ""
        _need(self._closing, "the model's chat template doesn't end a turn and its tokenizer has no end token; set one")
        return self.tokenizer.eos_token_id

    def _find_reflection_tokens(self) -> dict[str, int]:
        """Ids by role. Each token must be one id that directly follows the assistant's cue."""
        found: dict[str, int] = {}
        for role, token in self.scheme.tokens.items() if self.scheme else ():
            chunks = self._after_gate((*layouts.question_turns(), Turn("assistant", (token,))))
            first = self._safe.encode_continuation(_fill(chunks, {}))[:1]
            found[role] = self.tokenizer.convert_tokens_to_ids(token)
            if first != [found[role]] or found[role] == self.tokenizer.unk_token_id:
                raise UserError(
                    f"the tokenizer doesn't read {token} as one token behind the assistant's cue; load the model with "
                    f"scheme={self.scheme.name if self.scheme else ''}, which adds it"
                )
        return found

    @property
    def _prompts(self) -> Mapping[str, str]:
        return self.scheme.prompts if self.scheme else layouts.ANSWER_PROMPTS

    def _need_scheme(self, *names: str) -> Scheme:
        if self.scheme is None or self.scheme.name not in names:
            name = self.scheme.name if self.scheme else "none"
            raise UserError(f"this needs a model of scheme {' or '.join(names)}, but the model's scheme is {name}")
        return self.scheme


_NOT_VISION = frozenset({"attention_mask", "mm_token_type_ids", "token_type_ids"})


def _fill(chunks: Chunks, fill: Mapping[str, str]) -> str:
    """Put untrusted texts into their slots, cleaned so that they cannot hold a secret name."""
    return "".join(SafeTokenizer.clean(fill[part.name]) if isinstance(part, Slot) else part for part in chunks)


def _join(prefix: Rendered, ids: list[int], labels: list[int]) -> Segment:
    return Segment.of([*prefix.ids, *ids], [*prefix.labels, *labels])


def _common_prefix(rows: Sequence[Sequence[int]]) -> list[int]:
    """The longest beginning that all rows have."""
    length = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        length += 1
    return list(rows[0][:length])


def _need(value: object, message: str) -> None:
    if not value:
        raise UserError(message)

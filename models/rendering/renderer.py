"""Render turns with a model family's chat template, as token ids that untrusted text can't forge."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import jinja2
from PIL import Image

from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.images import Images, each_image, keep_ready, ready_for
from reflectune.core.types import AnswerStyle, Passage
from reflectune.models.attention.tree import IGNORE
from reflectune.models.rendering.chat_template import ADVICE, before_reply, check_has_template, content, has_system_turn
from reflectune.models.rendering.expansion import Expansion, LineBreaks
from reflectune.models.rendering.turns import (
    ANSWER,
    ANSWER_PROMPTS,
    IMAGE,
    QUESTION,
    Slot,
    Turn,
    Turns,
    Vocabulary,
    answer_turns,
    documents_text,
    further_images,
    question_turns,
    result_turn,
)
from reflectune.models.rendering.untrusted import SafeTokenizer, common_prefix, cut_at_slots, fill_slots, slot_mark

if TYPE_CHECKING:  # see attention/tree.py
    from torch import Tensor

Chunks = tuple[str | Slot, ...]
Texts = Mapping[str, str]
"""Texts of the turns' slots, by the slot's name. They are untrusted."""

Supervised = tuple[list[int], list[int]]
"""Token ids and their labels: the id where it is supervised, else -100."""


@dataclass(frozen=True)
class Rendered:
    """Sequence that a model reads.

    Attributes:
        ids: Token ids, with image placeholders expanded.
        labels: `ids` where supervised, else -100.
        vision: The processor's output for the image (`pixel_values`, `image_grid_thw`, …).
        images: The images, each with the range of `ids` of its expanded placeholder.
        own_images: True if no other prompt shares the ids up to the last image.
    """

    ids: list[int]
    labels: list[int]
    vision: Mapping[str, Tensor] = field(default_factory=dict)
    images: tuple[tuple[Image.Image, int, int], ...] = ()
    own_images: bool = False


class Features(Protocol):
    """Interface of a feature cache, as a renderer uses it."""

    def with_features(self, vision: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the processor's output for an image, with features in place of pixels."""
        ...


class Renderer:
    """Render a scheme's turns with a model's processor. All model inputs of training and inference are made here.

    The scheme defines the turns (`reflectune.models.schemes`). Questions, passages and answers are untrusted: they are
    tokenized as plain text, whatever characters they contain. All other ids are those of the whole conversation.

    Args:
        scheme: The scheme, or None for a plain model. Its tokens must be in the tokenizer.
        processor: A transformers processor with a chat template, an image processor and a fast tokenizer.

    Attributes:
        image_token_id: Id of the image placeholder before it is expanded.
        features: If set, images are rendered as cached features, which the model must be able to read.
        keeps_lines: True if `strip` keeps a reply's line breaks.

    Raises:
        UserError: The processor lacks a part, or its chat template can't be continued turn by turn.
    """

    def __init__(self, scheme: Vocabulary | None, processor: Any) -> None:
        check_has_template(processor)
        self.scheme, self.tokenizer = scheme, processor.tokenizer
        self.processor = processor
        self.reflection_tokens: tuple[str, ...] = tuple(scheme.tokens.values()) if scheme else ()
        self._safe = SafeTokenizer(self.tokenizer, owned=(self.processor.image_token, *self.reflection_tokens))
        self.image_token_id: int = self.tokenizer.convert_tokens_to_ids(self.processor.image_token)
        self.line_breaks = LineBreaks(self.tokenizer)
        self.features: Features | None = None
        self.keeps_lines = False
        self._closing = ""
        self.end_token_id = self._find_end()
        self.token_ids: Mapping[str, int] = self._find_tokens()

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the ids of a text: scheme, chat template and tokenizer."""
        parts = [self.scheme, self.processor.chat_template, self.tokenizer.backend_tokenizer.to_str()]
        return fingerprint(parts)

    def token_id(self, role: str) -> int:
        """Return the id of a special token, by role (`retrieve`, `no_retrieve`, `relevant`, `irrelevant`)."""
        if role not in self.token_ids:
            if self.reflection_tokens:
                known = ", ".join(self.token_ids)
                raise UserError(f"the model's scheme has no token for `{role}`; it has {known}: add it to the scheme")
            raise UserError(
                f"the model has no `{role}` token, since it was loaded without a scheme; set one, e.g. mr2ag"
            )
        return self.token_ids[role]

    def ids_of(self, *roles: str) -> list[int]:
        """Return the ids of several special tokens, by role."""
        return [self.token_id(role) for role in roles]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids, with special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()

    def strip(self, text: str) -> str:
        """Return a decoded reply without the scheme's tokens and runs of spaces; one line unless `keeps_lines`."""
        lines = text.splitlines() if self.keeps_lines else [text]
        stripped = [self.scheme.strip(line) if self.scheme else " ".join(line.split()) for line in lines]
        return "\n".join(stripped).strip()

    # Sequences from the beginning.

    def prefix(self, question: str, image: Image.Image) -> Rendered:
        """Return image and question, up to the assistant's cue: the assistant's first token comes next."""
        return self.conversation(question_turns(), {"question": question}, image)

    def conversation(self, turns: Turns, texts: Texts, image: Images) -> Rendered:
        """Render a whole conversation about an image; the assistant's cue follows the user's turn.

        Args:
            turns: The whole conversation.
            texts: Texts of its slots.
            image: The image, or several in order; None if no turn has one.
        """
        return self._read(self._chunks(turns, cue=turns[-1].role == "user"), texts, image)

    def conversations(self, turns: Turns, texts: Sequence[Texts], image: Images) -> tuple[Rendered, list[list[int]]]:
        """Return the common prefix of conversations that differ in slot texts, and the continuation of each."""
        chunks = self._chunks(turns, cue=turns[-1].role == "user")
        rows = [self._safe.encode_from_start(fill_slots(chunks, row_texts)) for row_texts in texts]
        shared = common_prefix([row[:-1] for row in rows])
        return self._question(shared, texts[0], image), [row[len(shared) :] for row in rows]

    def under_system(self, words: str, turn: Turn) -> Turns:
        """Return a system and a user turn; if the chat template has no system turn, its words begin the user's."""
        if not words:
            return (turn,)
        if self._has_system_turn:
            return (Turn("system", (words,)), turn)
        return (dataclasses.replace(turn, parts=(words, "\n\n", *turn.parts)),)

    def question_prefix(self, question: str, image: Image.Image) -> Rendered:
        """Return image and question, inside the user's turn: the common prefix of all prompts about the question."""
        chunks = self._chunks(answer_turns(self._prompts, "short", documents=False), cue=True)
        return self._read(chunks[: chunks.index(QUESTION) + 1], {"question": question}, image)

    def plain(
        self, question: str, image: Images, passages: Sequence[Passage] = (), style: AnswerStyle = "short"
    ) -> Rendered:
        """Render one user turn without reflection: images, question, passages, instruction, and the assistant's cue."""
        (turn,) = answer_turns(self._prompts, style, documents=bool(passages))
        turn = dataclasses.replace(turn, parts=(*further_images(len(each_image(image))), *turn.parts))
        return self.conversation((turn,), {"question": question, "passage": documents_text(passages)}, image)

    def document(self, chunks: Chunks, texts: Texts, image: Image.Image | None = None) -> Rendered:
        """Render text outside of a conversation, such as an embedder's prompt.

        Args:
            chunks: Trusted text, in which special tokens count, and slots for untrusted text.
            texts: Texts of the slots.
            image: The image of the image token in `chunks`, if it has one.
        """
        trusted = tuple(part if isinstance(part, Slot) else self._safe.trust(part) for part in chunks)
        ids = self._safe.encode_from_start(fill_slots(trusted, texts))
        return Rendered(ids, [IGNORE] * len(ids)) if image is None else self._with_images(ids, [image])

    def template(self, turns: Turns) -> Chunks:
        """Return the text of a conversation up to the assistant's cue, with special tokens in their usual form."""
        first, *rest = self._chunks(turns, cue=True)
        assert isinstance(first, str)  # a chat template begins with text or the image
        return (self._safe.from_start(first), *(c if isinstance(c, Slot) else self._safe.show(c) for c in rest))

    # Continuations of a prefix.

    def after_prefix(self, turns: Turns, texts: Texts) -> list[int]:
        """Return the ids between `prefix` and the assistant's next cue.

        Args:
            turns: The whole conversation, from `question_turns` to a user turn.
            texts: Texts of its slots, without the question.
        """
        return self._safe.encode_continuation(fill_slots(self._after_gate(turns, cue=True), texts))

    def after_question(self, turns: Turns, texts: Texts) -> list[int]:
        """Return the ids between `question_prefix` and the assistant's cue.

        Args:
            turns: One user turn, which begins with the question.
            texts: Texts of its slots, without the question.
        """
        chunks = self._chunks(turns, cue=True)
        return self._safe.encode_continuation(fill_slots(chunks[chunks.index(QUESTION) + 1 :], texts))

    def supervised(self, turns: Turns, texts: Texts) -> Supervised:
        """Return the ids after `prefix`, and their labels: every assistant turn is supervised.

        Args:
            turns: The whole conversation, up to an assistant turn. Each reply begins with a token of the scheme.
            texts: Texts of its slots, without the question.
        """
        ids = self._safe.encode_continuation(fill_slots(self._after_gate(turns), texts))
        labels, in_reply, end = [], False, 0
        for index, token in enumerate(ids):  # untrusted text can't contain these tokens, so ids identify them
            in_reply = in_reply or token in self._reply_ids
            labels.append(token if in_reply else IGNORE)
            if in_reply and token == self.end_token_id:
                in_reply, end = False, index + 1
        return ids[:end], labels[:end]  # without the template's text after the last end of turn

    def after_reply(self, result: str) -> list[int]:
        """Return the ids of a tool's result: from after a reply's end token to the assistant's next cue."""
        chunks = self._chunks((*question_turns(), Turn("assistant", (ANSWER,)), result_turn(0)), cue=True)
        ids = self._safe.encode_continuation(fill_slots(chunks[chunks.index(ANSWER) + 1 :], {"result_0": result}))
        return ids[ids.index(self.end_token_id) + 1 :]

    @functools.lru_cache(maxsize=16)  # noqa: B019  a renderer lives as long as its model
    def shared_beginning(self, turns: Turns) -> tuple[int, ...]:
        """Return the common prefix of `after_prefix` with these turns, whatever the texts."""
        chunks = self._after_gate(turns, cue=True)
        slots = [part.name for part in chunks if isinstance(part, Slot)]
        probes = [
            self._safe.encode_continuation(fill_slots(chunks, dict.fromkeys(slots, text)))
            for text in ("The", "a", "1", "«", "木")
        ]
        return tuple(common_prefix(probes))

    def reply_ids(self, text: str) -> list[int]:
        """Return the ids of a reply after the assistant's cue, with the end token: those to score and to train on."""
        reply = self._before_reply + SafeTokenizer.clean(text)
        return [*self._safe.encode_continuation(reply, self._cue), self.end_token_id]

    # Implementation.

    @functools.cached_property
    def _cue(self) -> str:
        """Text of the chat template between the user's last words and the assistant's reply."""
        return str(self._chunks(question_turns(), cue=True)[-1])

    @functools.cached_property
    def _has_system_turn(self) -> bool:
        return has_system_turn(self.processor)

    @functools.cached_property
    def _before_reply(self) -> str:
        return before_reply(self.processor)

    @functools.cached_property
    def _gap(self) -> str:
        """Separator between a reflection token and the answer, so that the answer is tokenized as after the cue.

        It is the template's text between cue and reply. It is empty if the tokenizer itself begins a new word after
        special tokens, as Llama 2's does: a space would be an extra token there.
        """
        word = self.reply_ids("a")[:-1]
        for gap in (self._before_reply, ""):
            continuations = [
                self._safe.encode_continuation(self._safe.trust(t) + gap + "a") for t in self.reflection_tokens
            ]
            if all(ids[1:] == word for ids in continuations):
                return gap
        return self._before_reply

    @functools.cached_property
    def _reply_ids(self) -> frozenset[int]:
        return frozenset(self.token_ids[role] for role in self.scheme.replies) if self.scheme else frozenset()

    def _read(self, chunks: Chunks, texts: Texts, image: Images) -> Rendered:
        """Encode a conversation from its beginning."""
        return self._question(self._safe.encode_from_start(fill_slots(chunks, texts)), texts, image)

    def _question(self, ids: list[int], texts: Texts, image: Images) -> Rendered:
        """Check that the question isn't empty and that its images match the placeholders, and expand them."""
        if not texts["question"].strip():
            raise UnusableInput("a question is empty; give it a text, or leave it out")
        if self.image_token_id not in ids:
            return Rendered(ids, [IGNORE] * len(ids))
        if image is None:
            raise UnusableInput(f"the question `{texts['question']}` has no image; every question needs one")
        images = each_image(image)
        placeholders = ids.count(self.image_token_id)
        if len(images) != placeholders:
            raise UnusableInput(
                f"the question `{texts['question']}` has {len(images)} images for {placeholders} placeholders"
            )
        return self._with_images(ids, images)

    def _with_images(self, ids: list[int], images: Sequence[Image.Image]) -> Rendered:
        """Return a sequence with the images' placeholders expanded by the processor."""
        from reflectune.models.attention.collation import join_vision  # imports torch

        processed = [self._process(image) for image in images]
        visions = [self.features.with_features(vision) if self.features else vision for _, vision in processed]
        placeholders = [index for index, token in enumerate(ids) if token == self.image_token_id]
        ranges, offset = [], 0
        for image, index, (expansion, _) in zip(images, placeholders, processed, strict=True):
            start = index + offset
            before, image_ids, after = self.line_breaks.join(ids[:start], expansion, ids[start + 1 :])
            offset += len(before) + len(image_ids) + len(after) - len(ids)
            ids = [*before, *image_ids, *after]
            ranges.append((image, len(before), len(before) + len(image_ids)))
        vision = visions[0] if len(visions) == 1 else join_vision(visions)
        return Rendered(ids, [IGNORE] * len(ids), vision, tuple(ranges))

    @functools.cached_property
    def expansion(self) -> Expansion:
        """The tokens of an expanded image placeholder."""
        return Expansion.of(self._process(Image.new("RGB", (64, 64)))[0])

    def preparer(self) -> Callable[[Image.Image], None]:
        """Return a function that processes an image in advance, in any thread; prompts with it use the result."""
        spare = self._spare
        return lambda image: keep_ready(image, self, _processed(spare, image))

    @functools.cached_property
    def _spare(self) -> Any:
        """A copy of the processor for other threads: a tokenizer fails if two threads change its settings."""
        spare = copy.deepcopy(self.processor)
        _processed(spare, Image.new("RGB", (64, 64)))  # after the first call its settings don't change
        return spare

    def vision(self, image: Image.Image) -> dict[str, Tensor]:
        """Return the processor's output for an image, with pixels."""
        return self._process(image)[1]

    def _process(self, image: Image.Image) -> tuple[list[int], dict[str, Tensor]]:
        ids, vision = ready_for(image, self) or _processed(self.processor, image)
        return [*ids], {**vision}

    def _after_gate(self, turns: Turns, *, cue: bool = False) -> Chunks:
        """Return the template's text after `prefix` for these turns, in chunks."""
        return self._difference(question_turns(), turns, cue)

    @functools.lru_cache(maxsize=256)  # noqa: B019
    def _difference(self, before: Turns, turns: Turns, cue: bool) -> Chunks:
        start, whole = self._render(before, cue=True), self._render(turns, cue=cue)
        if not whole.startswith(start):
            raise UserError(
                "this model's chat template changes earlier turns when a conversation continues, so a prefix can't be "
                f"shared; expected the conversation to begin with {start!r}, found {whole!r}; set another template"
            )
        return cut_at_slots(whole[len(start) :])

    @functools.lru_cache(maxsize=256)  # noqa: B019
    def _chunks(self, turns: Turns, *, cue: bool) -> Chunks:
        return cut_at_slots(self._render(turns, cue=cue))

    def _render(self, turns: Turns, *, cue: bool) -> str:
        """Apply the chat template: slots are marked, and our special tokens have their secret names."""
        messages = [{"role": t.role, "content": content(t, lambda: self._gap, self._closing)} for t in turns]
        try:
            text = self.processor.apply_chat_template(messages, add_generation_prompt=cue, tokenize=False)
        except (jinja2.TemplateError, TypeError, ValueError) as error:  # ValueError: no template
            raise UserError(f"this model's chat template can't take an image and a text ({error}); {ADVICE}") from error
        marks = [slot_mark(part) for turn in turns for part in turn.parts if isinstance(part, Slot)]
        lost = [mark for mark in marks if text.count(mark) != 1]
        shown = sum(turn.image + turn.parts.count(IMAGE) for turn in turns)
        if lost or text.count(self.processor.image_token) != shown:
            raise UserError(
                f"this model's chat template must show every text and image ({self.processor.image_token}) once; "
                f"it made {text!r} of {messages!r}"
            )
        return self._safe.trust(text)

    def _find_end(self) -> int:
        """Return the id that ends the assistant's turn: the template's, or else (LLaVA-1.5) the tokenizer's."""
        turns = (*question_turns(), Turn("assistant", (ANSWER,)))
        whole = self._render(turns, cue=False)
        ends = self._safe.specials_in(whole[whole.index(slot_mark(ANSWER)) :])
        if ends:
            return ends[0]
        self._closing = self.tokenizer.eos_token or ""
        if not self._closing:
            raise UserError("the model's chat template doesn't end a turn and its tokenizer has no end token; set one")
        return self.tokenizer.eos_token_id

    def _find_tokens(self) -> dict[str, int]:
        """Return the scheme's token ids by role. A reply's token must follow the assistant's cue directly."""
        ids_by_role: dict[str, int] = {}
        for role, token in self.scheme.tokens.items() if self.scheme else ():
            text = self._safe.trust(token)
            if self.scheme and role in self.scheme.replies:
                text = fill_slots(self._after_gate((*question_turns(), Turn("assistant", (token,)))), {})
            first = self._safe.encode_continuation(text)[:1]
            ids_by_role[role] = self.tokenizer.convert_tokens_to_ids(token)
            if first != [ids_by_role[role]] or ids_by_role[role] == self.tokenizer.unk_token_id:
                before = self._before_reply
                fix = f"load the model with scheme={self.scheme.name if self.scheme else ''}, which adds it"
                if before.strip(" "):
                    fix = f"the chat template writes {before!r} before each reply: set one that writes nothing there"
                raise UserError(f"the tokenizer doesn't read {token} as one token after the assistant's cue; {fix}")
        return ids_by_role

    @property
    def _prompts(self) -> Mapping[str, str]:
        return self.scheme.prompts if self.scheme else ANSWER_PROMPTS


_NOT_VISION = frozenset({"attention_mask", "mm_token_type_ids", "token_type_ids"})


def _processed(processor: Any, image: Image.Image) -> tuple[list[int], dict[str, Tensor]]:
    """Return the ids of an image's tokens, and its vision tensors."""
    from reflectune.models.rendering.image_fitting import call_processor  # imports torch

    inputs = call_processor(processor, image, text=[processor.image_token], add_special_tokens=False)
    ids = inputs.pop("input_ids")[0].tolist()
    return ids, {name: value for name, value in inputs.items() if name not in _NOT_VISION}

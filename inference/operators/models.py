"""Models that execute steps: a local one with the shared-prefix engine, or one behind an OpenAI-compatible server."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reflectune.core.errors import UserError
from reflectune.core.images import Images, each_image
from reflectune.inference.operators.pair_images import PairImages
from reflectune.inference.operators.parsing import label, response_format
from reflectune.inference.operators.requests import (
    JudgeEachReply,
    JudgeEachRequest,
    JudgeReply,
    Prompt,
    WriteOperator,
    WriteReply,
    WriteRequest,
    YesNoRequest,
    run_slot,
)
from reflectune.models.remote.client import AllRefused, Messages, NoLogProbabilities, RemoteModel, is_word
from reflectune.models.remote.images import ImageUrls
from reflectune.models.rendering.renderer import IGNORE, Rendered
from reflectune.models.rendering.turns import (
    IMAGE,
    ImageSlot,
    Slot,
    Turn,
    Turns,
    earlier_turns,
    fit_leading,
    further_images,
    prompt_parts,
    round_turns,
)
from reflectune.models.rendering.untrusted import common_prefix

if TYPE_CHECKING:  # slow to import
    from reflectune.models.prefix.interface import Engine

DOCUMENTS: Final = Slot("documents")
AboutImage = tuple[Images, Prompt]
"""The image or images of a question, and a prompt about them."""

Reply = TypeVar("Reply", WriteReply, JudgeReply)

_MIN_ANSWERED = 0.1
"""A judgement is meaningless if the probabilities of both words sum to less than this."""


class LocalModel:
    """A model on this machine, run by the engine. Steps reuse an image's prefix while the engine caches it.

    Args:
        engine: The model's engine.
        batch_size: Maximum prompts of a batch, and minimum number of images whose prefixes the engine caches.
        pair_images: Images of documents, if prompts show them.
    """

    def __init__(self, engine: Engine, batch_size: int, pair_images: PairImages | None = None) -> None:
        self._engine, self._renderer, self._pair_images = engine, engine.renderer, pair_images
        self._batch_size = max(batch_size, 1)
        engine.image_prefixes.keep(batch_size)

    def write(self, prompts: Sequence[AboutImage], max_tokens: int) -> list[WriteReply]:
        """Generate a greedy reply to each prompt, with the leading documents that fit the context.

        Raises:
            UserError: A prompt is too long even without documents.
        """
        if len(prompts) > self._batch_size:
            return [reply for batch in self._batches(prompts) for reply in self.write(batch, max_tokens)]
        fitted = [self.fit(image, prompt, max_tokens) for image, prompt in prompts]
        prefixes = self._engine.read([rendered for _, rendered in fitted])
        generations = self._engine.generate(prefixes, [(i, 0) for i in range(len(prompts))], max_new_tokens=max_tokens)
        self._engine.check_numbers(*(generation.score for generation in generations))
        return [
            WriteReply(
                self._lines(generation.text),
                shown=shown,
                read=len(rendered.ids),
                tokens=len(generation.token_ids),
                finished=generation.finished,
                score=generation.score,
                shared=self._shared(rendered),
            )
            for generation, (shown, rendered) in zip(generations, fitted, strict=True)
        ]

    def judge(self, prompts: Sequence[AboutImage], yes: str, no: str) -> list[JudgeReply]:
        """Compute P(yes) and P(no) of each prompt in one forward pass, at the first token in which the words differ.

        Raises:
            UserError: The tokens of one word are a prefix of the other's, or a prompt is too long.
        """
        if len(prompts) > self._batch_size:
            return [reply for batch in self._batches(prompts) for reply in self.judge(batch, yes, no)]
        same, ids = self._distinguishing_tokens(yes, no)
        fitted = [self.fit(image, prompt, len(same) + 1) for image, prompt in prompts]
        fitted = [
            (
                shown,
                dataclasses.replace(
                    rendered, ids=[*rendered.ids, *same], labels=[*rendered.labels, *(IGNORE for _ in same)]
                ),
            )
            for shown, rendered in fitted
        ]
        prefixes = self._engine.read([rendered for _, rendered in fitted])
        return [
            JudgeReply(pair[0], pair[1], shown, len(rendered.ids), self._shared(rendered))
            for pair, (shown, rendered) in zip(prefixes.probabilities(ids).tolist(), fitted, strict=True)
        ]

    def judge_each(self, prompts: Sequence[AboutImage], yes: str, no: str) -> list[JudgeEachReply]:
        """Compute P(yes) and P(no) for each document alone, branching from the question's shared prefix; see `judge`.

        Raises:
            UserError: The tokens of one word are a prefix of the other's, or a prompt without a document is too long.
        """
        same, ids = self._distinguishing_tokens(yes, no)
        read = [self._branches(image, prompt) for image, prompt in prompts]
        room = self._engine.max_length - len(same)
        fitting_branches = [
            [k for k, branch in enumerate(branches) if len(prefix.ids) + len(branch) < room]
            for prefix, branches in read
        ]
        prefixes = self._engine.read([prefix for prefix, _ in read])
        state = self._engine.branch(
            prefixes,
            [
                [[*branches[k], *same] for k in fitting]
                for (_, branches), fitting in zip(read, fitting_branches, strict=True)
            ],
        )
        replies = []
        for (prefix, branches), fitting, pairs in zip(read, fitting_branches, state.probabilities(ids), strict=True):
            judgements = [JudgeReply(0.0, 0.0)] * len(branches)
            for k, pair in zip(fitting, pairs.tolist(), strict=True):
                judgements[k] = JudgeReply(pair[0], pair[1], 1, len(branches[k]) + len(same))
            tokens = len(prefix.ids) + sum(judgement.read for judgement in judgements)
            replies.append(JudgeEachReply(tuple(judgements), tokens, self._shared(prefix)))
        return replies

    def fit(self, image: Images, prompt: Prompt, max_tokens: int) -> tuple[int, Rendered]:
        """Return the number of a prompt's documents that leave room for a reply, and the prompt with them."""

        def render(count: int) -> Rendered:
            paths = prompt.shown_images(count)
            turns = self._turns(prompt, len(paths))
            if not paths:
                return self._renderer.conversation(turns, prompt.text(count), image)
            images = [*each_image(image)] if prompt.image else []
            images += [_needed(self._pair_images).load(path) for path in paths]
            rendered = self._renderer.conversation(turns, prompt.text(count), images)
            return dataclasses.replace(rendered, own_images=True)

        room = self._engine.max_length - max_tokens
        return fit_leading(render, prompt.droppable, room, length=lambda rendered: len(rendered.ids))

    def _batches(self, prompts: Sequence[AboutImage]) -> list[Sequence[AboutImage]]:
        """Split prompts into batches."""
        return [prompts[start : start + self._batch_size] for start in range(0, len(prompts), self._batch_size)]

    def _lines(self, reply: str) -> str:
        """Strip reflection tokens and runs of spaces from each line of a decoded reply, and keep the line breaks."""
        return "\n".join(filter(None, map(self._renderer.strip, reply.splitlines())))

    def _shared(self, rendered: Rendered) -> int:
        """Return the length of the prefix that ends with the image, which the engine caches; 0 without an image."""
        from reflectune.models.prefix.image_prefix import split_after_images  # slow to import

        parts = split_after_images(rendered, self._renderer.expansion.token)
        return 0 if parts is None else len(parts[0].ids)

    def _branches(self, image: Images, prompt: Prompt) -> tuple[Rendered, list[list[int]]]:
        """Return the prefix of a prompt before its documents, and the continuation for each document."""
        texts = [{**prompt.texts, "documents": document} for document in (*prompt.documents, "")]
        prefix, branches = self._renderer.conversations(self._turns(prompt), texts, image)
        return prefix, branches[:-1]

    def _distinguishing_tokens(self, yes: str, no: str) -> tuple[list[int], list[int]]:
        """Return the common first tokens of two words (mostly none), and the first token in which each differs."""
        words = [self._renderer.reply_ids(word)[:-1] for word in (yes, no)]
        same = common_prefix(words)
        if len(same) == min(map(len, words)):
            raise UserError(f"this model's tokenizer can't tell {yes!r} from {no!r} by one token; give other words")
        return same, [word[len(same)] for word in words]

    def _turns(self, prompt: Prompt, images: int = 0) -> Turns:
        parts = _parts_with_images(prompt, images)
        earlier = earlier_turns(prompt.earlier, image=prompt.image)
        first, *others = (*earlier, Turn("user", parts, image=prompt.image and not earlier))
        return (*self._renderer.under_system(prompt.system, first), *others, *round_turns(len(prompt.rounds)))


class ServedModel:
    """A model behind a server. Replies are cached in a file, and never requested twice.

    An image is encoded as a data URL once for all steps. Threads may share a model.

    Args:
        remote: The model's client.
        pair_images: Images of documents, if prompts show them.
        step_models: Other models of the server, by the operator that they execute, as in MI-RAG's Table A4.
    """

    def __init__(
        self,
        remote: RemoteModel,
        pair_images: PairImages | None = None,
        step_models: Mapping[WriteOperator, str] = MappingProxyType({}),
    ) -> None:
        self._remote, self._pair_images, self._step_models = remote, pair_images, step_models
        self._urls = ImageUrls(remote.endpoint.max_pixels)
        self._writes_labels = self._is_settled = False
        self._settling = threading.Lock()

    @property
    def concurrency(self) -> int:
        """Maximum concurrent requests."""
        return self._remote.endpoint.concurrency

    def requests(self, image: Images, request: WriteRequest | YesNoRequest) -> list[Callable[[], Any]]:
        """Return functions that execute a step, for threads to call: one, or one a document for `JudgeEachRequest`.

        The prompts of a `JudgeEachRequest` share a prefix, which a server's prefix cache computes once.
        """
        if isinstance(request, WriteRequest):
            name = self._step_models.get(request.operator, "")
            return [lambda: self._write(image, request.prompt, request.max_tokens, name)]
        prompts = request.prompt.split_documents() if isinstance(request, JudgeEachRequest) else [request.prompt]
        return [functools.partial(self._judge, image, prompt, request.yes, request.no) for prompt in prompts]

    def _write(self, image: Images, prompt: Prompt, max_tokens: int, name: str) -> WriteReply:
        """Request a reply, with fewer documents if the server refuses the prompt; its text is "" if still refused."""
        fields = response_format(prompt.form if self._remote.endpoint.guided else "free")
        fields |= {"model": name} if name else {}

        def ask(fitting: Prompt) -> WriteReply:
            messages = self._conversation(image, fitting)
            (reply,) = self._remote.complete_all([messages], desc="", max_tokens=max_tokens, **fields)
            return WriteReply(
                reply.text,
                0 if reply.refused else fitting.documents_shown,
                reply.prompt_tokens,
                reply.completion_tokens,
                reply.finish != "length" and not reply.refused,
                refused=reply.refused,
            )

        return self._ask_fitting(image, prompt, max_tokens, ask, name)

    def _judge(self, image: Images, prompt: Prompt, yes: str, no: str) -> JudgeReply:
        """Compute P(yes) and P(no) as sums over the server's first tokens that are the word.

        A word outside the top 20 tokens has probability 0. A prompt that the server refuses is sent with fewer
        documents; both are 0 if it is still refused. Warns if a reply begins with other words, as a reasoning model's
        does, since its probabilities are meaningless. Without log-probabilities the written word is parsed
        (`JudgeReply.written`).

        Raises:
            UserError: The server returns NaN; or the words differ only by case or punctuation.
        """
        if is_word(yes, no):
            raise UserError(
                f"{yes!r} and {no!r} differ only by case or punctuation, so a first token can't tell them apart; "
                "choose other words"
            )

        def ask(fitting: Prompt) -> JudgeReply:
            with self._settling:  # requests are sent one by one until it is known if there are log-probabilities
                if not self._is_settled:
                    return self._request_judgement(image, fitting, yes, no)
            return self._request_judgement(image, fitting, yes, no)

        return self._ask_fitting(image, prompt, self._remote.endpoint.max_tokens, ask)

    def _request_judgement(self, image: Images, prompt: Prompt, yes: str, no: str) -> JudgeReply:
        conversation = self._conversation(image, prompt)
        if self._writes_labels:
            return self._judge_by_label(prompt, conversation, yes, no)
        try:
            (reply,) = self._remote.log_probabilities([conversation], [yes, no], desc="")
        except (NoLogProbabilities, AllRefused) as error:
            if self._is_settled:  # the server returned probabilities before, so it refuses this prompt
                return JudgeReply(0.0, 0.0, refused=str(error))
            return self._judge_by_label(prompt, conversation, yes, no)
        if reply.refused:
            return JudgeReply(0.0, 0.0, refused=reply.refused)
        self._is_settled = True
        probabilities = [math.exp(reply.first_token[word]) if word in reply.first_token else 0.0 for word in (yes, no)]
        if sum(probabilities) < _MIN_ANSWERED:
            warnings.warn(
                f"a reply of {self._remote.endpoint.shown_url} begins with neither {yes!r} nor {no!r} (together "
                f"{sum(probabilities):.2%}), so their ratio is meaningless; use a judge that begins with its answer, "
                'or parse its written word with `llm_options` {"logprobs": null, "top_logprobs": null}',
                stacklevel=2,
            )
        return JudgeReply(probabilities[0], probabilities[1], prompt.documents_shown, reply.prompt_tokens)

    def _judge_by_label(self, prompt: Prompt, conversation: Messages, yes: str, no: str) -> JudgeReply:
        """Judge by the word that the model writes."""
        (reply,) = self._remote.complete_all([conversation], desc="")
        if reply.refused:
            return JudgeReply(0.0, 0.0, 0, reply.prompt_tokens, refused=reply.refused)
        self._writes_labels = self._is_settled = True
        verdict = label(reply.text, yes, no)
        return JudgeReply(
            float(verdict is True),
            float(verdict is False),
            prompt.documents_shown,
            reply.prompt_tokens,
            written=True,
            tokens=reply.completion_tokens,
        )

    def _fitting_documents(self, image: Images, prompt: Prompt, max_tokens: int, name: str) -> int:
        """Return the number of a prompt's documents that leave room for a reply; all if the context is unknown."""
        context, count = self._remote.context_of(name), prompt.droppable

        def render(shown: int) -> Messages:
            return self._conversation(image, dataclasses.replace(prompt, max_documents=shown))

        room = context.longest - max_tokens if count > 1 else 0
        if room <= 0 or context.upper_bound(render(count)) <= room:
            return count
        return fit_leading(render, count, room, least=1, length=context.count)[0]

    def _ask_fitting(
        self, image: Images, prompt: Prompt, max_tokens: int, ask: Callable[[Prompt], Reply], name: str = ""
    ) -> Reply:
        """Call `ask` with the documents that fit; after a refusal with three quarters of them, down to one."""
        count = self._fitting_documents(image, prompt, max_tokens, name)
        while True:
            try:
                reply = ask(dataclasses.replace(prompt, max_documents=count))
            except AllRefused:  # among the first requests of a run
                if count <= 1:
                    raise
            else:
                if not reply.refused or count <= 1:
                    return reply
            count = 3 * count // 4

    def _conversation(self, image: Images, prompt: Prompt) -> Messages:
        paths = prompt.shown_images(prompt.droppable)
        document_images = [self._urls.of(_needed(self._pair_images).load(path)) for path in paths]
        question_images = [self._urls.of(it) for it in each_image(image)] if prompt.image else []
        return conversation(question_images, prompt, document_images)


def conversation(images: Sequence[str], prompt: Prompt, document_images: Sequence[str] = ()) -> Messages:
    """Convert a prompt to messages of the chat completions API.

    Args:
        images: Data URLs of the question's images, which come first.
        prompt: The prompt.
        document_images: Data URLs of the documents' images; each comes before its document.
    """
    texts = prompt.text(prompt.droppable)
    further_urls = iter((*images[1:], *document_images))
    first_image = [_image_content(url) for url in images[:1]]
    earlier: Messages = []
    for turn in earlier_turns(prompt.earlier, image=bool(images)):
        text = _turn_text(turn, texts)
        content = [*first_image, {"type": "text", "text": text}] if turn.image else text
        earlier.append({"role": turn.role, "content": content})
    parts: list[dict[str, Any]] = [] if earlier else first_image
    text = ""
    for part in _parts_with_images(prompt, len(document_images)):
        if isinstance(part, ImageSlot):
            parts += [{"type": "text", "text": text}, _image_content(next(further_urls))]
            text = ""
        else:
            text += part if isinstance(part, str) else texts[part.name]
    parts.append({"type": "text", "text": text})
    system: Messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    rounds = [{"role": turn.role, "content": _turn_text(turn, texts)} for turn in round_turns(len(prompt.rounds))]
    return [*system, *earlier, {"role": "user", "content": parts}, *rounds]


def _turn_text(turn: Turn, texts: Mapping[str, str]) -> str:
    """Return a turn's text, with its slots filled."""
    return "".join(texts[part.name] if isinstance(part, Slot) else str(part) for part in turn.parts)


def _needed(pair_images: PairImages | None) -> PairImages:
    if pair_images is None:
        raise ValueError("a prompt has images of documents, but the model was built without `pair_images` to load them")
    return pair_images


def _image_content(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _parts_with_images(prompt: Prompt, images: int) -> tuple[str | Slot | ImageSlot, ...]:
    """Return a prompt's parts with image slots for the question's further images, and for `images` of documents.

    The text after each image of a document is a slot of its own (`run_slot`).
    """
    further = further_images(1 + prompt.more_images) if prompt.image else ()
    runs = [run for n in range(1, images + 1) for run in (" ", IMAGE, Slot(run_slot(n)))]
    parts = prompt_parts(prompt.template)
    return (*further, *(it for part in parts for it in ((part, *runs) if part == DOCUMENTS else (part,))))

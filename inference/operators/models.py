"""Models that execute steps: a local one with the shared-prefix engine, or one behind an OpenAI-compatible server."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reflectune.core.errors import UserError
from reflectune.inference.operators.pair_pictures import PairPictures
from reflectune.inference.operators.parsing import label
from reflectune.inference.operators.requests import (
    Form,
    JudgeEachReply,
    JudgeReply,
    Picture,
    Prompt,
    WriteReply,
    run_slot,
)
from reflectune.inference.operators.schemas import response_format
from reflectune.models.remote.client import AllRefused, Messages, NoLogProbabilities, RemoteModel, RemoteReply, is_word
from reflectune.models.remote.pictures import PictureUrls
from reflectune.models.rendering.renderer import IGNORE, Rendered
from reflectune.models.rendering.turns import (
    PICTURE,
    PictureSlot,
    Slot,
    Turn,
    Turns,
    fit_leading,
    prompt_parts,
    round_turns,
)
from reflectune.models.rendering.untrusted import common_prefix

if TYPE_CHECKING:  # slow to import
    from reflectune.models.prefix.interface import Engine

DOCUMENTS: Final = Slot("documents")
AboutPicture = tuple[Picture, Prompt]
"""The picture of a question, and a prompt about it."""

Reply = TypeVar("Reply", WriteReply, JudgeReply)

_LEAST_ANSWERED = 0.1
"""Probability of both words below which a judgement says nothing."""


class LocalModel:
    """A model that reads with the engine. A picture's prefix is reused by all steps while the engine caches it.

    Args:
        engine: The model's engine.
        pictures: Questions of a batch: most prompts that are read at a time, and fewest pictures that are cached.
        of_pairs: Pictures of documents, if prompts show them.
    """

    def __init__(self, engine: Engine, pictures: int, of_pairs: PairPictures | None = None) -> None:
        self._engine, self._renderer, self._of_pairs = engine, engine.renderer, of_pairs
        self._at_a_time = max(pictures, 1)
        engine.image_prefixes.keep(pictures)

    def write(self, prompts: Sequence[AboutPicture], max_tokens: int) -> list[WriteReply]:
        """Generate a greedy reply to each prompt, with the leading documents that fit the context.

        Raises:
            UserError: A prompt is too long even without documents.
        """
        if len(prompts) > self._at_a_time:
            return [reply for some in self._parts(prompts) for reply in self.write(some, max_tokens)]
        fitted = [self.fit(image, prompt, max_tokens) for image, prompt in prompts]
        prefixes = self._engine.read([rendered for _, rendered in fitted])
        made = self._engine.generate(prefixes, [(i, 0) for i in range(len(prompts))], max_new_tokens=max_tokens)
        self._engine.check_numbers(*(generation.score for generation in made))
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
            for generation, (shown, rendered) in zip(made, fitted, strict=True)
        ]

    def judge(self, prompts: Sequence[AboutPicture], yes: str, no: str) -> list[JudgeReply]:
        """Compute P(yes) and P(no) of each prompt in one forward pass, at the first token in which the words differ.

        Raises:
            UserError: The tokens of one word are a prefix of the other's, or a prompt is too long.
        """
        if len(prompts) > self._at_a_time:
            return [reply for some in self._parts(prompts) for reply in self.judge(some, yes, no)]
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

    def judge_each(self, prompts: Sequence[AboutPicture], yes: str, no: str) -> list[JudgeEachReply]:
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

    def fit(self, image: Picture, prompt: Prompt, max_tokens: int) -> tuple[int, Rendered]:
        """Return the number of a prompt's documents that leave room for a reply, and the prompt with them."""

        def render(count: int) -> Rendered:
            paths = prompt.shown_pictures(count)
            turns = self._turns(prompt, len(paths))
            if not paths:
                return self._renderer.conversation(turns, prompt.text(count), image)
            images = [image] if prompt.picture and image is not None else []
            images += [_needed(self._of_pairs).load(path) for path in paths]
            rendered = self._renderer.conversation(turns, prompt.text(count), images)
            return dataclasses.replace(rendered, own_pictures=True)

        room = self._engine.max_length - max_tokens
        return fit_leading(render, prompt.parts, room, length=lambda rendered: len(rendered.ids))

    def _parts(self, prompts: Sequence[AboutPicture]) -> list[Sequence[AboutPicture]]:
        """Cut prompts into those that are read at a time."""
        return [prompts[start : start + self._at_a_time] for start in range(0, len(prompts), self._at_a_time)]

    def _lines(self, reply: str) -> str:
        """Strip reflection tokens and runs of spaces from each line of a decoded reply, and keep the line breaks."""
        return "\n".join(filter(None, map(self._renderer.strip, reply.splitlines())))

    def _shared(self, rendered: Rendered) -> int:
        """Return the number of tokens up to just after the picture, which the engine caches; 0 without a picture."""
        from reflectune.models.prefix.image_prefix import split_after_images  # slow to import

        parts = split_after_images(rendered, self._renderer.image_token_id)
        return 0 if parts is None else len(parts[0].ids)

    def _branches(self, image: Picture, prompt: Prompt) -> tuple[Rendered, list[list[int]]]:
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

    def _turns(self, prompt: Prompt, pictures: int = 0) -> Turns:
        parts = documents_parts(prompt_parts(prompt.template), pictures)
        turn = Turn("user", parts, image=prompt.picture)
        return (*self._renderer.under_system(prompt.system, turn), *round_turns(len(prompt.rounds)))


class ServedModel:
    """A model on a server. Replies are cached in a file, and never requested twice.

    A picture is encoded once for all steps about it.

    Args:
        remote: The model's client.
        of_pairs: Pictures of documents, if prompts show them.
    """

    def __init__(self, remote: RemoteModel, of_pairs: PairPictures | None = None) -> None:
        self._remote, self._of_pairs = remote, of_pairs
        self._urls = PictureUrls(remote.endpoint.max_pixels)
        self._writes_labels = False

    def write(self, prompts: Sequence[AboutPicture], max_tokens: int) -> list[WriteReply]:
        """Request a reply to each prompt, with fewer documents where a server refuses it; "" if still refused."""
        return self._fitted(prompts, max_tokens, lambda asked: self._write(asked, max_tokens))

    def _write(self, prompts: Sequence[AboutPicture], max_tokens: int) -> list[WriteReply]:
        replies: dict[int, RemoteReply] = {}
        for form in dict.fromkeys(self._form(prompt) for _, prompt in prompts):
            places = [place for place, (_, prompt) in enumerate(prompts) if self._form(prompt) == form]
            asked = [self._conversation(*prompts[place]) for place in places]
            fields = {"max_tokens": max_tokens, **response_format(form)}
            replies |= zip(places, self._remote.complete_all(asked, desc="", **fields), strict=True)
        return [_written(replies[place], prompt) for place, (_, prompt) in enumerate(prompts)]

    def judge(self, prompts: Sequence[AboutPicture], yes: str, no: str) -> list[JudgeReply]:
        """Compute P(yes) and P(no) of each prompt: the server's probabilities of all first tokens that are the word.

        A prompt that the server refuses has fewer documents. 0 if it still is, and for a word outside the top 20. Warns
        if a reply begins with other words, as a reasoning model's does: such a judgement is meaningless. A server
        without log-probabilities writes the word (`JudgeReply.written`).

        Raises:
            UserError: The server returns NaN; or the words differ by case or marks only.
        """
        if is_word(yes, no):
            raise UserError(f"{yes!r} and {no!r} are one word for a server's first token; give other words")
        return self._fitted(prompts, self._remote.endpoint.max_tokens, lambda asked: self._judge(asked, yes, no))

    def _judge(self, prompts: Sequence[AboutPicture], yes: str, no: str) -> list[JudgeReply]:
        conversations = [self._conversation(image, prompt) for image, prompt in prompts]
        if self._writes_labels:
            return self._labels(prompts, conversations, yes, no)
        try:
            replies = self._remote.log_probabilities(conversations, [yes, no], desc="")
        except (NoLogProbabilities, AllRefused):
            return self._labels(prompts, conversations, yes, no)
        firsts = [reply.first_token for reply in replies]
        likely = [[math.exp(first[word]) if word in first else 0.0 for word in (yes, no)] for first in firsts]
        answered = [pair for pair, reply in zip(likely, replies, strict=True) if not reply.refused]
        if any(sum(pair) < _LEAST_ANSWERED for pair in answered):
            warnings.warn(
                f"a reply of {self._remote.endpoint.shown_url} begins with neither {yes!r} nor {no!r} (together "
                f"{min(map(sum, answered)):.2%}), so that their share says nothing; judge with a model that answers at "
                "once",
                stacklevel=2,
            )
        return [
            JudgeReply(pair[0], pair[1], 0 if reply.refused else prompt.documents_shown, refused=reply.refused)
            for pair, reply, (_, prompt) in zip(likely, replies, prompts, strict=True)
        ]

    def _labels(
        self, prompts: Sequence[AboutPicture], conversations: Sequence[Messages], yes: str, no: str
    ) -> list[JudgeReply]:
        """Judge by the word that the model writes."""
        replies = self._remote.complete_all(conversations, desc="")
        self._writes_labels = self._writes_labels or any(not reply.refused for reply in replies)
        labels = [None if reply.refused else label(reply.text, yes, no) for reply in replies]
        return [
            JudgeReply(
                float(said is True),
                float(said is False),
                0 if reply.refused else prompt.documents_shown,
                reply.prompt_tokens,
                refused=reply.refused,
                written=not reply.refused,
            )
            for said, reply, (_, prompt) in zip(labels, replies, prompts, strict=True)
        ]

    def judge_each(self, prompts: Sequence[AboutPicture], yes: str, no: str) -> list[JudgeEachReply]:
        """Judge each document alone. The prompts share a prefix, which a server's prefix cache reads once.

        Raises:
            UserError: The server returns no log-probabilities.
        """
        alone = [
            (image, dataclasses.replace(prompt, documents=(document,)))
            for image, prompt in prompts
            for document in prompt.documents
        ]
        judged = iter(self.judge(alone, yes, no))
        return [JudgeEachReply(tuple(itertools.islice(judged, len(prompt.documents)))) for _, prompt in prompts]

    def _room(self, image: Picture, prompt: Prompt, max_tokens: int) -> int:
        """Return the number of a prompt's documents that leave room for a reply; all if the context is unknown."""
        context, parts = self._remote.context, prompt.parts

        def render(count: int) -> Messages:
            return self._conversation(image, dataclasses.replace(prompt, most=count))

        room = context.longest - max_tokens if parts > 1 else 0
        if room <= 0 or context.at_most(render(parts)) <= room:
            return parts
        return fit_leading(render, parts, room, least=1, length=context.count)[0]

    def _fitted(
        self,
        prompts: Sequence[AboutPicture],
        max_tokens: int,
        ask: Callable[[Sequence[AboutPicture]], Sequence[Reply]],
    ) -> list[Reply]:
        """Ask about prompts with the documents that fit; about a refused one again with three quarters, down to one."""
        kept = [self._room(image, prompt, max_tokens) for image, prompt in prompts]
        replies = dict[int, Reply]()
        waiting = [*range(len(prompts))]
        while waiting:
            asked = [
                (image, dataclasses.replace(prompt, most=kept[place]))
                for place in waiting
                for image, prompt in [prompts[place]]
            ]
            try:
                replies |= zip(waiting, ask(asked), strict=True)
            except AllRefused:  # the first requests of a run, each too long
                if max(kept[place] for place in waiting) <= 1:
                    raise
            waiting = [it for it in waiting if it not in replies or (replies[it].refused and kept[it] > 1)]
            for place in waiting:
                kept[place] = 3 * kept[place] // 4 if kept[place] > 1 else kept[place]
        return [replies[place] for place in range(len(prompts))]

    def _form(self, prompt: Prompt) -> Form:
        """Return the form that a reply is constrained to; `free` unless the server does so."""
        return prompt.form if self._remote.endpoint.guided else "free"

    def _conversation(self, image: Picture, prompt: Prompt) -> Messages:
        paths = prompt.shown_pictures(prompt.parts)
        of_pairs = [self._urls.of(_needed(self._of_pairs).load(path)) for path in paths]
        return conversation(self._urls.of(image) if prompt.picture and image is not None else "", prompt, of_pairs)


def conversation(picture: str, prompt: Prompt, of_documents: Sequence[str] = ()) -> Messages:
    """Convert a prompt to the messages of the protocol.

    Args:
        picture: Data URL of the question's picture, which comes first; "" for none.
        prompt: The prompt.
        of_documents: Data URLs of the documents' pictures; each stands before its document.
    """
    texts, urls = prompt.text(prompt.parts), iter(of_documents)
    content: list[dict[str, Any]] = [_shown(picture)] if picture else []
    words = ""
    for part in documents_parts(prompt_parts(prompt.template), len(of_documents)):
        if isinstance(part, PictureSlot):
            content += [{"type": "text", "text": words}, _shown(next(urls))]
            words = ""
        else:
            words += part if isinstance(part, str) else texts[part.name]
    system: Messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    later = [
        {"role": turn.role, "content": "".join(texts[p.name] if isinstance(p, Slot) else str(p) for p in turn.parts)}
        for turn in round_turns(len(prompt.rounds))
    ]
    return [*system, {"role": "user", "content": [*content, {"type": "text", "text": words}]}, *later]


def _needed(of_pairs: PairPictures | None) -> PairPictures:
    if of_pairs is None:
        raise ValueError("a prompt shows pictures of documents, and nothing loads them")
    return of_pairs


def _shown(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def documents_parts(parts: Sequence[str | Slot], pictures: int) -> tuple[str | Slot | PictureSlot, ...]:
    """Return a prompt's parts with places for its documents' pictures: each begins a slot of its own (`run_slot`)."""
    runs = [run for n in range(1, pictures + 1) for run in (" ", PICTURE, Slot(run_slot(n)))]
    return tuple(each for part in parts for each in ((part, *runs) if part == DOCUMENTS else (part,)))


def _written(reply: RemoteReply, prompt: Prompt) -> WriteReply:
    return WriteReply(
        reply.text,
        0 if reply.refused else prompt.documents_shown,
        reply.prompt_tokens,
        reply.completion_tokens,
        reply.finish != "length" and not reply.refused,
        refused=reply.refused,
    )

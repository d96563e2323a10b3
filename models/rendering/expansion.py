"""Tokens that an image's placeholder in a prompt becomes, and the line breaks around them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ImageRange = tuple[int, int]
"""First token of an expanded placeholder, and the one after its last."""


@dataclass(frozen=True)
class Expansion:
    """Tokens of an image, and those that the processor writes around them.

    Attributes:
        token: Id of the image's tokens; in Gemma-3 another than the placeholder's.
        before: Number of tokens before the first of them.
        after: Number of tokens after the last.
        first: First of all these tokens.
        last: Last of all these tokens.
    """

    token: int
    before: int
    after: int
    first: int
    last: int

    @classmethod
    def of(cls, ids: Sequence[int]) -> Expansion:
        """Describe an expanded placeholder, whose longest run is the image's."""
        token = max((list(run) for _, run in itertools.groupby(ids)), key=len)[0]
        return cls(token, ids.index(token), ids[::-1].index(token), ids[0], ids[-1])

    def range_in(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the range of ids that the one image among them was expanded to."""
        return ids.index(self.token) - self.before, len(ids) - ids[::-1].index(self.token) + self.after


class LineBreaks:
    """Line breaks around images, as tokens of the whole prompt.

    Gemma-3's processor writes two line breaks on either side of an image before it cuts the prompt into tokens, and
    its tokenizer has tokens of several line breaks. So those of the image and of the text next to it are one token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, token: int) -> int:
        """Return the line breaks of a token that has nothing else; else 0."""
        text: str = self._tokenizer.decode([token])
        return len(text) if text and not text.strip("\n") else 0

    def encode(self, count: int) -> list[int]:
        """Return the tokens of line breaks in a row."""
        return list(self._tokenizer.encode("\n" * count, add_special_tokens=False)) if count else []

    def join(
        self, left: Sequence[int], image: Sequence[int], right: Sequence[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Return the tokens before an image, its own and those after it, its outer line breaks joined with theirs.

        A joined token is the image's, whose number of tokens doesn't change.
        """
        before, own, after = list(left), list(image), list(right)
        if breaks := self.count(own[0]):
            run = self._run(before[::-1])
            *outside, own[0] = self.encode(breaks + sum(map(self.count, run))) if run else [own[0]]
            before[len(before) - len(run) :] = outside
        if breaks := self.count(own[-1]):
            run = self._run(after)
            own[-1], *outside = self.encode(breaks + sum(map(self.count, run))) if run else [own[-1]]
            after[: len(run)] = outside
        return before, own, after

    def _run(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the first tokens, those of line breaks alone."""
        end = next((place for place, token in enumerate(ids) if not self.count(token)), len(ids))
        return ids[:end]

    def collapse(
        self, ids: Sequence[int], ranges: Sequence[ImageRange], expansion: Expansion, placeholder: int
    ) -> list[int]:
        """Return token ids with a placeholder for each image; the inverse of `join`.

        Args:
            ids: Tokens with expanded images.
            ranges: Of the images, in order; two neighbours share the token of the line breaks between them.
            expansion: Of an image without text around it.
            placeholder: Id that stands for a whole image.
        """
        first, last = self.count(expansion.first), self.count(expansion.last)
        starts = {start for start, _ in ranges}
        made, end = list[int](), 0
        for start, after in ranges:
            made += ids[end:start]
            if first:  # of a shared token the rest stands between both images
                made += self.encode(self.count(ids[start]) - first - (last if start < end else 0))
            made.append(placeholder)
            if last and after - 1 not in starts:
                made += self.encode(self.count(ids[after - 1]) - last)
            end = after
        return [*made, *ids[end:]]

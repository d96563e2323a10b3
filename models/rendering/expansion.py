"""Expanded image placeholders in a prompt, and the line breaks around them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ImageRange = tuple[int, int]
"""Index of the first token of an expanded placeholder, and the index after its last."""


@dataclass(frozen=True)
class Expansion:
    """Tokens of an expanded placeholder: those of the image, and those that the processor adds around them.

    Attributes:
        token: Id of the image tokens; in Gemma-3 it differs from the placeholder's.
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
        """Describe an expanded placeholder, whose longest run of one id is the image."""
        token = max((list(run) for _, run in itertools.groupby(ids)), key=len)[0]
        return cls(token, ids.index(token), ids[::-1].index(token), ids[0], ids[-1])

    def range_in(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the range of the only expanded image in ids."""
        return ids.index(self.token) - self.before, len(ids) - ids[::-1].index(self.token) + self.after


class LineBreaks:
    """Line breaks around images, tokenized as in the whole prompt.

    Gemma-3's processor adds two line breaks on either side of an image before it tokenizes the prompt, and its
    tokenizer has tokens for several line breaks. So they merge with line breaks of the adjacent text into one token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, token: int) -> int:
        """Return the number of line breaks if a token consists of them only, else 0."""
        text: str = self._tokenizer.decode([token])
        return len(text) if text and not text.strip("\n") else 0

    def encode(self, count: int) -> list[int]:
        """Return the token ids of consecutive line breaks."""
        return list(self._tokenizer.encode("\n" * count, add_special_tokens=False)) if count else []

    def join(
        self, left: Sequence[int], image: Sequence[int], right: Sequence[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Return the tokens before an image, of the image and after it, with adjacent line breaks merged.

        A merged token belongs to the image, whose number of tokens doesn't change.
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
        """Return the leading tokens that consist of line breaks only."""
        end = next((index for index, token in enumerate(ids) if not self.count(token)), len(ids))
        return ids[:end]

    def collapse(
        self, ids: Sequence[int], ranges: Sequence[ImageRange], expansion: Expansion, placeholder: int
    ) -> list[int]:
        """Return token ids with a placeholder for each image; the inverse of `join`.

        Args:
            ids: Token ids with expanded images.
            ranges: Ranges of the images, in order; neighbours may share the token of the line breaks between them.
            expansion: Expansion of an image without text around it.
            placeholder: Id of an image placeholder.
        """
        first, last = self.count(expansion.first), self.count(expansion.last)
        starts = {start for start, _ in ranges}
        collapsed, end = list[int](), 0
        for start, after in ranges:
            collapsed += ids[end:start]
            if first:  # the other line breaks of a shared token are between both images
                collapsed += self.encode(self.count(ids[start]) - first - (last if start < end else 0))
            collapsed.append(placeholder)
            if last and after - 1 not in starts:
                collapsed += self.encode(self.count(ids[after - 1]) - last)
            end = after
        return [*collapsed, *ids[end:]]

"""Tokenization in which untrusted text cannot forge a special token.

A private copy of the tokenizer gives every special token a *secret name*: its id between two noncharacters, which no
cleaned text contains. In trusted text, special tokens are replaced by their secret names. The copy then tokenizes
trusted and untrusted text together, with the original spacing and normalization. `[Relevant]` or `</s>` in a passage is
plain text.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from reflectune.core.errors import UserError
from reflectune.models.rendering.turns import Slot

if TYPE_CHECKING:  # slow to import
    from transformers import PreTrainedTokenizerBase

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # around a special token's id
_SLOT_OPEN, _SLOT_CLOSE = "\ufdd2", "\ufdd3"  # around a slot's name
_SLOT = re.compile(f"{_SLOT_OPEN}(.*?){_SLOT_CLOSE}", re.DOTALL)
_SECRET = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_UNSAFE = re.compile("[\ufdd0-\ufdef\ud800-\udfff]")  # noncharacters, and lone surrogates, which can't be encoded
_TAG = re.compile(r"<.+>|\[.+\]", re.DOTALL)


class SafeTokenizer:
    """Tokenizer in which special tokens have secret names.

    Args:
        tokenizer: A fast (tokenizers-backed) tokenizer.
        owned: Tokens that text must not forge, besides special ones and those that look like a tag.

    Raises:
        UserError: The tokenizer is not a fast one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, owned: Iterable[str]) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer; convert it to a tokenizer.json first")
        added = backend.get_added_tokens_decoder()
        forced = {*owned, *tokenizer.all_special_tokens}
        names = {
            t.content: i for i, t in added.items() if t.special or t.content in forced or _TAG.fullmatch(t.content)
        }
        self._names = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
        self._secrets = {content: f"{_OPEN}{token_id}{_CLOSE}" for content, token_id in names.items()}
        self._backend = _rename(backend, self._secrets)
        self._lead, self._bos = _leading_ids(tokenizer), self._secrets.get(tokenizer.bos_token or "")

    @staticmethod
    def clean(text: str) -> str:
        """Strip untrusted text, and replace its noncharacters and lone surrogates."""
        return _UNSAFE.sub("\ufffd", text).strip()

    def trust(self, text: str) -> str:
        """Replace the special tokens in trusted text by their secret names."""
        return self._names.sub(lambda match: self._secrets[match[0]], text)

    def show(self, text: str) -> str:
        """Undo `trust`: replace secret names by the tokens' usual names."""
        names = {secret: name for name, secret in self._secrets.items()}
        return _SECRET.sub(lambda match: names[match[0]], text)

    def specials_in(self, text: str) -> list[int]:
        """Return the ids of the special tokens in a text after `trust`, in order."""
        return [int(match[1]) for match in _SECRET.finditer(text)]

    def encode_from_start(self, text: str) -> list[int]:
        """Return the ids of a text that begins a sequence; leading tokens (e.g. BOS) are added if missing."""
        ids = self._encode(text)
        return ids if self._bos and text.startswith(self._bos) else [*self._lead, *ids]

    def from_start(self, text: str) -> str:
        """Return a text after `trust` in its usual form, with the leading tokens of `encode_from_start`.

        Some tokenizers add a space at the beginning of a text but not after a special token; it is written out then.
        """
        if self._bos and text.startswith(self._bos):
            return self.show(text)
        lead, ids = "".join(f"{_OPEN}{i}{_CLOSE}" for i in self._lead), self.encode_from_start(text)
        for gap in ("", " "):
            if self._encode(lead + gap + text) == ids:
                return self.show(lead + gap + text)
        return self.show(lead + text)

    def encode_continuation(self, text: str, after: str = "") -> list[int]:
        """Return the ids of a text that continues earlier text.

        Args:
            text: The continuation.
            after: End of the earlier text, beginning with a space or a special token. Required unless `text` begins
                with one itself: otherwise its first letters would be tokenized as the end of a word.

        Raises:
            UserError: The tokenizer reads the end of `after` and the beginning of `text` as one token.
        """
        before, whole = self._before(after), self._encode(_ANCHOR + after + text)
        if whole[: len(before)] != before:
            raise UserError(
                f"the tokenizer merges {self.show(text)[:40]!r} with the chat template's text before it, "
                f"{self.show(after)!r}; set a template that ends its cue with a line break or a special token"
            )
        return whole[len(before) :]

    @functools.lru_cache(maxsize=16)  # noqa: B019  few ends of earlier text, and it lives as long as its model
    def _before(self, after: str) -> list[int]:
        return self._encode(_ANCHOR + after)

    def _encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids


_ANCHOR = "a"
"""Placeholder for earlier text, so that a tokenizer doesn't mark a continuation as the beginning of a text."""


def slot_mark(slot: Slot) -> str:
    """Return the placeholder of a slot while the chat template is rendered."""
    return f"{_SLOT_OPEN}{slot.name}{_SLOT_CLOSE}"


def cut_at_slots(text: str) -> tuple[str | Slot, ...]:
    """Cut a rendered text at its slots' marks."""
    pieces = _SLOT.split(text)
    return tuple(Slot(piece) if i % 2 else piece for i, piece in enumerate(pieces) if i % 2 or piece)


def fill_slots(pieces: Iterable[str | Slot], texts: Mapping[str, str]) -> str:
    """Insert untrusted texts into their slots, by name, cleaned so that they can't contain a secret name."""
    return "".join(SafeTokenizer.clean(texts[piece.name]) if isinstance(piece, Slot) else piece for piece in pieces)


def _leading_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    starts = [i for i in range(len(full)) if full[i : i + len(bare)] == bare]
    return list(full[: starts[0]]) if starts else []


def _rename(backend: Tokenizer, secrets: dict[str, str]) -> Tokenizer:
    """Return a copy of the tokenizer in which these tokens have secret names and the same ids."""
    data: dict[str, Any] = json.loads(backend.to_str())
    data.update(post_processor=None, truncation=None, padding=None)
    for token in data["added_tokens"]:
        token["content"] = secrets.get(token["content"], token["content"])
    model = data["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {secrets.get(token, token): token_id for token, token_id in vocabulary.items()}
    else:
        model["vocab"] = [[secrets.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in secrets:
        model["unk_token"] = secrets[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _makes(merge, secrets)]
    return Tokenizer.from_str(json.dumps(data))


def _makes(merge: str | list[str], names: dict[str, str]) -> bool:
    """Return True if a BPE merge uses or produces one of these tokens."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names


def common_prefix(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest common prefix of rows of token ids."""
    length = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        length += 1
    return list(rows[0][:length])

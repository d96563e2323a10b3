"""Record of the tokenizer and chat template of a training, stored in `scheme.json` and compared when loading."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from transformers import ProcessorMixin

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.models.schemes.base import SCHEME_FILE, Scheme

READ_WITH: Final = "read_with"
"""Key in `scheme.json`."""
_PROBES: Final = (
    "The quick brown fox jumps over the lazy dog; THE LAZY DOG SLEEPS.",
    "  It's 1,234.5 km² (50 %)\tfrom Zürich\n\nto São-Paulo…  “naïve” ﬁve １２３ Ωμέγα Москва 東京 मुंबई القاهرة 🦊",
    "def f(x):\n    return x_0 != 'a' and {\"b\": [1, 2]}  # http://example.org/?q=1&r=2",
)
"""Texts whose ids tell tokenizers with equal vocabularies apart: case, accents, spaces, digits, scripts."""
_FILES: Final = {"vocabulary": "tokenizer.json", "texts": "tokenizer.json", "chat_template": "chat_template.jinja"}


def tokenizer_record(processor: ProcessorMixin, scheme: Scheme) -> dict[str, Any]:
    """Return the record of everything that determines the ids of a text.

    Args:
        processor: The processor with the scheme's tokens.

    Returns:
        `token_ids` by role; hashes of the `vocabulary`, of the ids of fixed `texts`, and of the `chat_template`.
    """
    tokenizer = processor.tokenizer
    texts = (*_PROBES, *scheme.descriptions.values(), *scheme.prompts.values())
    return {
        "token_ids": {role: tokenizer.convert_tokens_to_ids(token) for role, token in scheme.tokens.items()},
        "vocabulary": _hash_of(tokenizer.get_vocab()),
        "texts": fingerprint([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]),
        "chat_template": fingerprint(getattr(processor, "chat_template", None)),
    }


def check_tokenizer(folder: Path, processor: ProcessorMixin, scheme: Scheme) -> None:
    """Refuse a checkpoint whose tokens, tokenizer or chat template differ from those of its training.

    Args:
        processor: The loaded processor with the scheme's tokens.
        scheme: The checkpoint's scheme.

    Raises:
        UserError: Names the difference and the fix.
    """
    recorded = read_json(folder / SCHEME_FILE, "the checkpoint's scheme").get(READ_WITH)
    now = tokenizer_record(processor, scheme)
    ids = recorded.get("token_ids") if isinstance(recorded, Mapping) else None
    if not isinstance(ids, Mapping):
        raise UserError(
            f"{folder / SCHEME_FILE}: `{READ_WITH}` is missing or damaged; take the file saved with the checkpoint"
        )
    problems = [
        f"its tokenizer has {scheme.tokens[role]} as id {now['token_ids'][role]}, not {before}"
        for role, before in ids.items()
        if role in scheme.tokens and now["token_ids"][role] != before
    ]
    differing = [key for key in _FILES if recorded.get(key) != now[key]]
    differences = {
        "vocabulary": "its tokenizer's vocabulary differs",
        "texts": "its tokenizer splits texts otherwise",
        "chat_template": "its chat template differs",
    }
    problems += [differences[key] for key in differing]
    if problems:
        files = dict.fromkeys(_FILES[key] for key in differing or ["vocabulary"])
        raise UserError(
            f"{folder} has different files than in its training: {'; '.join(problems)}. Restore "
            f"{' and '.join(files)} as saved with the checkpoint, or train again with the new ones"
        )


def _hash_of(vocabulary: Mapping[str, int]) -> str:
    """Return a hash of tokens and ids; they are joined to one text first, which is many times as fast as JSON."""
    ordered = sorted(vocabulary.items(), key=itemgetter(1))
    text = "\0".join(token for token, _ in ordered) + "\0\0" + " ".join(str(number) for _, number in ordered)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

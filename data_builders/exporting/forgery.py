"""Untrusted text that spells a special token: other tools would read it as one, so it is broken up.

Our own trainer tokenises such text as plain text (`models/processing/untrusted.py`). A file for another tool can't ask
for that: `<image>` in a passage would count as a picture, and `[Relevant]` as a verdict. A space behind its first
character makes it plain text again: `< image>`, `[ Relevant]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from reflectune.models.rendering.untrusted import SafeTokenizer
from reflectune.models.schemes.registry import all_schemes

_TAGS = (
    "s unk pad mask bos eos image video audio img im_start im_end im_patch vid_start vid_end vid_patch IMG_CONTEXT "
    "bbox ref-object quad point box ref cot-process start-image end-image image_soft_token start_of_turn end_of_turn "
    "start_of_image end_of_image start_header_id end_header_id eot_id think answer tool_call tool_response"
).split()
_REFLECTION = sorted({token for scheme in all_schemes().values() for token in scheme.tokens.values()})
_SPECIAL = re.compile(
    "|".join(
        [
            r"<\|[^<>|\s]{1,60}\|>",  # <|im_end|>, <|image_pad|>
            r"<\uff5c[^<>\s]{1,60}\uff5c>",  # DeepSeek's
            f"</?(?:{'|'.join(map(re.escape, _TAGS))})>",
            r"\[/?(?:INST|IMG|IMG_BREAK|IMG_END|PAD|UNK|CLS|SEP|MASK)\]",
            r"<</?SYS>>",
            *map(re.escape, _REFLECTION),
        ]
    )
)
"""What some model's tokenizer, or one of the tools, reads as a special token."""


class Neutraliser:
    """Breaks special tokens in untrusted text, and counts the texts that it changed.

    Args:
        separators: Further texts that a tool cuts a conversation at; none begins with a space.
    """

    def __init__(self, separators: Sequence[str] = ()) -> None:
        self._pattern = re.compile("|".join([_SPECIAL.pattern, *map(re.escape, separators)]))
        self.changed = 0

    def __call__(self, text: str) -> str:
        """The text, stripped and without special tokens; unchanged if there is none."""
        before = text = SafeTokenizer.clean(text)
        while self._pattern.search(text):
            text = self._pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        self.changed += text != before
        return text

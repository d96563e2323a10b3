"""What a tool's layout is: the file of a split, a row of it, and the files that go with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from reflectune.data_builders.exporting.rows import Masking, Row
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.passages import PassageScheme

Images = str
"""`absolute` or `copy`."""


@dataclass(frozen=True)
class Exported:
    """What lies in the output folder.

    Attributes:
        scheme: The data's scheme.
        images: `absolute` or `copy`.
        files: Of each split: its file, relative to the output folder.
        rows: Of each split: how many rows.
    """

    scheme: Scheme
    images: Images
    files: Mapping[str, str]
    rows: Mapping[str, int]

    @property
    def train(self) -> str:
        """The split to train on: `train`, or the first one."""
        return "train" if "train" in self.files else next(iter(self.files))


@dataclass(frozen=True)
class Layout:
    """One tool's layout.

    Attributes:
        masking: What it can say about the loss.
        file: The file of a split, relative to the output: `.jsonl`, `.json` (one array) or `.parquet`.
        record: A row as the file has it, given the image's path.
        companions: The texts of the files that go with the data, by name; `README.md` among them.
        schema: Of a Parquet file.
        image_folder: The folder that copies are named from, relative to the output, by split.
        separators: Texts that the tool cuts a conversation at, and that untrusted text must not hold.
    """

    masking: Masking
    file: Callable[[Exported, str], str]
    record: Callable[[Row, str, Images], dict[str, Any]]
    companions: Callable[[Exported], Mapping[str, str]]
    schema: Callable[[], pa.Schema] | None = None
    image_folder: Callable[[str], str] = lambda split: "."
    separators: tuple[str, ...] = ()


TOKENS_FILE: Final = "tokens.txt"


def token_list(scheme: Scheme) -> str:
    """The tokens to add, one a line."""
    return "".join(f"{token}\n" for token in scheme.tokens.values())


_PREPARE_BASE: Final = """\
## First: a base model that has the tokens

{tokens} must be single tokens with rows of their own in both matrices (`tokens.txt`, one a line). This
starts each row from words that describe it, and never shrinks a padded table:

```bash
python - <<'PY'
from reflectune.models.loading import load
base = load("{model}", scheme="{scheme}", dtype="bfloat16")
base.model.save_pretrained("base_with_tokens")
base.processor.save_pretrained("base_with_tokens")
PY
```

If its chat template puts no space before a reply, as Qwen's, or its tokenizer begins a word behind a special token by
itself, as Llama 2's, export with `--space false`: behind a space an answer would begin with other tokens than the base
model answers with.
"""

_PLAIN_BASE: Final = """\
## First: the base model

There is no token to add. The command trains `base_with_tokens`: give it the name or folder of your base model instead.
"""

_AFTERWARDS: Final = """\
## Afterwards

Copy `scheme.json` into the folder of a full (or merged) checkpoint: `reflectune` then loads, gates and evaluates it.
"""

_SAFETY: Final = """\
## Text that spells a token

Questions, passages and answers are other people's text. Where one spelt a special token (`<image>`, `[Relevant]`,
`</s>`, …), a space now breaks it (`< image>`): in a file like this it could not be told from the real one.
"""


def readme(title: str, exported: Exported, loss: str, run: str, *, prepares_base: bool = True) -> str:
    """The README of an export.

    Args:
        title: Its first lines.
        exported: What lies beside it.
        loss: What the layout says of the loss, for schemes whose questions have several rows.
        run: How to train.
        prepares_base: Whether the base model gets its tokens from reflectune, which then loads the result too; else
            `run` says where they come from.
    """
    parts = [run]
    if prepares_base:
        parts = [_base(exported.scheme), run, _AFTERWARDS]
    return "\n".join([title, _contents(exported), "", _about(exported, loss), "", *parts, _SAFETY])


def _base(scheme: Scheme) -> str:
    """How to make the base model that is trained."""
    if not scheme.tokens:
        return _PLAIN_BASE
    tokens = ", ".join(f"`{token}`" for token in scheme.tokens.values())
    return _PREPARE_BASE.format(tokens=tokens, scheme=scheme.name, model="Qwen/Qwen2-VL-7B-Instruct")


def _contents(exported: Exported) -> str:
    """The splits and how many rows each has, as lines of a README."""
    return "\n".join(f"- `{exported.files[split]}`: {exported.rows[split]:,} rows" for split in sorted(exported.files))


def _about(exported: Exported, rest: str) -> str:
    """What a row is, for this scheme, and after it what the layout says of the loss."""
    tokens = exported.scheme.tokens
    if isinstance(exported.scheme, PassageScheme):
        row = (
            f"A row is one passage of a question: question, `{tokens['retrieve']}`, passage, verdict with or without "
            f"an answer. A question that is answered by looking has question, `{tokens['no_retrieve']}`, how to "
            "answer where a word is wanted, and the answer; a conversation goes on with further questions, each reply "
            f"behind `{tokens['no_retrieve']}`."
        )
        return f"{row}\n{rest}"
    if not tokens:
        return "A row is a question with what was retrieved for it, if anything, and its answer."
    return "A row is one task of a question (RET, SRT, MCT or answering), in one turn of user and assistant."

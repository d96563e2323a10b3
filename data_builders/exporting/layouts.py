"""Layouts of other training tools: a table of their files and field names, and the functions that fill them.

Sources: TRL 1.16 (`SFTTrainer` on vision data, prompt and completion), LLaMA-Factory 0.9.6 (`data/README.md`,
`SharegptDatasetConverter`), ms-swift 4.6 (`Custom-dataset.md`), haotian-liu/LLaVA 1.2 (`LazySupervisedDataset`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from reflectune.core.html import environment
from reflectune.data_builders.exporting.conversations import ImageConversation, Masking, Message
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.passages import PassageScheme

ImageMode = Literal["absolute", "copy"]

_TEMPLATES: Final = "data_builders/exporting/templates"


@dataclass(frozen=True)
class ExportLayout:
    """Layout of the data of one training tool.

    Attributes:
        masking: Assistant turns that the tool can mask in the loss.
        file: File of a split, relative to the output folder; may name `{split}` and `{scheme}`. Its suffix is the
            format: `.jsonl`, `.json` (one array) or `.parquet`. Copied images lie in its folder.
        columns: Content of each column: `id`, `question`, `messages`, `prompt` (all messages but the last),
            `completion` (the last one), `image`, `images` (a list), or `image_structs` (as `datasets` stores images).
        companions: Files that go with the data, made from the templates of the same name.
        role: Field of a message that names its speaker.
        text: Field of a message that has its text.
        speakers: Values of `role` for the user and the assistant.
        placeholder: Text that stands for the image at the beginning of the first message.
        separators: Texts at which the tool cuts a conversation, which untrusted text must not contain.
    """

    masking: Masking
    file: str
    columns: Mapping[str, str]
    companions: tuple[str, ...]
    role: str = "role"
    text: str = "content"
    speakers: tuple[str, str] = ("user", "assistant")
    placeholder: str = ""
    separators: tuple[str, ...] = ()


_PROMPT_AND_COMPLETION: Final = {name: name for name in ("id", "question", "prompt", "completion")}

LAYOUTS: Final[Mapping[str, ExportLayout]] = {
    "trl": ExportLayout(
        masking="last_turn",
        file="{split}.parquet",
        columns={**_PROMPT_AND_COMPLETION, "images": "image_structs"},
        companions=("README.md", "sft.yaml"),
    ),
    "llamafactory": ExportLayout(
        masking="last_turn",
        file="{scheme}_{split}.jsonl",
        columns={"id": "id", "messages": "messages", "images": "images"},
        companions=("README.md", "dataset_info.json", "sft.yaml"),
        placeholder="<image>",
    ),
    "ms-swift": ExportLayout(
        masking="per_turn",
        file="{split}.jsonl",
        columns={"messages": "messages", "images": "images"},
        companions=("README.md", "sft.sh"),
        placeholder="<image>",
    ),
    "llava": ExportLayout(
        masking="none",
        file="{split}.json",
        columns={"id": "id", "image": "image", "conversations": "messages"},
        companions=("README.md", "add_tokens.py"),
        role="from",
        text="value",
        speakers=("human", "gpt"),
        placeholder="<image>\n",
        separators=("ASSISTANT:",),
    ),
}
"""Layouts by the name that `to` gives them."""

_TRL_IMAGEFOLDER: Final = ExportLayout(
    masking="last_turn",
    file="{split}/metadata.jsonl",
    columns={**_PROMPT_AND_COMPLETION, "images_file_names": "images"},  # `imagefolder` loads them as `images`
    companions=("README.md", "sft.yaml"),
)


def find_layout(tool: str, images: ImageMode) -> ExportLayout:
    """Return a tool's layout. With copied images TRL's is an `imagefolder`, which can be moved."""
    return _TRL_IMAGEFOLDER if (tool, images) == ("trl", "copy") else LAYOUTS[tool]


def record(layout: ExportLayout, conversation: ImageConversation, image: str) -> dict[str, Any]:
    """Return a conversation as a row of the file.

    Args:
        layout: The layout.
        conversation: The conversation.
        image: Path of its image, as the row names it.
    """
    messages = [_message(layout, message) for message in conversation.messages]
    messages[0][layout.text] = f"{layout.placeholder}{messages[0][layout.text]}"
    contents = {
        "id": conversation.id,
        "question": conversation.question,
        "messages": messages,
        "prompt": messages[:-1],
        "completion": messages[-1:],
        "image": image,
        "images": [image],
        "image_structs": [{"bytes": None, "path": image}],
    }
    return {column: contents[content] for column, content in layout.columns.items()}


def _message(layout: ExportLayout, message: Message) -> dict[str, Any]:
    is_reply = message.role == "assistant"
    fields: dict[str, Any] = {layout.role: layout.speakers[is_reply], layout.text: message.text}
    return {**fields, "loss": message.supervised} if is_reply and layout.masking == "per_turn" else fields


def parquet_schema(layout: ExportLayout) -> pa.Schema:
    """Return the columns of a Parquet file, with the metadata by which `datasets` decodes `image_structs` as images."""
    from datasets import Features, Image, List, Value  # slow to import

    messages = List({layout.role: Value("string"), layout.text: Value("string")})
    features = {"prompt": messages, "completion": messages, "image_structs": List(Image())}
    columns = {column: features.get(content, Value("string")) for column, content in layout.columns.items()}
    return Features(columns).arrow_schema


def companions(
    tool: str, scheme: Scheme, images: ImageMode, files: Mapping[str, str], rows: Mapping[str, int]
) -> dict[str, str]:
    """Return the texts of the files that go with the data, by name.

    Args:
        tool: Name of the layout.
        scheme: Scheme of the data.
        images: Absolute paths, or copies.
        files: File of each split, relative to the output folder.
        rows: Number of rows of each split.
    """
    train = "train" if "train" in files else next(iter(files))
    values = {
        "scheme": scheme.name,
        "tokens": scheme.tokens,
        "quoted_tokens": " ".join(map(shlex.quote, scheme.tokens.values())),
        "has_passages": isinstance(scheme, PassageScheme),
        "images": images,
        "files": dict(sorted(files.items())),
        "rows": rows,
        "train": train,
        "train_file": files[train],
    }
    templates = {name: f"{_TEMPLATES}/{tool}/{name}.jinja" for name in find_layout(tool, images).companions}
    plain = environment().overlay(autoescape=False, keep_trailing_newline=True)  # Markdown, YAML and shell scripts
    texts = {name: plain.get_template(path).render(values) for name, path in templates.items()}
    return {**texts, "tokens.txt": "".join(f"{token}\n" for token in scheme.tokens.values())}

"""TRL: prompt and completion as messages, beside the images; only the completion is trained on.

Layout: TRL 1.16, `SFTTrainer` on vision data in its conversational prompt–completion format. With absolute paths it is
Parquet with `datasets`' `Image` feature; with copies an `imagefolder` (a `metadata.jsonl` beside the images), which may
be moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from reflectune.data_builders.exporting.layout import (
    TOKENS_FILE,
    Exported,
    Images,
    Layout,
    readme,
    token_list,
)
from reflectune.data_builders.exporting.rows import Row

IMAGE_NAMES: Final = "images_file_names"
"""`imagefolder` takes the files that this column names as the column `images`."""


def record(row: Row, image: str, images: Images) -> dict[str, Any]:
    """A row; `id` and `question` are for reading it back, and TRL ignores them."""
    messages = [{"role": message.role, "content": message.text} for message in row.messages]
    seen: dict[str, Any] = {IMAGE_NAMES: [image]} if images == "copy" else {"images": [{"bytes": None, "path": image}]}
    return {"id": row.id, "question": row.question, "prompt": messages[:-1], "completion": messages[-1:], **seen}


def schema() -> pa.Schema:
    """Columns, with the note by which `datasets` knows that `images` are images."""
    from datasets import Features, Image, List, Value  # slow to import

    messages = List({"role": Value("string"), "content": Value("string")})
    texts = {"id": Value("string"), "question": Value("string"), "prompt": messages, "completion": messages}
    return Features({**texts, "images": List(Image())}).arrow_schema


def companions(exported: Exported) -> Mapping[str, str]:
    """README with the data set's card, the command's YAML, and the tokens."""
    return {"README.md": _readme(exported), "sft.yaml": _SFT, TOKENS_FILE: token_list(exported.scheme)}


def _file(exported: Exported, split: str) -> str:
    return f"{split}/metadata.jsonl" if exported.images == "copy" else f"{split}.parquet"


def _readme(exported: Exported) -> str:
    paths = {s: f"{s}/**" if exported.images == "copy" else file for s, file in sorted(exported.files.items())}
    card = "\n".join(f"  - split: {split}\n    path: {path}" for split, path in paths.items())
    head = f"---\nconfigs:\n- config_name: default\n  data_files:\n{card}\n---\n# Reflection data for TRL\n"
    return readme(head, exported, _LOSS, _RUN.format(split=exported.train))


_LOSS = """
**Loss.** TRL trains on the `completion` alone (`completion_only_loss`, its default here). `[Retrieval]` counts once for
a question: it is the completion of a row of its own, and part of the prompt in the rows of the question's passages. So
is `[No Retrieval]` where the answer is asked for behind it."""

_RUN = """\
## Train

In this folder, on eight GPUs:

```bash
accelerate launch --multi_gpu --num_processes 8 --num_machines 1 --mixed_precision no --dynamo_backend no \\
    -m trl.scripts.sft --config sft.yaml --dataset_train_split {split}
```

`max_length` is off in `sft.yaml`: TRL's 1024 would cut images. For LoRA add `--use_peft --lora_target_modules q_proj
k_proj v_proj o_proj --lora_modules_to_save embed_tokens lm_head`; without the last the new tokens' rows don't train. A
tied model (Qwen2-VL-2B, Qwen2.5-VL-3B, Qwen3-VL-4B) would save two matrices then: train it in full, or with reflectune.
A chat template that writes no end of turn (`llava-hf`'s) teaches no end: give another by `--chat_template_path`.
"""

_SFT = """\
# trl sft --config sft.yaml; see README.md
model_name_or_path: base_with_tokens
dataset_name: .
output_dir: checkpoint
max_length: null  # or images would be cut
learning_rate: 2.0e-5
lr_scheduler_type: cosine
warmup_steps: 0.03
num_train_epochs: 1
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
dtype: bfloat16
save_steps: 500
logging_steps: 10
report_to: none
"""

LAYOUT: Final = Layout(
    masking="last_turn",
    file=_file,
    record=record,
    companions=companions,
    schema=schema,
    image_folder=lambda split: split,
)

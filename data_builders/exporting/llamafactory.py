"""LLaMA-Factory: its `sharegpt` layout with OpenAI's tags, a `dataset_info.json`, and a training YAML.

Schema: `data/README.md` and `SharegptDatasetConverter` of LLaMA-Factory 0.9.6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from reflectune.data_builders.exporting.layout import (
    TOKENS_FILE,
    Exported,
    Images,
    Layout,
    readme,
    token_list,
)
from reflectune.data_builders.exporting.rows import Row

_TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}


def record(row: Row, image: str, images: Images) -> dict[str, Any]:
    """A row: messages, `<image>` where the image stands, and the image's path."""
    messages = [{"role": message.role, "content": message.text} for message in row.messages]
    messages[0]["content"] = f"<image>{messages[0]['content']}"
    return {"id": row.id, "messages": messages, "images": [image]}


def dataset_info(exported: Exported) -> dict[str, Any]:
    """LLaMA-Factory's description of each split."""
    return {
        _name(exported, split): {
            "file_name": file,
            "formatting": "sharegpt",
            "columns": {"messages": "messages", "images": "images"},
            "tags": _TAGS,
        }
        for split, file in sorted(exported.files.items())
    }


def companions(exported: Exported) -> Mapping[str, str]:
    """The description, a training YAML, README and tokens."""
    return {
        "README.md": readme("# Reflection data for LLaMA-Factory\n", exported, _LOSS, _RUN),
        "dataset_info.json": json.dumps(dataset_info(exported), indent=2) + "\n",
        "sft.yaml": _SFT.format(name=_name(exported, exported.train), tokens=",".join(exported.scheme.tokens.values())),
        TOKENS_FILE: token_list(exported.scheme),
    }


def _name(exported: Exported, split: str) -> str:
    return f"{exported.scheme.name}_{split}"


_LOSS = """
**Loss.** LLaMA-Factory trains on every assistant turn, or with `mask_history: true` on the last one of a row alone. The
data is made for the latter: `[Retrieval]` ends a row of its own, once for a question, and is history in the rows of the
question's passages. Without `mask_history` it would count once more for each passage. `[No Retrieval]` ends a row of
its own too where the answer is asked for behind it."""

_RUN = """\
## Train

In this folder:

```bash
llamafactory-cli train sft.yaml
```

`additional_target` makes LoRA train the new tokens' rows, input and output. A tied model (Qwen2-VL-2B, Qwen2.5-VL-3B,
Qwen3-VL-4B) would keep two matrices that drift apart: train it with `finetuning_type: full`, or with reflectune.
LLaMA-Factory can add the tokens itself (`add_special_tokens`, in `sft.yaml`), but on LLaVA a space then stands between
the assistant's cue and the token, and `reflectune` will not load the checkpoint. Its `desc_init` starts the output rows
of an untied model from rows of the input matrix: leave it at `noise_init`.
"""

_SFT = """\
# llamafactory-cli train sft.yaml; see README.md
### model
model_name_or_path: base_with_tokens
template: qwen2_vl  # LLaVA-1.5: llava; LLaVA-NeXT: llava_next; Qwen3-VL: qwen3_vl_nothink
# add_special_tokens: "{tokens}"  # only for a base without them

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: all
additional_target: embed_tokens,lm_head
freeze_vision_tower: true

### dataset
dataset_dir: .
media_dir: .
dataset: {name}
mask_history: true  # [Retrieval] counts once per question
cutoff_len: 4096

### train
output_dir: checkpoint
learning_rate: 1.0e-4
lr_scheduler_type: cosine
warmup_ratio: 0.03
num_train_epochs: 1.0
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
save_steps: 500
logging_steps: 10
report_to: none
"""

LAYOUT: Final = Layout(
    masking="last_turn",
    file=lambda exported, split: f"{_name(exported, split)}.jsonl",
    record=record,
    companions=companions,
)

"""ms-swift: its standard layout, messages with `loss` for each of the assistant's turns.

Schema: `docs/source_en/Customization/Custom-dataset.md` of ms-swift 4.6.
"""

from __future__ import annotations

import shlex
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
from reflectune.data_builders.exporting.rows import Message, Row


def record(row: Row, image: str, images: Images) -> dict[str, Any]:
    """A row: messages, `<image>` where the image stands, and the image's path."""
    messages = [_message(message) for message in row.messages]
    messages[0]["content"] = f"<image>{messages[0]['content']}"
    return {"messages": messages, "images": [image]}


def companions(exported: Exported) -> Mapping[str, str]:
    """README, the command, and the tokens."""
    run = _RUN.format(listed=" ".join(map(shlex.quote, exported.scheme.tokens.values())))
    return {
        "README.md": readme("# Reflection data for ms-swift\n", exported, _LOSS, run),
        "sft.sh": _SFT.format(file=exported.files[exported.train]),
        TOKENS_FILE: token_list(exported.scheme),
    }


def _message(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    return {**plain, "loss": message.supervised} if message.role == "assistant" else plain


_LOSS = """
**Loss.** Each of the assistant's turns says whether it counts (`"loss": true`). `[Retrieval]` counts in the first row
of a question and not in its others: once for a question, however many passages it has."""

_RUN = """\
## Train

In this folder:

```bash
bash sft.sh
```

`--modules_to_save` makes LoRA train the new tokens' rows, input and output. A tied model (Qwen2-VL-2B, Qwen2.5-VL-3B,
Qwen3-VL-4B) would keep two matrices that drift apart: train it with `--tuner_type full`, or with reflectune. For a base
without the tokens add `--new_special_tokens {listed}`.
Don't give it a file: ms-swift 4.6 cuts that at spaces, which `[No Retrieval]` has.
"""

_SFT = """\
# bash sft.sh, in this folder; see README.md. Image paths that are not absolute start from here.
export ROOT_IMAGE_DIR="$PWD"
swift sft \\
    --model base_with_tokens \\
    --model_type qwen2_vl \\
    --dataset {file} \\
    --tuner_type lora \\
    --target_modules all-linear \\
    --freeze_vit true \\
    --modules_to_save embed_tokens lm_head \\
    --lora_rank 16 \\
    --lora_alpha 32 \\
    --torch_dtype bfloat16 \\
    --max_length 4096 \\
    --learning_rate 1e-4 \\
    --warmup_ratio 0.03 \\
    --num_train_epochs 1 \\
    --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 8 \\
    --save_steps 500 \\
    --logging_steps 10 \\
    --report_to none \\
    --output_dir checkpoint
"""

LAYOUT: Final = Layout(
    masking="per_turn",
    file=lambda exported, split: f"{split}.jsonl",
    record=record,
    companions=companions,
)

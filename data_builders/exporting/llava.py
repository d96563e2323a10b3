"""LLaVA: one JSON array of conversations between `human` and `gpt`, as its own training script reads them.

Schema: `docs/Finetune_Custom_Data.md` and `LazySupervisedDataset` of haotian-liu/LLaVA 1.2.
"""

from __future__ import annotations

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

_SPEAKERS = {"user": "human", "assistant": "gpt"}


def record(row: Row, image: str, images: Images) -> dict[str, Any]:
    """A row: id, image and conversation; the image stands on a line of its own."""
    turns = [{"from": _SPEAKERS[message.role], "value": message.text} for message in row.messages]
    turns[0]["value"] = f"<image>\n{turns[0]['value']}"
    return {"id": row.id, "image": image, "conversations": turns}


def companions(exported: Exported) -> Mapping[str, str]:
    """README with the command, a script that gives Vicuna the tokens, and the tokens."""
    run = _RUN.format(file=exported.files[exported.train])
    return {
        "README.md": readme("# Reflection data for LLaVA\n", exported, _LOSS, run, prepares_base=False),
        "add_tokens.py": _ADD_TOKENS,
        TOKENS_FILE: token_list(exported.scheme),
    }


_LOSS = """
**Loss.** LLaVA trains on every `gpt` turn and has no way to leave one out: `[Retrieval]` counts once for each passage,
not once for a question as in equations 8 and 9 of mR²AG. With reflectune, TRL, LLaMA-Factory or ms-swift it counts
once."""

_RUN = """\
## First: a Vicuna that has the tokens

LLaVA's script adds none. `python add_tokens.py lmsys/vicuna-7b-v1.5 vicuna_with_tokens` does, from `tokens.txt`.

## Train

In LLaVA's repository, with this folder as `$DATA` and the published projector
(`liuhaotian/llava-v1.5-mlp2x-336px-pretrain-vicuna-7b-v1.5`):

```bash
deepspeed llava/train/train_mem.py --deepspeed ./scripts/zero3.json \\
    --model_name_or_path $DATA/vicuna_with_tokens --version v1 \\
    --data_path $DATA/{file} --image_folder $DATA \\
    --vision_tower openai/clip-vit-large-patch14-336 --pretrain_mm_mlp_adapter mm_projector.bin \\
    --mm_projector_type mlp2x_gelu --mm_vision_select_layer -2 \\
    --mm_use_im_start_end False --mm_use_im_patch_token False \\
    --image_aspect_ratio pad --group_by_modality_length True --bf16 True --tf32 True --output_dir checkpoint \\
    --num_train_epochs 1 --per_device_train_batch_size 16 --gradient_accumulation_steps 1 --learning_rate 2e-5 \\
    --weight_decay 0. --warmup_ratio 0.03 --lr_scheduler_type cosine --model_max_length 2048 \\
    --gradient_checkpointing True --dataloader_num_workers 4 --lazy_preprocess True --save_steps 500 --report_to none
```

Its LoRA scripts train neither embedding nor head, so the tokens would not be learnt. A row over `model_max_length` is
cut without a word. The script reads the whole JSON in each process.
"""

_ADD_TOKENS = '''\
"""python add_tokens.py VICUNA OUTPUT: gives a language model the tokens of tokens.txt, each with a row of its own."""

import sys
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

source, output = sys.argv[1:3]
names = Path(__file__).with_name("tokens.txt").read_text(encoding="utf-8").splitlines()
model = AutoModelForCausalLM.from_pretrained(source, torch_dtype=torch.bfloat16)
tokenizer = AutoTokenizer.from_pretrained(source, use_fast=False)
tokens = [AddedToken(name, lstrip=True, normalized=False, special=True) for name in names]
tokenizer.add_tokens(tokens, special_tokens=True)
before = model.get_input_embeddings().weight.shape[0]
if len(tokenizer) > before:
    model.resize_token_embeddings(len(tokenizer))
generator = torch.Generator().manual_seed(0)
with torch.no_grad():
    for matrix in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
        rows = matrix[: len(tokenizer) - len(names)].float()
        for name in names:
            noise = torch.randn(rows.shape[1], generator=generator) * rows.std() * 0.1
            matrix[tokenizer.convert_tokens_to_ids(name)] = (rows.mean(0) + noise).to(matrix.dtype)
model.save_pretrained(output)
tokenizer.save_pretrained(output)
'''

LAYOUT: Final = Layout(
    masking="none",
    file=lambda exported, split: f"{split}.json",
    record=record,
    companions=companions,
    separators=("ASSISTANT:",),
)

"""The command that serves an exported checkpoint, and the README of the export."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

from reflectune.models.rendering.renderer import Renderer
from reflectune.models.rendering.turns import Slot
from reflectune.models.schemes.base import Scheme

_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `--max-lora-rank`."""
BASE, ADAPTER = "base", "adapter"
"""Folders of an export with a separate adapter."""
_QUESTION: Final = "What does it eat?"


@dataclass(frozen=True)
class Served:
    """Properties of an export that its command depends on.

    Attributes:
        to: Server, `vllm` or `sglang`.
        name: Name of the model in requests.
        model_type: Family of the model.
        dtype: Precision of the weights.
        rank: Rank of the adapter; 0 if it is merged.
    """

    to: str
    name: str
    model_type: str
    dtype: str
    rank: int = 0

    @property
    def takes_video(self) -> bool:
        """True if the family has a video processor, as Qwen's and InternVL have."""
        return self.model_type in VIDEO_PROCESSOR_MAPPING_NAMES


def launch_line(served: Served, folder: str | Path = ".") -> str:
    """Return the command that serves an export.

    Args:
        folder: The export, as seen from where the command runs.
    """
    folder = Path(folder)
    model, name = (folder / BASE, f"{served.name}-base") if served.rank else (folder, served.name)
    adapter = f"{served.name}={folder / ADAPTER}"
    # By default both servers compute float32 weights in half precision.
    dtype = ["--dtype", "float32"] if served.dtype == "float32" else []
    if served.to == "sglang":
        line = ["python", "-m", "sglang.launch_server", "--model-path", str(model), "--served-model-name", name, *dtype]
        return shlex.join([*line, *(["--enable-lora", "--lora-paths", adapter] if served.rank else [])])
    limit = {"image": 1, "video": 0} if served.takes_video else {"image": 1}
    line = [
        "vllm",
        "serve",
        str(model),
        "--served-model-name",
        name,
        "--enable-scale-out",
        "--max-logprobs",
        "128",
        *dtype,
    ]
    # Scale images with Pillow, as in training: torchvision's pixels differ by up to 1 %. Video processors of
    # transformers (5.23) don't accept `backend`; `use_fast` can go when they do.
    pillow: dict[str, Any] = {"use_fast": False} if served.takes_video else {"backend": "pil"}
    line += ["--limit-mm-per-prompt", json.dumps(limit), "--mm-processor-kwargs", json.dumps(pillow)]
    rank = next((value for value in _RANKS if value >= served.rank), served.rank)
    return shlex.join(
        [*line, *(["--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", adapter] if served.rank else [])]
    )


def readme(served: Served, renderer: Renderer) -> str:
    """Return the text of an export's README.md: the command, the tokens' ids, and a request for a gate.

    Args:
        renderer: Of the exported checkpoint.
    """
    ids = dict(zip(renderer.reflection_tokens, renderer.token_ids.values(), strict=True))
    request: dict[str, Any] = {
        "model": served.name,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,…"}},
                    {"type": "text", "text": _asked(renderer)},
                ],
            }
        ],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        **({"logprob_token_ids": list(ids.values())} if served.to == "vllm" else {"top_logprobs": 20}),
        "skip_special_tokens": False,
    }
    gate = [
        "A gate is the probability of one of its tokens, divided by that of both. Ask for them as first token of the",
        "reply, by `POST /v1/chat/completions`:",
        "",
        "```json",
        json.dumps(request, indent=2, ensure_ascii=False),
        "```",
        "",
        "| token | id |",
        "|---|---|",
        *(f"| `{token}` | {number} |" for token, number in ids.items()),
        "",
    ]
    base = [f"`{served.name}-base` is the base model without the adapter.", ""] if served.rank else []
    lines = [f"# {served.name}", "", "In this folder:", "", "```bash", launch_line(served), "```", ""]
    return "\n".join([*lines, *base, *(gate if ids else [])])


def _asked(renderer: Renderer) -> str:
    """Return the text of the user turn before the first gate's token."""
    scheme = renderer.scheme
    if not isinstance(scheme, Scheme) or not scheme.gates:
        return _QUESTION
    turn = scheme.gate_turns(scheme.gates[0], "short")[-1]
    return "".join(_QUESTION if isinstance(part, Slot) else str(part) for part in turn.parts)

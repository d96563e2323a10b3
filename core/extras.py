"""Extras of the package: the command that installs a missing module."""

from __future__ import annotations

from typing import Final

MODULES: Final = {
    "train": ("datasets", "trl"),
    "deepspeed": ("deepspeed",),
    "quantization": ("bitsandbytes",),
    "trackers": ("tensorboard", "wandb"),
    "serve": ("fastapi", "gradio", "prometheus_client", "python_multipart", "uvicorn"),
    "otel": ("opentelemetry",),
    "pocket": ("gguf", "httpx2", "onnx"),
    "report": ("matplotlib",),
    "rouge": ("rouge_score",),
    "milvus": ("milvus_lite", "pymilvus"),
    "dedup": ("imagehash",),
}
"""Modules of each extra of pyproject.toml."""


def install_line(module: str) -> str:
    """Return `pip install 'reflectune[EXTRA]'` for the extra that has a module or its package; "" if none has it."""
    package = module.partition(".")[0]
    return next((f"pip install 'reflectune[{extra}]'" for extra, names in MODULES.items() if package in names), "")

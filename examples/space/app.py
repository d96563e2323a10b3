"""Serve a checkpoint as a Hugging Face Space, by `serve.yaml` in the same folder."""

from __future__ import annotations

from pathlib import Path

import uvicorn
from fastapi import FastAPI

from reflectune.core.config import make_config
from reflectune.core.parsing import read_yaml
from reflectune.inference.serving.config import ServeConfig
from reflectune.inference.serving.page import mount_page
from reflectune.inference.serving.service import AnswerService


def build(config: Path) -> FastAPI:
    """Return the page of a config of `serve`, without the routes of its API."""
    service = AnswerService(make_config(ServeConfig, **read_yaml(config)))
    return mount_page(FastAPI(docs_url=None, redoc_url=None, openapi_url=None), service)


if __name__ == "__main__":
    uvicorn.run(build(Path(__file__).with_name("serve.yaml")), host="0.0.0.0", port=7860)

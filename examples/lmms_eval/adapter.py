"""Adapter of our models to lmms-eval's runner: `lmms-eval --model reflectune --model_args config=FILE.yaml,mode=gate
…`.

Its registry finds `manifest` by the entry point of `pyproject.toml`. No other module imports lmms-eval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.registry_v2 import ModelManifest

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.core.flags import kind_of
from reflectune.core.progress import progress_bar
from reflectune.examples.lmms_eval.answering import BenchmarkAnswerer, BenchmarkReply, BenchmarkRequest, read_request
from reflectune.examples.lmms_eval.config import BenchmarkConfig, BenchmarkSettings
from reflectune.inference.config import ModelSettings
from reflectune.retrieval.config import RetrieverConfig

NAME = "reflectune"


def manifest() -> ModelManifest:
    """Return the entry of lmms-eval's registry of models."""
    return ModelManifest(NAME, simple_class_path=f"{__name__}.{Reflectune.__name__}")


@dataclass
class ReplyCounts(TokenCounts):
    """Token counts of a reply, and its gate's decision. `--log_samples` writes both into each document's row."""

    reply: BenchmarkReply | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and the decision as lmms-eval writes them."""
        return {**super().to_dict(), **(self.reply.decision if self.reply else {})}


class Reflectune(lmms):
    """A model of lmms-eval that answers generation requests about one image each.

    Args:
        config: YAML file with keys of `BenchmarkConfig`; needed.
        batch_size: lmms-eval's `--batch_size`, used as `batch_questions` if that isn't given and this is above 1.
        device: lmms-eval's `--device`.
        max_batch_size: Not read.
        keys: Keys of `BenchmarkConfig` that override the file's.

    Raises:
        UserError: The config is wrong, or a model or the index can't be opened.
    """

    is_simple = True

    def __init__(
        self,
        config: str = "",
        batch_size: int | str = 1,
        device: str | None = None,
        max_batch_size: int | None = None,
        **keys: Any,
    ) -> None:
        super().__init__()
        if not config:
            raise UserError("`config` is needed in --model_args: e.g. configs/examples/lmms_eval/miniature.yaml")
        given = {key: str(value) for key, value in keys.items()}
        if str(batch_size).isdigit() and int(batch_size) > 1:
            given.setdefault("batch_questions", str(batch_size))
        if device:
            given.setdefault("device", device)
        settings = _read_config(config, given)
        self._answerer = BenchmarkAnswerer(
            BenchmarkSettings.of(settings),
            ModelSettings.of(settings),
            RetrieverConfig.of(settings),
            settings.pipelines(),
        )

    @property
    def device(self) -> torch.device:
        """Device on which lmms-eval gathers the results of its processes."""
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answer requests, in order.

        Raises:
            UserError: A request has no image or several, or asks for sampled answers.
        """
        converted = (self._request(instance) for instance in requests)
        replies = progress_bar(
            self._answerer.answer(converted), desc="answering", total=len(requests), disable=self.rank != 0
        )
        return [GenerationResult(reply.text, ReplyCounts(output_tokens=reply.tokens, reply=reply)) for reply in replies]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Raise a UserError: a pipeline's answer has no probability of its own."""
        raise UserError("a task that compares likelihoods can't be run through a gate; take its generating variant")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        """Raise a UserError."""
        raise UserError("a task of several rounds can't be run: a pipeline answers one question about an image")

    def _request(self, instance: Instance) -> BenchmarkRequest:
        text, generation, doc_to_visual, doc_id, task, split = instance.args
        visuals = doc_to_visual(self.task_dict[task][split][doc_id])
        return read_request(task, doc_id, text, visuals or [], generation)


def _read_config(path: str, given: Mapping[str, str]) -> BenchmarkConfig:
    """Read a YAML file with some keys changed; items of a list are separated by commas."""
    lists = {name for name, field in BenchmarkConfig.model_fields.items() if kind_of(field) == "list"}
    values = {name: value.split(",") if name in lists else [value] for name, value in given.items()}
    flags = [text for name, texts in values.items() for text in (f"--{name}", *texts)]
    return parse_config(BenchmarkConfig, ["--config", path, *flags])

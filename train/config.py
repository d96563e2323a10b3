"""The settings of `sft.py`."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, Literal

from reflectune.core.config import setting
from reflectune.models.processing.image_config import ImageKeys
from reflectune.models.schemes.registry import all_schemes
from reflectune.models.weights.quantization import missing_bitsandbytes
from reflectune.train.data.mixture import Mixture, Part

_METRICS: Final = ("accuracy", "auroc", "calibration_error")
ANSWERS: Final = "answer_exact_match"
"""The share of right answers, if any are read."""

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass
class SftConfig(ImageKeys):
    """Fine-tune a model on reflection data: fully, by LoRA, or by QLoRA."""

    model: str = setting("miniature/llava", "base model: a miniature, a hub id or a folder")
    scheme: str = setting("mr2ag", "whose tokens and prompts to train")
    train_data: Mixture = setting(
        Mixture(),
        "reflection data: a folder, one Parquet file, or several of them, each with how often an epoch reads its "
        "examples (0.5: half of them)",
    )
    train_split: str = setting("train", "split to train on, of a folder that names no other")
    image_root: str = setting("", "folder of the images; the one in the data's manifest if unset")
    output_dir: str = setting("", "folder for the checkpoint")

    method: Literal["full", "lora", "qlora"] = setting(
        "full", "train all weights, adapters, or adapters on a 4-bit language model"
    )
    freeze_vision: bool = setting(False, "keep the vision tower as it is (full; LoRA always does)")
    double_quantization: bool = setting(
        True, "qlora: quantise the scales of the 4-bit weights too, 0.37 bits less a weight"
    )
    lora_r: int = setting(16, "rank of the adapters")
    lora_alpha: int = setting(32, "scale of the adapters, times 1/lora_r")
    lora_dropout: float = setting(0.0, "dropout before the adapters")
    lora_targets: str = setting(
        r".*language_model.*\.(q|k|v|o|gate|up|down)_proj",
        "regular expression that a module's whole name must match to get an adapter",
    )

    learning_rate: float = setting(2e-5, "peak learning rate")
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup"] = setting(
        "cosine", "how the learning rate falls after the warm-up"
    )
    warmup: float = setting(0.03, "warm-up: a share of all steps if below 1, else steps")
    weight_decay: float = setting(0.0, "AdamW's weight decay")
    adam_beta2: float = setting(0.999, "AdamW's second beta")
    max_grad_norm: float = setting(1.0, "clip gradients to this norm; 0 for no clipping")
    epochs: float = setting(1.0, "passes over the data, if max_steps is unset")
    max_steps: int | None = setting(None, "optimiser steps, instead of epochs")
    per_device_train_batch_size: int = setting(8, "questions, each with all its passages")
    gradient_accumulation_steps: int = setting(1, "batches per optimiser step")
    tree: bool = setting(True, "read a question's prefix once for all its passages, or once per passage")
    group_by_length: bool = setting(True, "batch questions of similar length")
    max_tokens: int | None = setting(None, "most tokens from image to answer; what the model can take if unset")
    seed: int = setting(0, "seed of new token rows, data order and dropout")

    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "precision of the forward pass; trained weights are kept in float32"
    )
    matmul_precision: Literal["highest", "high", "medium"] = setting(
        "highest",
        "float32 products: `medium` is 1.5 times as fast on many CPUs (oneDNN; bfloat16 where there is AMX), "
        "`high` is TF32 on a GPU",
    )
    device: Literal["auto", "cpu"] = setting("auto", "cpu, or an accelerator if there is one")
    gradient_checkpointing: bool = setting(False, "recompute activations to save memory")

    resume: bool = setting(True, "go on from the last checkpoint in output_dir")
    save_steps: int = setting(500, "steps between checkpoints")
    save_total_limit: int = setting(1, "checkpoints to keep")
    logging_steps: int = setting(10, "steps between log lines")
    report_to: list[str] = setting(
        [], "trackers, e.g. tensorboard, wandb, trackio; none by default. log.jsonl is always written"
    )
    cache_mib: int = setting(512, "memory for encoded examples, per process, in MiB")
    dataloader_workers: int = setting(0, "processes that encode examples; 0 encodes in the main one")
    eval_data: str = setting("", "validation data, like train_data: its gates are read every eval_steps")
    eval_split: str = setting("val", "split to validate on, if eval_data is a folder")
    eval_answers: int = setting(0, "also answer this many questions of eval_data, drawn by seed, greedily; 0 for none")
    eval_steps: int = setting(500, "steps between validations")
    best_metric: str = setting("", "end with the weights that were best by it, e.g. relevance_auroc; the last if unset")
    early_stopping_patience: int | None = setting(None, "stop after this many validations without a better best_metric")
    push_to_hub: str = setting("", "upload the finished checkpoint to this repository, owner/name")
    hub_private: bool = setting(True, "make that repository private, if it is new")
    licence: str = setting("", "of the checkpoint, for its card, e.g. apache-2.0")
    dry_run: bool = setting(False, "say what would be trained, and stop")

    def __post_init__(self) -> None:
        """Read the data sets, which may be a path, a mapping or JSON."""
        self.train_data = Mixture(self.train_data)

    def problems(self) -> list[str]:
        """What is wrong with the values and with the files that they name, one sentence each."""
        issues = [f"`{name}` is needed: {why}" for name, why in _NEEDED.items() if not getattr(self, name)]
        issues += self.value_problems()
        issues += self.data_problems()
        issues += [problem for name in self.report_to if (problem := _tracker_problem(name))]
        if self.method == "qlora" and (missing := missing_bitsandbytes()):
            issues.append(f"`method`: {missing}")
        if self.push_to_hub:
            issues += hub_problems(self.push_to_hub)
        return issues + self._validation_problems()

    def value_problems(self) -> list[str]:
        """What is wrong with the values by themselves, wherever they are read."""
        issues = self.image_problems()
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                bounds = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
                issues.append(f"`{name}` must be {bounds}, found {value}")
        if self.learning_rate <= 0:
            issues.append(f"`learning_rate` must be above 0, found {self.learning_rate}")
        try:
            re.compile(self.lora_targets)
        except re.error as error:
            issues.append(f"`lora_targets` is no regular expression: {error}")
        return issues

    def data_problems(self) -> list[str]:
        """What is wrong with the training data, as far as can be seen without reading it."""
        if not self.train_data:
            return ["`train_data` is needed: a folder of reflection data, e.g. the output of data_builders.build_mr2ag"]
        if malformed := self.train_data.malformed():
            return [f"`train_data`: {problem}" for problem in malformed]
        return [f"`train_data`: {problem}" for part in self.parts() for problem in part.problems()]

    def _validation_problems(self) -> list[str]:
        issues = []
        known = metric_names(self.scheme)
        if self.eval_data and not self.eval_part().file.is_file():
            issues.append(
                f"`eval_data`: {self.eval_part().file} does not exist; build it, or choose another `eval_split`"
            )
        if self.best_metric and self.best_metric not in known:
            issues.append(
                f"`best_metric` must be one of {', '.join(known)} for {self.scheme}, found {self.best_metric}"
            )
        if self.eval_answers and not self.eval_data:
            issues.append("`eval_answers` needs `eval_data` to take questions from")
        if self.best_metric == ANSWERS and not self.eval_answers:
            issues.append(f"`best_metric: {ANSWERS}` needs `eval_answers`: how many to read")
        if self.best_metric and not self.eval_data:
            issues.append("`best_metric` needs `eval_data` to be measured on")
        if self.early_stopping_patience is not None and not self.best_metric:
            issues.append("`early_stopping_patience` needs a `best_metric` to be patient about")
        return issues

    def parts(self) -> list[Part]:
        """The data sets to train on."""
        return self.train_data.parts(self.train_split, self.image_root)

    def eval_part(self) -> Part:
        """The data set to validate on."""
        return Part(self.eval_data, self.eval_split, self.image_root)

    @property
    def adapters_dropout(self) -> float:
        """Dropout before the adapters, if the method has any."""
        return 0.0 if self.method == "full" else self.lora_dropout

    def run_settings(self) -> dict[str, Any]:
        """The settings that determine the weights: a run can only be resumed if they are the same."""
        unread = _FREE | (set() if self.method == "qlora" else {"double_quantization"})
        unread |= set() if self.best_metric else {"best_metric", "early_stopping_patience", "eval_steps"}
        unread |= set() if self.best_metric == ANSWERS else {"eval_answers"}
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in unread}


def _tracker_problem(name: str) -> str:
    if name not in _TRACKERS:
        return f"`report_to`: {name} is not a tracker; choose of {', '.join(_TRACKERS)}"
    return "" if find_spec(name) else f"`report_to`: {name} is not installed: `pip install {name}`"


_TRACKERS = ("clearml", "comet_ml", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
"""What transformers reports to, each by the name of its package."""
_FREE = frozenset(
    "model train_data image_root output_dir resume save_steps save_total_limit logging_steps report_to cache_mib "
    "dataloader_workers gradient_checkpointing eval_data eval_split push_to_hub hub_private licence dry_run "
    "per_device_train_batch_size gradient_accumulation_steps image_fit min_pixels max_pixels".split()
)
"""Settings that don't determine the weights. (`model` and `train_data` may be moved: their content is hashed, and how
pictures are fitted with the model's. Of the batch sizes their product with the number of processes does: see
`reflectune.train.data.global_batch`.)"""
_NEEDED = {
    "output_dir": "a folder for the checkpoint",
    "model": "e.g. miniature/llava, llava-hf/llava-1.5-7b-hf or a folder",
    "scheme": "e.g. mr2ag",
}
_LIMITS: dict[str, tuple[float, float]] = {
    "lora_r": (1, float("inf")),
    "lora_alpha": (1, float("inf")),
    "lora_dropout": (0, 0.99),
    "warmup": (0, float("inf")),
    "weight_decay": (0, float("inf")),
    "adam_beta2": (0, 0.999999),
    "max_grad_norm": (0, float("inf")),
    "epochs": (1e-6, float("inf")),
    "max_steps": (1, float("inf")),
    "max_tokens": (1, float("inf")),
    "per_device_train_batch_size": (1, float("inf")),
    "gradient_accumulation_steps": (1, float("inf")),
    "save_steps": (1, float("inf")),
    "eval_answers": (0, float("inf")),
    "eval_steps": (1, float("inf")),
    "early_stopping_patience": (1, float("inf")),
    "save_total_limit": (1, float("inf")),
    "logging_steps": (1, float("inf")),
    "cache_mib": (0, float("inf")),
    "dataloader_workers": (0, float("inf")),
}


def metric_names(scheme: str) -> list[str]:
    """What validation measures, and `best_metric` may be; no gate for a scheme that is not known."""
    gates = all_schemes()[scheme].gates if scheme in all_schemes() else ()
    return ["loss", *(f"{gate.name}_{metric}" for gate in gates for metric in _METRICS), ANSWERS]


def greater_is_better(metric: str) -> bool:
    """Whether more of a metric is better."""
    return not metric.endswith(("loss", "calibration_error"))


def hub_problems(repository: str) -> list[str]:
    """What is wrong with uploading to a repository, one sentence each; the Hub itself isn't asked."""
    from huggingface_hub import constants, get_token  # slow to import: only if something is to be uploaded

    issues = []
    if not _REPOSITORY.fullmatch(repository):
        issues.append(f"`push_to_hub` must be owner/name, found {repository}")
    if constants.HF_HUB_OFFLINE:
        issues.append("`push_to_hub` needs the Hub, and $HF_HUB_OFFLINE is set; unset it")
    elif get_token() is None:
        issues.append("`push_to_hub` needs a token: `hf auth login`, or set $HF_TOKEN")
    return issues

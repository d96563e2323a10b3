"""Read the modules, prompts, similarity and length that a sentence-transformers repository declares."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch
from safetensors.torch import load_file
from torch import nn

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError, one_line
from reflectune.core.hashing import file_fingerprint
from reflectune.core.paths import resolve_below
from reflectune.core.weights import UNLOADABLE
from reflectune.retrieval.encoders.checkpoints import Checkpoint
from reflectune.retrieval.encoders.settings import Similarity, TextSettings

PoolingMode = Literal["mean", "last", "cls"]

_POOLING_FILE: Final = "1_Pooling/config.json"
_POOLING_KEYS: Final[dict[str, PoolingMode]] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_cls_token": "cls",
}
_PROMPTS_FILE: Final = "config_sentence_transformers.json"
_LENGTH_FILE: Final = "sentence_bert_config.json"
_QUERY, _PASSAGE = ("query",), ("document", "passage", "corpus")
"""Names under which sentence-transformers looks up the prompts of questions and of passages."""

_ACTIVATIONS: Final[dict[str, type[nn.Module]]] = {
    kind.__name__: kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid)
}


@dataclass(frozen=True)
class Dense:
    """A linear layer after pooling, with its activation.

    Attributes:
        folder: Name of its folder in the repository.
        size: Length of the output vectors.
        activation: Class name in `torch.nn`.
    """

    folder: str
    size: int
    activation: str

    def files(self, root: Path) -> list[Path]:
        """Return the paths of its configuration and its weights."""
        weights = root / self.folder / "model.safetensors"
        pickled = root / self.folder / "pytorch_model.bin"
        return [root / self.folder / "config.json", weights if weights.is_file() or not pickled.is_file() else pickled]

    def load(self, checkpoint: Checkpoint, width: int) -> nn.Module:
        """Load the layer for input vectors of length `width`, in float32.

        Raises:
            UserError: Its weights are missing, damaged, of another shape, or not finite.
        """
        weights = self.files(checkpoint.folder)[1]
        fix = f"replace {weights}; a pickle on the hub is loaded only if the name pins a commit (owner/name@COMMIT)"
        try:
            pickled = weights.suffix == ".bin"
            tensors = torch.load(weights, map_location="cpu", weights_only=True) if pickled else load_file(weights)
            linear = nn.Linear(width, self.size, bias="linear.bias" in tensors)
            linear.load_state_dict({name.removeprefix("linear."): value.float() for name, value in tensors.items()})
        except (*UNLOADABLE, pickle.UnpicklingError) as error:
            raise UserError(
                f"the module {self.folder} of {checkpoint.name} can't be loaded: {one_line(error)}; {fix}"
            ) from error
        if not all(bool(weight.isfinite().all()) for weight in linear.parameters()):
            raise UserError(f"the module {self.folder} of {checkpoint.name} has weights that are not finite; {fix}")
        return nn.Sequential(linear, _ACTIVATIONS[self.activation]()).requires_grad_(False)


@dataclass(frozen=True)
class Modules:
    """Modules and settings that a repository declares.

    Attributes:
        name: Name of the checkpoint.
        pooling: Path of the pooling's configuration.
        dense: Linear layers after pooling, in their order.
        scales: True if vectors are scaled to length 1.
        lowers: True if texts are lower-cased.
        settings: Declared prefixes, similarity and length.
        unnamed: Names of the prompts, if none of them is for questions.
        fingerprints: Hash of the linear layers; empty without any.
    """

    name: str
    pooling: Path
    dense: tuple[Dense, ...] = ()
    scales: bool = False
    lowers: bool = False
    settings: TextSettings = field(default_factory=TextSettings)
    unnamed: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Modules:
        """Read the modules of a checkpoint; without such files all fields have their defaults.

        Raises:
            UserError: The checkpoint has an unsupported module, or a file is damaged.
        """
        folder = checkpoint.folder
        pooling, dense, scales = folder / _POOLING_FILE, list[Dense](), False
        for module in _listed(folder / "modules.json"):
            kind, path = str(module.get("type", "")), str(module.get("path", ""))
            match kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind:
                case "Transformer" if path in ("", "."):
                    pass
                case "Pooling" if not dense:
                    pooling = resolve_below(folder.absolute() / path, folder) / "config.json"
                case "Dense" if not scales:
                    dense.append(_dense(checkpoint, path))
                case "Normalize":
                    scales = True
                case "Dropout":  # nothing at inference
                    pass
                case _:
                    raise UserError(
                        f"{checkpoint.name} has the module `{kind}` (`{path}`, in modules.json), which isn't applied: "
                        "Transformer, Pooling, Dense and Normalize are, in this order; take another encoder"
                    )
        length, given = _read(folder / _LENGTH_FILE), _read(folder / _PROMPTS_FILE)
        query, passage, unnamed = _prompts(given)
        longest = length.get("max_seq_length")
        if longest is not None and (type(longest) is not int or longest < 1):
            raise UserError(f"{folder / _LENGTH_FILE}: `max_seq_length` is {longest!r}, not a number of tokens")
        declared = TextSettings("auto", given.get("similarity_fn_name") or "auto", query, passage, longest)
        files = [file for layer in dense for file in layer.files(folder) if file.is_file()]
        return cls(
            checkpoint.name,
            pooling,
            tuple(dense),
            scales,
            length.get("do_lower_case") is True,
            declared,
            unnamed,
            (file_fingerprint(*files),) if files else (),
        )

    def complete(self, settings: TextSettings) -> TextSettings:
        """Fill unset settings with the declared ones.

        Raises:
            UserError: The declared similarity is unknown, no prompt is for questions, or prompts are excluded from
                the pooling, which is not supported.
        """
        if settings.similarity == "auto" and self.settings.similarity not in get_args(Similarity):
            raise UserError(
                f"{self.name} compares vectors by `{self.settings.similarity}`; set the similarity to cosine or dot"
            )
        if self.unnamed and settings.query_prefix is None:
            raise UserError(
                f"{self.name} has the prompts {', '.join(self.unnamed)}, and none is named `query`; set the prefix of "
                'questions to one of their texts, or to ""'
            )
        completed = settings.completed(self.settings)
        has_prefix = bool(completed.query_prefix or completed.passage_prefix)
        if has_prefix and _read(self.pooling).get("include_prompt", True) is False:
            raise UserError(
                f"{self.pooling} leaves prompts out of the pooling (`include_prompt: false`), which isn't applied; "
                "take another encoder"
            )
        return completed


def refuse_dense(checkpoint: Checkpoint) -> None:
    """Raise UserError if the repository of a CLIP or a cross-encoder has the module Dense."""
    if any(str(module.get("type", "")).endswith(".Dense") for module in _listed(checkpoint.folder / "modules.json")):
        raise UserError(
            f"{checkpoint.name} has the module Dense (in modules.json), which is applied to text encoders only; take "
            "another model"
        )


def declared_pooling(checkpoint: Checkpoint, remedy: str) -> PoolingMode:
    """Return the pooling that a sentence-transformers repository declares.

    Args:
        checkpoint: The model's files.
        remedy: Advice in an error, e.g. "set `reranker_pooling` to mean, last or cls".

    Raises:
        UserError: It declares no pooling, or one that is not mean, last or cls.
    """
    path = Modules.of(checkpoint).pooling
    if not path.is_file():
        raise UserError(
            f"{checkpoint.name} doesn't say how its vectors are pooled (there is no {_POOLING_FILE}); look it up in "
            f"its model card and {remedy}"
        )
    declared = _read(path)
    modes = [key for key, value in declared.items() if key.startswith("pooling_mode_") and value is True]
    if not modes and isinstance(declared.get("pooling_mode"), str):  # as recent versions write it
        modes = [f"pooling_mode_{declared['pooling_mode']}"]
    known = {**_POOLING_KEYS, **{f"pooling_mode_{mode}": mode for mode in get_args(PoolingMode)}}
    known["pooling_mode_lasttoken"] = "last"
    if len(modes) != 1 or modes[0] not in known:
        raise UserError(f"{path} asks for {', '.join(modes) or 'no pooling'}; mean, last and cls are known; {remedy}")
    return known[modes[0]]


def _read(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; return {} if the file is missing."""
    value = read_json(path, "the encoder's settings") if path.is_file() else {}
    if not isinstance(value, dict):
        raise UserError(f"{path} is a {type(value).__name__}, not a JSON object; download it again")
    return value


def _listed(path: Path) -> list[dict[str, Any]]:
    value = read_json(path, "the encoder's modules") if path.is_file() else []
    if not isinstance(value, list) or not all(isinstance(module, dict) for module in value):
        raise UserError(f"{path} is not a list of modules; download it again")
    return value


def _dense(checkpoint: Checkpoint, path: str) -> Dense:
    """Read the configuration of a module Dense."""
    file = resolve_below(checkpoint.folder.absolute() / path, checkpoint.folder) / "config.json"
    config = _read(file)
    size, activation = config.get("out_features"), str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    reads = {config.get(key, "sentence_embedding") for key in ("module_input_name", "module_output_name")}
    if type(size) is not int or activation not in _ACTIVATIONS or not reads <= {"sentence_embedding", None}:
        raise UserError(
            f"the module Dense in {file} has {size} outputs, the activation {activation} and reads "
            f"{', '.join(map(str, reads))}; applied are {', '.join(_ACTIVATIONS)} after pooling; take another encoder"
        )
    return Dense(path, size, activation)


def _prompts(declared: Mapping[str, Any]) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return the prompts of questions and of passages, and the names of all prompts if none is for questions."""
    prompts = declared.get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    prompts = {name: text for name, text in prompts.items() if isinstance(text, str)}
    default = prompts.get(str(declared.get("default_prompt_name")))
    query = next((prompts[name] for name in _QUERY if name in prompts), default)
    passage = next((prompts[name] for name in _PASSAGE if name in prompts), default)
    return query, passage, tuple(prompts) if query is None and any(prompts.values()) else ()

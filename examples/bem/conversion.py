"""Convert BEM's TensorFlow variables into a PyTorch checkpoint, and check its logits against the original's.

The two inputs are made once, on a machine with TensorFlow that can download the model. This recipe has not been run:
the weights could not be downloaded here. The check of the logits makes sure that a conversion is right.

    import json, numpy, tensorflow_hub, tensorflow_text   # and E-VQA's evaluation_utils.py for `bertify`
    bem = tensorflow_hub.load("https://tfhub.dev/google/answer_equivalence/bem/1")
    variables = getattr(bem, "variables", None) or bem.signatures["serving_default"].variables
    numpy.savez("bem.npz", **{v.name.replace("/", "|"): v.numpy() for v in variables})
    rows = [{"candidate": c, "reference": r, "question": q, "input_ids": ids.tolist(),   # unpadded
             "logits": bem(padded).numpy()[0].tolist()} for c, r, q, ids, padded in …]   # 20 or more, of all lengths
    json.dump(rows, open("bem_logits.json", "w"))

vocab.txt is that of BERT base uncased. Two naming schemes are known: TensorFlow's first BERT's
(`bert/encoder/layer_0/attention/self/query/kernel`) and its Model Garden's
(`transformer/layer_0/self_attention/query/kernel`). `names` maps other names by hand.
"""

from __future__ import annotations

import dataclasses
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from reflectune.core.durable import read_json, read_record, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.rows import from_row
from reflectune.core.weights import UNLOADABLE
from reflectune.metrics.judging.bem import RECORD, Bem, load_tokenizer
from reflectune.metrics.official.evqa import BemLogits, evaluate_example

Arrays = Mapping[str, np.ndarray]

TOLERANCE = 1e-3
"""Maximum difference of a logit from the original's, in float32."""

PUBLISHED = (("William and Mary Menger", 1.0), ("the Baker family", 0.0))
"""Answers to one question in E-VQA's README (google-research/encyclopedic_vqa), with the official scores it states."""

_MENGER: Mapping[str, Any] = {
    "question": "Where does this hotel derive its name from?",
    "references": ["the Menger family"],
}
_LAYER = r"(?:bert/encoder|transformer|encoder)/layer_(\d+)"
_HF = r"bert.encoder.layer.\1"
_RULES = (
    (r"(?:bert/embeddings/word_embeddings|word_embeddings/embeddings)", "bert.embeddings.word_embeddings.weight"),
    (
        r"(?:bert/embeddings/position_embeddings|position_embedding/(?:position_)?embeddings)",
        "bert.embeddings.position_embeddings.weight",
    ),
    (
        r"(?:bert/embeddings/token_type_embeddings|type_embeddings/embeddings)",
        "bert.embeddings.token_type_embeddings.weight",
    ),
    (r"(?:bert/embeddings/LayerNorm|embeddings/layer_norm)/", "bert.embeddings.LayerNorm."),
    (_LAYER + r"/(?:attention/self|self_attention)/(query|key|value)/", _HF + r".attention.self.\2."),
    (
        _LAYER + r"/(?:attention/output/dense|self_attention/attention_output)/",
        _HF + ".attention.output.dense.",
    ),
    (
        _LAYER + r"/(?:attention/output/LayerNorm|self_attention_layer_norm)/",
        _HF + ".attention.output.LayerNorm.",
    ),
    (_LAYER + r"/intermediate/(?:dense/)?", _HF + ".intermediate.dense."),
    (_LAYER + r"/(?:output/LayerNorm|output_layer_norm)/", _HF + ".output.LayerNorm."),
    (_LAYER + r"/output/(?:dense/)?", _HF + ".output.dense."),
    (r"(?:bert/pooler/dense|pooler_transform)/", "bert.pooler.dense."),
    (r"output_weights", "classifier.weight"),
    (r"output_bias", "classifier.bias"),
    (r"(?:classifier|classification/predictions/transform/logits|sentence_prediction/logits|logits)/", "classifier."),
)
_LEAVES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
_NOT_WEIGHTS = re.compile(r"(?i)adam|optimizer|global_step|learning_rate|save_counter|iter(ation)?s?$")


_BAD_ARCHIVE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, BadZipFile, zlib.error)
"""Errors of NumPy, zipfile and zlib for a damaged .npz."""


@dataclass(frozen=True)
class LoggedTriple:
    """A triple with the original's two logits, and its word pieces if they are known."""

    candidate: str
    reference: str
    question: str
    logits: tuple[float, ...]
    input_ids: tuple[int, ...] = ()

    @property
    def triple(self) -> tuple[str, str, str]:
        """Texts that are compared."""
        return self.candidate, self.reference, self.question


@dataclass(frozen=True)
class Check:
    """Differences of the converted model from the original on the example triples."""

    activation: str
    mask_padding: bool
    largest_difference: float
    published: int = 0
    """Number of E-VQA's published examples that get their stated score: all of `PUBLISHED` with the real BEM."""


def convert(
    variables: Arrays, vocabulary: Path, examples: Sequence[LoggedTriple], output: Path, names: Mapping[str, str]
) -> Check:
    """Write a checkpoint folder that `load_bem` reads.

    The published module doesn't say if its GELU is exact, or if padding is masked. All four combinations are tried, and
    the one whose logits are nearest to the original's is written.

    Args:
        variables: TensorFlow's variables by name.
        vocabulary: BERT's vocab.txt.
        examples: Triples with the original's logits; see `read_triples`.
        output: Folder to write.
        names: PyTorch's name by TensorFlow's, for variables of an unknown naming scheme.

    Raises:
        UserError: A variable is missing, unknown or of another shape, word pieces differ from the original's, or no
            model comes within `TOLERANCE` of its logits.
    """
    if not examples:
        raise UserError("there are no example rows; a conversion that nothing checks is not written")
    tokenizer = load_tokenizer(vocabulary)
    weights = torch_weights(variables, names)
    checks: list[tuple[Check, Any]] = []
    for activation in ("gelu", "gelu_new"):
        model = _model(weights, activation)
        for mask_padding in (True, False):
            bem = Bem(model, tokenizer, mask_padding=mask_padding)
            checks.append((Check(activation, mask_padding, _difference(bem, examples)), model))
    best, model = min(checks, key=lambda checked_model: checked_model[0].largest_difference)
    if not best.largest_difference <= TOLERANCE:
        raise UserError(
            f"the converted model's logits differ from the original's by {best.largest_difference:.4g} at best, more "
            f"than {TOLERANCE}: a variable is taken for another (see `names`), or the example rows are of another model"
        )
    chosen = Bem(model, tokenizer, mask_padding=best.mask_padding)
    best = dataclasses.replace(best, published=published_right(chosen))
    model.save_pretrained(output)
    write_atomically(output / "vocab.txt", vocabulary.read_bytes())
    write_json(
        output / RECORD,
        {
            "source": "google/answer_equivalence/bem/1",
            "mask_padding": best.mask_padding,
            "checked_on": len(examples),
            "largest_difference": best.largest_difference,
            "published_right": best.published,
        },
    )
    return best


def published_right(bem_logits: BemLogits) -> int:
    """Return the number of E-VQA's published examples that get their stated score (both do with the real BEM).

    Args:
        bem_logits: A `Bem`, or another function that gives its logits.
    """
    scores = [
        evaluate_example(candidate=candidate, question_type="automatic", bem_logits=bem_logits, **_MENGER)
        for candidate, _ in PUBLISHED
    ]
    return sum(score == stated for score, (_, stated) in zip(scores, PUBLISHED, strict=True))


def read_triples(path: Path) -> list[LoggedTriple]:
    """Read the rows of a JSON file: `{"candidate", "reference", "question", "logits": [2], "input_ids"?: […]}`.

    Raises:
        UserError: The file is damaged, or a row is of another form.
    """
    rows = read_json(path, "the file of example triples")
    if not isinstance(rows, list):
        raise UserError(f"{path} should be a JSON list of example triples")
    examples = []
    for number, row in enumerate(rows, start=1):
        try:
            examples.append(from_row(LoggedTriple, row))
        except ValueError as error:
            raise UserError(f"{path}, triple {number}: {error}") from error
        logits = examples[-1].logits
        if len(logits) != 2 or not all(map(math.isfinite, logits)):
            raise UserError(f"{path}, triple {number}: `logits` should be two numbers, found {list(logits)}")
    return examples


def read_names(path: Path) -> dict[str, str]:
    """Read a JSON object of PyTorch's names by TensorFlow's.

    Raises:
        UserError: The file is damaged, or holds something else.
    """
    names = read_record(path, "the file of names")
    if odd := [name for name, target in names.items() if not isinstance(target, str)]:
        raise UserError(f"{path}: `{odd[0]}` should be PyTorch's name of it")
    return names


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz, without unpickling, by TensorFlow's names ("|" stands for "/", ":0" is removed)."""
    try:
        with path.open("rb") as stream, np.lib.npyio.NpzFile(stream, allow_pickle=False) as file:
            return {name.replace("|", "/").removesuffix(":0"): file[name] for name in file.files}
    except _BAD_ARCHIVE as error:
        raise UserError(f"{path} can't be read as the variables' .npz: {error}") from error


def torch_weights(variables: Arrays, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the variables by PyTorch's names; kernels are matrices of shape (out, in).

    Raises:
        UserError: Names a variable that no rule knows.
    """
    weights: dict[str, np.ndarray] = {}
    unknown = []
    for name, array in variables.items():
        target = names.get(name) or _torch_name(name)
        if target is None:
            unknown += [] if _NOT_WEIGHTS.search(name) else [f"{name} {array.shape}"]
        elif target in weights:
            raise UserError(f"two variables are {target}, one of them {name}; say which is which by `names`")
        else:
            weights[target] = _as_torch(name, target, array)
    if unknown:
        raise UserError(
            "\n  ".join(["variables of unknown naming; give their PyTorch names by `names`:", *sorted(unknown)])
        )
    return weights


def _torch_name(name: str) -> str | None:
    for pattern, replacement in _RULES:
        match = re.search(pattern, name)
        if match is None:
            continue
        leaf = name[match.end() :]
        if not replacement.endswith(".") and not leaf:
            return replacement
        if replacement.endswith(".") and leaf in _LEAVES:
            return match.expand(replacement) + _LEAVES[leaf]
    return None


def _as_torch(name: str, target: str, array: np.ndarray) -> np.ndarray:
    """Return an array in PyTorch's layout: kernels transposed, heads (768, 12, 64) or (12, 64, 768) joined."""
    if target.endswith(".bias"):
        return array.reshape(-1)
    if not name.endswith("kernel"):
        return array
    if array.ndim == 3:
        inputs = array.shape[0] * array.shape[1] if "output" in target else array.shape[0]
        return array.reshape(inputs, -1).T
    return array.T


def _model(weights: Arrays, activation: str) -> Any:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    try:
        words, hidden = weights["bert.embeddings.word_embeddings.weight"].shape
        config = BertConfig(
            vocab_size=words,
            hidden_size=hidden,
            num_hidden_layers=1 + max(int(match[1]) for key in weights if (match := re.search(r"layer\.(\d+)", key))),
            num_attention_heads=max(1, hidden // 64),
            intermediate_size=weights["bert.encoder.layer.0.intermediate.dense.bias"].shape[0],
            max_position_embeddings=weights["bert.embeddings.position_embeddings.weight"].shape[0],
            type_vocab_size=weights["bert.embeddings.token_type_embeddings.weight"].shape[0],
            hidden_act=activation,
            id2label={0: "not_equivalent", 1: "equivalent"},
            label2id={"not_equivalent": 0, "equivalent": 1},
        )
        model = BertForSequenceClassification(config)
        tensors = {key: torch.tensor(array, dtype=torch.float32) for key, array in weights.items()}
        model.load_state_dict(tensors, strict=True)
    except UNLOADABLE as error:
        raise UserError(f"the variables do not make a BERT classifier: {error}") from error
    return model.eval()


def _difference(bem: Bem, examples: Sequence[LoggedTriple]) -> float:
    """Return the largest difference of a logit over the examples."""
    for example in examples:
        if example.input_ids:
            _same_word_pieces(bem, example)
    expected = np.array([example.logits for example in examples])  # (examples, 2)
    return float(abs(bem.logits([example.triple for example in examples]) - expected).max())


def _same_word_pieces(bem: Bem, example: LoggedTriple) -> None:
    ids = list(np.trim_zeros(example.input_ids, "b"))
    bem_ids = bem.encode(example.triple)[0]
    if ids != bem_ids:
        raise UserError(f"word pieces of {example.candidate!r} differ from the original's: {bem_ids} and not {ids}")

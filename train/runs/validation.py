"""Validation while training: gates are read where they are supervised, and nothing is decoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reflectune.core.errors import UserError
from reflectune.core.paths import Roots
from reflectune.metrics.reporting.gates import accuracy, auroc, expected_calibration_error
from reflectune.models.attention.tree import IGNORE
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import TrainingExample
from reflectune.models.schemes.registry import find_scheme
from reflectune.train.settings.sft import SftConfig
from reflectune.train.data.examples import EncodedExamples, load_examples
from reflectune.train.runs.answers import check_answers
from reflectune.train.settings.validation import ANSWERS


@dataclass(frozen=True)
class Reading:
    """One gate that was read.

    Attributes:
        gate: Its name in the scheme.
        probability: Of the positive token, in the softmax over the gate's two tokens.
        positive: Whether the positive token is the label.
    """

    gate: str
    probability: float
    positive: bool


@dataclass
class Sums:
    """The weighted negative log-likelihood of the supervised tokens, and their weight."""

    loss: float = 0.0
    weight: float = 0.0


def load_validation(config: SftConfig) -> tuple[Sequence[TrainingExample], Roots] | None:
    """The validation data and the folders of its images, if there is any; checked as the training data is."""
    if not config.eval_data:
        return None
    examples, roots = load_examples(config.eval_part(), config.scheme)
    scheme = find_scheme(config.scheme)
    check_metric(config.best_metric, examples, scheme, config.eval_part().file)
    if config.eval_answers:
        check_answers(examples, scheme, config.eval_part().file)
    return examples, roots


def gate_truths(examples: Iterable[TrainingExample], scheme: Scheme) -> dict[str, set[bool]]:
    """The labels that occur at each gate of some examples, by the gate's name."""
    truths: dict[str, set[bool]] = {gate.name: set() for gate in scheme.gates}
    for example in examples:
        for gate in scheme.gates:
            truths[gate.name] |= gate.labels(scheme.roles(example))
    return truths


def check_metric(metric: str, examples: Sequence[TrainingExample], scheme: Scheme, path: Any) -> None:
    """Raise a `UserError` if validation data cannot give the metric that the best checkpoint is chosen by."""
    gate = metric.split("_")[0]
    labels = gate_truths(examples, scheme).get(gate, set())
    needed = 2 if metric.endswith("_auroc") else 1
    if metric not in ("", "loss", ANSWERS) and len(labels) < needed:
        what = f"only {labels.pop()} labels" if labels else "no label"
        raise UserError(f"`best_metric: {metric}` cannot be computed: {path} has {what} for the gate `{gate}`")


class GateReader:
    """Reads the gates of encoded examples with a model, sharing the work among processes.

    Args:
        dataset: The examples.
        collator: Makes a batch of them.
        renderer: Of the model, with its scheme.
        batch_size: Examples a batch.
    """

    def __init__(
        self,
        dataset: EncodedExamples,
        collator: Callable[[Sequence[Any]], dict[str, Any]],
        renderer: Renderer,
        batch_size: int,
    ) -> None:
        self.dataset, self._collator, self._batch_size = dataset, collator, batch_size
        self._image_token = renderer.image_token_id
        self._gates = [
            (gate.name, renderer.token_id(gate.positive), renderer.token_id(gate.negative))
            for gate in Scheme.of(renderer).gates
        ]

    def read(
        self, model: nn.Module, prepare: Callable[[dict[str, Any]], dict[str, Any]], rank: int, processes: int
    ) -> tuple[list[Reading], Sums]:
        """Read this process's share of the data: every `processes`-th example.

        Each process makes the same number of forward passes, which weights that are divided among them need; one
        that has run out reads its first batch again and doesn't count it.

        Args:
            model: The model, perhaps wrapped, in evaluation mode.
            prepare: Moves a batch to where the model is.
            rank: This process's number.
            processes: How many there are.
        """
        readings: list[Reading] = []
        sums = Sums()
        share = range(rank, len(self.dataset), processes)
        most = -(-len(self.dataset) // processes)
        for start in range(0, most, self._batch_size):
            batch_indices = share[start : start + self._batch_size]
            batch = self._collator([self.dataset[i] for i in batch_indices or [rank % len(self.dataset)]])
            for name in ("sample_ids", "tokens"):
                batch.pop(name)
            batch_readings, loss, weight = self._read_batch(model, prepare(batch))
            if batch_indices:
                readings += batch_readings
                sums = Sums(sums.loss + loss, sums.weight + weight)
        return readings, sums

    @torch.no_grad()
    def _read_batch(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[list[Reading], float, float]:
        labels, weights = batch.pop("labels"), batch.pop("weights")
        first = first_gates(
            batch["input_ids"], labels, self._image_token, [i for _, *ids in self._gates[:1] for i in ids]
        )
        targets = labels[:, 1:] != IGNORE  # position i predicts label i + 1
        logits = model(**batch, logits_to_keep=F.pad(targets, (0, 1)), use_cache=False).logits.float()
        wanted, kept = labels[:, 1:][targets], weights[:, 1:][targets]  # (supervised tokens,), as logits' rows
        losses = F.cross_entropy(logits, wanted, reduction="none") * kept
        readings = []
        for name, positive, negative in self._gates:
            rows = (wanted == positive) | (wanted == negative)
            if name == self._gates[0][0]:  # once for a question, however many rounds its conversation has
                rows &= first[:, 1:][targets]
            probabilities = logits[rows][:, [positive, negative]].softmax(-1)[:, 0]
            truths = wanted[rows] == positive
            readings += [Reading(name, p, t) for p, t in zip(probabilities.tolist(), truths.tolist(), strict=True)]
        return readings, float(losses.sum()), float(kept.sum())


def first_gates(ids: Tensor, labels: Tensor, image_token: int, gate_tokens: Sequence[int]) -> Tensor:
    """Where the first label of these gates stands in each question.

    Args:
        ids: Token ids of packed questions, shape (rows, tokens); a question has one run of image tokens, before its
            labels.
        labels: Theirs.
        image_token: The id of an image's placeholder.
        gate_tokens: The ids of a gate's two tokens.

    Returns:
        True there, shape (rows, tokens).
    """
    is_image = ids == image_token
    before = torch.cat([torch.zeros_like(is_image[:, :1]), is_image[:, :-1]], dim=1)
    question = (is_image & ~before).cumsum(1) + ids.shape[1] * torch.arange(len(ids), device=ids.device)[:, None]
    first = torch.isin(labels, torch.tensor(gate_tokens, device=ids.device, dtype=labels.dtype))
    numbers = question[first]  # of each gate's question, ascending
    first[first.clone()] = torch.cat([torch.ones_like(numbers[:1]), numbers[1:] - numbers[:-1]]).bool()
    return first


def gate_metrics(readings: Iterable[Reading], sums: Sums) -> dict[str, float]:
    """`loss`, and for each gate that was read its accuracy, AUROC (if both labels occur) and calibration error."""
    metrics: dict[str, float] = {"loss": sums.loss / sums.weight}
    by_gate: dict[str, list[Reading]] = defaultdict(list)
    for reading in readings:
        by_gate[reading.gate].append(reading)
    for gate, gate_readings in sorted(by_gate.items()):
        probabilities, truths = [r.probability for r in gate_readings], [r.positive for r in gate_readings]
        metrics[f"{gate}_accuracy"] = accuracy([p >= 0.5 for p in probabilities], truths)
        if len(set(truths)) == 2:
            metrics[f"{gate}_auroc"] = auroc(probabilities, truths)
        metrics[f"{gate}_calibration_error"] = expected_calibration_error(probabilities, truths)
    return metrics

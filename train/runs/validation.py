"""Validation during training: gates are read at their supervised tokens, without decoding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reflectune.core.errors import UserError
from reflectune.core.launching import Processes
from reflectune.core.paths import Roots
from reflectune.metrics.reporting.gates import accuracy, auroc, expected_calibration_error
from reflectune.models.attention.collation import supervised
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import TrainingExample
from reflectune.models.schemes.registry import find_scheme
from reflectune.train.data.examples import EncodedExamples, load_examples
from reflectune.train.data.mixture import DataSource
from reflectune.train.runs.answers import check_answers
from reflectune.train.settings.validation import ANSWERS, ValidationConfig


@dataclass(frozen=True)
class GateReading:
    """Probability and label of one gate.

    Attributes:
        gate: Its name in the scheme.
        probability: Probability of the positive token, in the softmax over the gate's two tokens.
        positive: True if the positive token is the label.
    """

    gate: str
    probability: float
    positive: bool


@dataclass
class WeightedLoss:
    """The weighted negative log-likelihood of the supervised tokens, and their weight."""

    loss: float = 0.0
    weight: float = 0.0


def load_validation(
    validation: ValidationConfig, source: DataSource, scheme: str, prompts: str, processes: Processes
) -> tuple[Sequence[TrainingExample], Roots] | None:
    """Read the validation data, with the checks of training data; None if there is none.

    Args:
        validation: The metric that selects the weights, and the number of answers to score.
        source: The data.
        scheme: Name of the scheme.
        prompts: Variant of its prompts.
        processes: Processes of the launch; the first one checks.
    """
    if not validation.eval_data:
        return None
    examples, roots = load_examples(source, scheme, prompts, processes)
    if not processes.index:
        check_metric(validation.best_metric, examples, find_scheme(scheme), source.file)
        if validation.eval_answers:
            check_answers(examples, find_scheme(scheme), source.file)
    return examples, roots


def gate_truths(examples: Iterable[TrainingExample], scheme: Scheme) -> dict[str, set[bool]]:
    """Return the labels that occur at each gate, by the gate's name."""
    truths: dict[str, set[bool]] = {gate.name: set() for gate in scheme.gates}
    for example in examples:
        for gate in scheme.gates:
            truths[gate.name] |= gate.labels(scheme.roles(example))
    return truths


def check_metric(metric: str, examples: Sequence[TrainingExample], scheme: Scheme, path: Path) -> None:
    """Raise a `UserError` if the metric that selects the weights can't be computed from the validation data."""
    gate = metric.split("_")[0]
    labels = gate_truths(examples, scheme).get(gate, set())
    needed = 2 if metric.endswith("_auroc") else 1
    if metric not in ("", "loss", ANSWERS) and len(labels) < needed:
        found = f"only {labels.pop()} labels" if labels else "no label"
        raise UserError(f"`best_metric: {metric}` cannot be computed: {path} has {found} for the gate `{gate}`")


class GateReader:
    """Reads the gates of encoded examples with a model, sharing the work among processes.

    Args:
        dataset: The examples.
        collator: Makes a batch of them.
        renderer: The model's, with its scheme.
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
        self._image_token = renderer.expansion.token
        self._gates = [
            (gate.name, renderer.token_id(gate.positive), renderer.token_id(gate.negative))
            for gate in Scheme.of(renderer).gates
        ]

    def read(
        self, model: nn.Module, prepare: Callable[[dict[str, Any]], dict[str, Any]], rank: int, processes: int
    ) -> tuple[list[GateReading], WeightedLoss]:
        """Read this process's share of the data: every `processes`-th example.

        Each process makes the same number of forward passes, as sharded weights require. A process without a batch left
        reads its first example again and ignores the result.

        Args:
            model: The model, perhaps wrapped, in evaluation mode.
            prepare: Moves a batch to the model's device.
            rank: Index of this process.
            processes: Number of processes.
        """
        readings: list[GateReading] = []
        total = WeightedLoss()
        share = range(rank, len(self.dataset), processes)
        longest_share = -(-len(self.dataset) // processes)
        for start in range(0, longest_share, self._batch_size):
            batch_indices = share[start : start + self._batch_size]
            batch = self._collator([self.dataset[i] for i in batch_indices or [rank % len(self.dataset)]])
            for name in ("sample_ids", "tokens", "left_out"):
                batch.pop(name)
            batch_readings, loss, weight = self._read_batch(model, prepare(batch))
            if batch_indices:
                readings += batch_readings
                total = WeightedLoss(total.loss + loss, total.weight + weight)
        return readings, total

    @torch.no_grad()
    def _read_batch(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[list[GateReading], float, float]:
        first_gate_ids = [token_id for _, *ids in self._gates[:1] for token_id in ids]
        first = first_gates(batch["input_ids"], batch["labels"], self._image_token, first_gate_ids)
        logits, tokens, token_weights = supervised(model, batch)
        losses = F.cross_entropy(logits.float(), tokens, reduction="none") * token_weights
        readings, is_counted = [], token_weights > 0  # a substitute for an example that doesn't fit has weight 0
        for name, positive, negative in self._gates:
            rows = ((tokens == positive) | (tokens == negative)) & is_counted
            if name == self._gates[0][0]:  # only the first one of a conversation
                rows &= first[0, batch["predicts"] + 1]
            probabilities = logits[rows][:, [positive, negative]].float().softmax(-1)[:, 0]
            truths = tokens[rows] == positive
            readings += [GateReading(name, p, t) for p, t in zip(probabilities.tolist(), truths.tolist(), strict=True)]
        return readings, float(losses.sum()), float(token_weights.sum())


def first_gates(ids: Tensor, labels: Tensor, image_token: int, gate_tokens: Sequence[int]) -> Tensor:
    """Mark the first label of these gates in each question.

    Args:
        ids: Token ids of packed questions, shape (rows, tokens); a question's image tokens precede its labels.
        image_token: The id of an image's placeholder.
        gate_tokens: The ids of a gate's two tokens.

    Returns:
        True at these labels, shape (rows, tokens).
    """
    is_image = ids == image_token
    before = torch.cat([torch.zeros_like(is_image[:, :1]), is_image[:, :-1]], dim=1)
    question = (is_image & ~before).cumsum(1) + ids.shape[1] * torch.arange(len(ids), device=ids.device)[:, None]
    first = torch.isin(labels, torch.tensor(gate_tokens, device=ids.device, dtype=labels.dtype))
    numbers = question[first]  # question of each gate, ascending
    first[first.clone()] = torch.cat([torch.ones_like(numbers[:1]), numbers[1:] - numbers[:-1]]).bool()
    return first


def gate_metrics(readings: Iterable[GateReading], total: WeightedLoss) -> dict[str, float]:
    """Compute `loss`, and for each gate accuracy, AUROC (if both labels occur) and calibration error."""
    metrics: dict[str, float] = {"loss": total.loss / total.weight}
    by_gate: dict[str, list[GateReading]] = defaultdict(list)
    for reading in readings:
        by_gate[reading.gate].append(reading)
    for gate, gate_readings in sorted(by_gate.items()):
        probabilities, truths = [r.probability for r in gate_readings], [r.positive for r in gate_readings]
        metrics[f"{gate}_accuracy"] = accuracy([p >= 0.5 for p in probabilities], truths)
        if len(set(truths)) == 2:
            metrics[f"{gate}_auroc"] = auroc(probabilities, truths)
        metrics[f"{gate}_calibration_error"] = expected_calibration_error(probabilities, truths)
    return metrics

"""Calibration of gates: a scaling of each gate, saved next to a checkpoint's scheme as `calibration.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from reflectune.core.durable import read_record, write_json
from reflectune.core.errors import UserError
from reflectune.models.schemes.base import Scheme

CALIBRATION_FILE = "calibration.json"

SMALLEST = 1e-6
"""Probabilities are clamped to [1e-6, 1 - 1e-6] before their logs are taken."""


@dataclass(frozen=True)
class GateScaling:
    """Beta calibration of a gate (Kull et al. 2017): sigmoid(scale_no · log p - scale_yes · log(1 - p) + bias).

    It is Dirichlet calibration of two classes. With equal scales it is Platt scaling, sigmoid(scale · z + bias) of
    log-odds z, and without a bias as well temperature scaling.

    Attributes:
        scale_no: Scale of log-odds far below 0, above 0; below 1 for a gate that says no too surely.
        scale_yes: Scale of log-odds far above 0, above 0; below 1 for a gate that says yes too surely.
        bias: Shift of the log-odds.
    """

    scale_no: float = 1.0
    scale_yes: float = 1.0
    bias: float = 0.0

    def apply(self, probabilities: ArrayLike) -> np.ndarray:
        """Return the calibrated probabilities, same shape; their order stays.

        Args:
            probabilities: Softmax of the gate's two logits, in [0, 1].

        Raises:
            ValueError: A probability is not in [0, 1].
        """
        return sigmoid(beta_features(probabilities) @ np.array([self.scale_no, self.scale_yes, self.bias]))

    def undo(self, probabilities: ArrayLike) -> np.ndarray:
        """Return the probabilities that `apply` made these of, by bisection, as far as they were not clamped."""
        values = np.asarray(probabilities, dtype=float)
        low, high = np.zeros_like(values), np.ones_like(values)
        for _ in range(60):
            middle = (low + high) / 2
            below = self.apply(middle) < values
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class Calibration:
    """Scalings of a checkpoint's gates, and the questions that they were fitted on.

    Attributes:
        gates: By the gate's name in the scheme. A gate without a scaling is not calibrated.
        weights: Hash of the checkpoint's weights.
        dataset: Fingerprint of the data set.
        splits: Its splits.
    """

    gates: Mapping[str, GateScaling] = field(default_factory=dict)
    weights: str = ""
    dataset: str = ""
    splits: Sequence[str] = ()

    def save(self, folder: str | Path, scheme: Scheme) -> None:
        """Write `calibration.json` into a checkpoint's folder, with each gate's tokens."""
        gates = {
            gate.name: {
                "positive": scheme.tokens[gate.positive],
                "negative": scheme.tokens[gate.negative],
                **asdict(self.gates[gate.name]),
            }
            for gate in scheme.gates
            if gate.name in self.gates
        }
        facts = {"weights": self.weights, "dataset": self.dataset, "splits": list(self.splits)}
        write_json(Path(folder) / CALIBRATION_FILE, {"gates": gates, **facts})


def load_calibration(folder: str | Path, weights: str) -> Calibration:
    """Read a checkpoint's calibration.

    Args:
        folder: The checkpoint's folder.
        weights: Hash of its weights.

    Raises:
        UserError: There is none, it is damaged, or it was fitted for other weights.
    """
    path = Path(folder) / CALIBRATION_FILE
    if not path.is_file():
        raise UserError(
            f"{folder} has no {CALIBRATION_FILE}; fit one with `reflectune evaluate --fit_calibration true`"
        )
    record = read_record(path, "the checkpoint's calibration", gates=dict, weights=str, dataset=str, splits=list)
    try:
        keys = [key.name for key in fields(GateScaling)]
        gates = {name: GateScaling(*(float(row[key]) for key in keys)) for name, row in record["gates"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: expected {', '.join(keys)} of each gate: {error!r}; fit it again") from error
    if record.get("weights", "") != weights:
        raise UserError(f"{path} was fitted for other weights than the checkpoint's; fit it again")
    return Calibration(gates, weights, record.get("dataset", ""), record.get("splits", ()))


def beta_features(probabilities: ArrayLike) -> np.ndarray:
    """Return log p, -log(1 - p) and 1 for each of some clamped probabilities, shape (…, 3).

    Raises:
        ValueError: A probability is not in [0, 1].
    """
    clamped = np.clip(checked_probabilities(probabilities), SMALLEST, 1 - SMALLEST)
    return np.stack([np.log(clamped), -np.log1p(-clamped), np.ones_like(clamped)], axis=-1)


def checked_probabilities(values: ArrayLike) -> np.ndarray:
    """Return values as an array; raise a ValueError if one of them is not in [0, 1]."""
    checked = np.asarray(values, dtype=float)
    if not ((checked >= 0) & (checked <= 1)).all():
        raise ValueError(f"expected probabilities in [0, 1], found {checked.min()} to {checked.max()}")
    return checked


def sigmoid(values: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), same shape."""
    return (1 + np.tanh(values / 2)) / 2  # no exponential overflows

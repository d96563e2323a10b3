"""Calibration of gates: a scaling of each gate, saved next to a checkpoint's scheme as `calibration.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from reflectune.core.durable import read_record, write_json
from reflectune.core.errors import UserError
from reflectune.core.odds import sigmoid
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
        scale_no: Scale of log-odds far below 0, above 0; below 1 for a gate that is overconfident in its no.
        scale_yes: Scale of log-odds far above 0, above 0; below 1 for a gate that is overconfident in its yes.
        bias: Shift of the log-odds.
    """

    scale_no: float = 1.0
    scale_yes: float = 1.0
    bias: float = 0.0

    def apply(self, probabilities: ArrayLike) -> np.ndarray:
        """Return the calibrated probabilities, same shape; their order stays."""
        scaled: np.ndarray = sigmoid(
            beta_features(probabilities) @ np.array([self.scale_no, self.scale_yes, self.bias])
        )
        return scaled

    def undo(self, probabilities: ArrayLike) -> np.ndarray:
        """Return the probabilities that `apply` made these of, by bisection, as far as they were not clamped."""
        low, high = np.zeros(np.shape(probabilities)), np.ones(np.shape(probabilities))
        for _ in range(60):
            below = self.apply((low + high) / 2) < probabilities
            low, high = np.where(below, (low + high) / 2, low), np.where(below, high, (low + high) / 2)
        return low


@dataclass(frozen=True)
class Calibration:
    """Content of a checkpoint's `calibration.json`.

    Attributes:
        gates: Scalings by the gate's name in the scheme.
        weights: Hash of the checkpoint's weights.
        dataset: Fingerprint of the data set that they were fitted on.
        splits: Its splits.
    """

    gates: Mapping[str, GateScaling] = field(default_factory=dict)
    weights: str = ""
    dataset: str = ""
    splits: Sequence[str] = ()

    def save(self, folder: Path, scheme: Scheme) -> None:
        """Write `calibration.json` into a checkpoint's folder, with each gate's tokens."""
        tokens = {g.name: {"yes": scheme.tokens[g.positive], "no": scheme.tokens[g.negative]} for g in scheme.gates}
        record = asdict(self)
        gates = {name: tokens[name] | scaling for name, scaling in record["gates"].items()}
        write_json(folder / CALIBRATION_FILE, record | {"gates": gates})


def load_calibration(folder: Path, weights: str) -> Calibration:
    """Read the calibration of a checkpoint whose weights have this hash.

    Raises:
        UserError: There is none, it is damaged, or it was fitted for other weights.
    """
    path = folder / CALIBRATION_FILE
    if not path.is_file():
        raise UserError(
            f"{folder} has no {CALIBRATION_FILE}; fit one with `reflectune evaluate --fit_calibration true`"
        )
    saved = read_record(path, "the checkpoint's calibration", gates=dict, weights=str, dataset=str, splits=list)
    try:
        gates = {
            name: GateScaling(float(row["scale_no"]), float(row["scale_yes"]), float(row["bias"]))
            for name, row in saved["gates"].items()
        }
        calibration = Calibration(gates, saved["weights"], saved["dataset"], saved["splits"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error!r}; fit it again") from error
    if calibration.weights != weights:
        raise UserError(f"{path} was fitted for other weights than the checkpoint's; fit it again")
    return calibration


def beta_features(probabilities: ArrayLike) -> np.ndarray:
    """Return log p, -log(1 - p) and 1 for each of some clamped probabilities, shape (…, 3)."""
    clamped = np.clip(checked_probabilities(probabilities), SMALLEST, 1 - SMALLEST)
    return np.stack([np.log(clamped), -np.log1p(-clamped), np.ones_like(clamped)], axis=-1)


def checked_probabilities(values: ArrayLike) -> np.ndarray:
    """Return values as an array; raise a ValueError if one of them is not in [0, 1]."""
    checked = np.asarray(values, dtype=float)
    if not ((checked >= 0) & (checked <= 1)).all():
        raise ValueError(f"expected probabilities in [0, 1], found {checked.min()} to {checked.max()}")
    return checked

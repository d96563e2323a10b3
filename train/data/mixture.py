"""What training reads: one data set, or several with weights that say how often each example is seen in an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import PlainValidator

from reflectune.core.parsing import parse_json
from reflectune.core.values import short, split_problem
from reflectune.formats.reflection_data import MANIFEST

MOST_WEIGHT: Final = 10_000
"""Reads of an example in an epoch."""

_KEYS: Mapping[str, Any] = {"weight": (int, float), "split": str, "image_root": str}


@dataclass(frozen=True)
class Part:
    """One data set.

    Attributes:
        data: A folder of reflection data, or one Parquet file.
        split: Which of a folder's.
        image_root: The folder of its images; "" for the one that its manifest names.
        weight: How often an epoch reads each example: 2 for twice, 0.5 for a half that is drawn anew each epoch.
    """

    data: str
    split: str
    image_root: str = ""
    weight: float = 1.0

    @property
    def folder(self) -> Path:
        """The folder of its data."""
        return Path(self.data).parent if Path(self.data).is_file() else Path(self.data)

    @property
    def file(self) -> Path:
        """The Parquet file with its examples."""
        path = Path(self.data)
        return path if path.suffix == ".parquet" else path / f"{self.split}.parquet"

    def problems(self) -> list[str]:
        """What is wrong with it, one sentence each."""
        if not Path(self.data).exists():
            return [f"{self.data} does not exist; build it with data_builders.build_mr2ag"]
        if not self.weight > 0:
            return [f"the weight of {self.data} must be above 0, found {self.weight}"]
        if self.weight > MOST_WEIGHT:
            return [f"the weight of {self.data} must be at most {MOST_WEIGHT:,}, found {self.weight:g}"]
        if self.image_root and not Path(self.image_root).is_dir():
            return [f"`image_root`: {self.image_root} is not a folder"]
        if not self.image_root and not (self.folder / MANIFEST).is_file():
            return [f"`image_root` is needed: there is no {MANIFEST} beside {self.data} to say where the images are"]
        return []


class Mixture(dict[str, Any]):
    """Data sets, each with its weight, or with `weight`, `split` and `image_root`; a path alone is one data set.

    In YAML one data set is `train_data: FOLDER`, and several are

        train_data:
          runs/data/infoseek/reflection: 1
          runs/data/nq/reflection: {weight: 0.5, split: all, image_root: nq/images}

    On the command line several are given as JSON.
    """

    def __init__(self, values: Any = ()) -> None:
        """Read a path, JSON, or a mapping."""
        if isinstance(values, str):
            values = parse_json(values) if values.startswith("{") else {values: 1} if values else {}
        super().__init__(values)

    def __str__(self) -> str:
        """The data sets with their weights, in words."""
        if list(self.values()) == [1]:
            return next(iter(self))
        return ", ".join(f"{_keys(value).get('weight', 1)} x {data}" for data, value in self.items())

    def malformed(self) -> list[str]:
        """Values that are neither a weight nor a mapping of the right keys, one sentence each."""
        issues: list[str] = []
        for data, value in self.items():
            settings = _keys(value)
            unknown = set(settings) - set(_KEYS)
            if unknown:
                issues.append(f"{data} has the unknown key(s) {', '.join(sorted(unknown))}, not {', '.join(_KEYS)}")
            wrong = [
                name
                for name in sorted(set(settings) & set(_KEYS))
                if not isinstance(settings[name], _KEYS[name]) or isinstance(settings[name], bool)
            ]
            if isinstance(settings.get("split"), str) and (told := split_problem(settings["split"])):
                issues.append(f"{data}: `split` {told}")
            issues += [f"{data}: `{name}` can't be {settings[name]!r}" for name in wrong]
        return issues

    def parts(self, split: str, image_root: str) -> list[Part]:
        """The data sets, with what those have that name nothing else."""
        return [
            Part(data, **{"split": split, "image_root": image_root, **_keys(value)}) for data, value in self.items()
        ]


def read_mixture(value: Any) -> Mixture:
    """Read a setting: a path, JSON or a mapping."""
    if not isinstance(value, (str, Mapping)):
        raise ValueError(f"must be a folder, or a mapping of folders to weights, found {short(repr(value))}")
    try:
        return Mixture(value)
    except ValueError as error:
        raise ValueError(f"must be a folder or a JSON mapping: {error}") from None


MixtureSetting = Annotated[Mixture, PlainValidator(read_mixture)]


def epoch_reads(count: int, weight: float) -> int:
    """How many examples an epoch reads of a data set of `count`; at least one, if there is one."""
    return max(round(count * weight), min(count, 1))


def mixture_lines(parts: Sequence[Part], counts: Sequence[int]) -> list[str]:
    """Each data set with its number of examples and how many an epoch reads, for a person to read."""
    return [
        f"{part.weight:g} x {part.file}: {count:,} questions, {epoch_reads(count, part.weight):,} reads an epoch"
        for part, count in zip(parts, counts, strict=True)
    ]


def _keys(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {"weight": value}

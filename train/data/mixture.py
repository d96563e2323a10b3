"""Sources of training data: one data set, or several with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import PlainValidator

from reflectune.core.values import short, split_problem
from reflectune.formats.dataset import MANIFEST as DATASET
from reflectune.formats.reflection_data import MANIFEST

MAX_WEIGHT: Final = 10_000
"""Maximum reads of an example in an epoch."""

_KEYS: Mapping[str, Any] = {"weight": (int, float), "split": str, "image_root": str}


@dataclass(frozen=True)
class DataSource:
    """A data set to read.

    Attributes:
        data: A folder of reflection data, or one Parquet file.
        split: A split of the folder.
        image_root: Folder of its images; "" for the one in its manifest.
        weight: How often an epoch reads each example; 0.5 reads a random half, redrawn each epoch.
    """

    data: str
    split: str
    image_root: str = ""
    weight: float = 1.0

    @property
    def folder(self) -> Path:
        """Folder of its data."""
        return Path(self.data).parent if Path(self.data).is_file() else Path(self.data)

    @property
    def file(self) -> Path:
        """The Parquet file with its examples."""
        path = Path(self.data)
        return path if path.suffix == ".parquet" else path / f"{self.split}.parquet"

    def problems(self) -> list[str]:
        """Return its problems, one sentence each."""
        if not Path(self.data).exists():
            return [f"{self.data} does not exist (looked in {Path.cwd()}); build it with `reflectune build_mr2ag`"]
        if not self.weight > 0:
            return [f"the weight of {self.data} must be above 0, found {self.weight}"]
        if self.weight > MAX_WEIGHT:
            return [f"the weight of {self.data} must be at most {MAX_WEIGHT:,}, found {self.weight:g}"]
        if self.image_root and not Path(self.image_root).is_dir():
            return [f"`image_root`: {self.image_root} is not a folder"]
        if (self.folder / DATASET).is_file() and not (self.folder / MANIFEST).is_file():
            return [f"{self.data} is a data set; build training data from it, by `reflectune build_mr2ag`"]
        if not self.image_root and not (self.folder / MANIFEST).is_file():
            return [f"`image_root` is needed: there is no {MANIFEST} next to {self.data} that names the images' folder"]
        return []


class Mixture(dict[str, Any]):
    """Data sets, each with a weight or with `weight`, `split` and `image_root`. A single path is one data set.

    In YAML one data set is `train_data: FOLDER`, and several are

        train_data:
          runs/data/infoseek/reflection: 1
          runs/data/nq/reflection: {weight: 0.5, split: all, image_root: nq/images}

    On the command line several are given as JSON.
    """

    def __init__(self, values: Any = ()) -> None:
        """Read a path or a mapping."""
        if isinstance(values, str):
            values = {values: 1} if values else {}
        super().__init__({str(data): value for data, value in dict(values).items()})

    def __str__(self) -> str:
        """Return the data sets with their weights."""
        if list(self.values()) == [1]:
            return next(iter(self))
        return ", ".join(f"{_keys(value).get('weight', 1)} x {data}" for data, value in self.items())

    def malformed(self) -> list[str]:
        """Return the problems of values that are neither a weight nor a mapping of the right keys."""
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
            if isinstance(settings.get("split"), str) and (problem := split_problem(settings["split"])):
                issues.append(f"{data}: `split` {problem}")
            issues += [f"{data}: `{name}` can't be {settings[name]!r}" for name in wrong]
        return issues

    def sources(self, split: str, image_root: str) -> list[DataSource]:
        """Return the data sets, with defaults for their split and image root."""
        defaults = {"split": split, "image_root": image_root}
        return [DataSource(data, **{**defaults, **_keys(value)}) for data, value in self.items()]


def read_mixture(value: Any) -> Mixture:
    """Read a setting: a path or a mapping."""
    if not isinstance(value, (str, Mapping)):
        raise ValueError(f"must be a folder, or a mapping of folders to weights, found {short(repr(value))}")
    return Mixture(value)


MixtureSetting = Annotated[Mixture, PlainValidator(read_mixture)]


def epoch_reads(count: int, weight: float) -> int:
    """Return how many examples an epoch reads from a data set of `count` examples; at least one unless it is empty."""
    return max(round(count * weight), min(count, 1))


def mixture_lines(sources: Sequence[DataSource], counts: Sequence[int]) -> list[str]:
    """Describe each data set by its number of examples and its reads in an epoch."""
    return [
        f"{source.weight:g} x {source.file}: {count:,} questions, {epoch_reads(count, source.weight):,} reads an epoch"
        for source, count in zip(sources, counts, strict=True)
    ]


def _keys(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {"weight": value}

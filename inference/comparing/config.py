"""The settings of `compare.py`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.hashing import fingerprint
from reflectune.core.values import one_of, output_of
from reflectune.inference.scoring.trajectories import COSTS


@dataclass(frozen=True)
class Planned:
    """An evaluation to run: a config of `evaluate`, with some of its keys changed.

    Attributes:
        path: The config's file.
        changes: Values by key, as on a command line.
    """

    path: Path
    changes: Mapping[str, str]

    @classmethod
    def of(cls, name: str) -> Planned | None:
        """The evaluation that is named as `CONFIG.yaml key=value …`; None if it is none, such as a finished folder.

        Raises:
            ValueError: A quote isn't closed, or what follows a config is no `key=value`.
        """
        if Path(name).is_dir():
            return None
        path, *words = shlex.split(name) or [""]
        pairs = [word.partition("=") for word in words]
        if wrong := [word for word, (key, mark, _) in zip(words, pairs, strict=True) if not (key and mark)]:
            raise ValueError(f"`{wrong[0]}` behind {path} is no key=value")
        return cls(Path(path), {key: value for key, _, value in pairs})

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.path.stem}-{fingerprint(dict(self.changes))[:8]}" if self.changes else self.path.stem


class CompareConfig(Settings):
    """Set the evaluations of several data sets, models or seeds in one table, with what each pipeline costs."""

    evaluations: list[str] = setting(
        [], "configs of `evaluate`, run into the output folder (FILE key=value … changes keys), or finished folders"
    )
    limit: int | None = setting(None, "questions per split of those that are run; as their configs say if unset", ge=1)
    output: Annotated[str, output_of()] = setting(
        "",
        "folder for compare.md, compare.svg, compare.json and runs",
        needed="a folder for compare.md and compare.svg",
    )
    cost: Annotated[str, one_of(*COSTS)] = setting("read", "the horizontal axis of the plot")
    dry_run: bool = setting(False, "say what would be done, and stop")

    @cross_check
    def compare_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        issues: list[str] = []
        if not self.evaluations:
            issues.append("`evaluations` is empty; name configs of `evaluate`, or folders that it wrote")
        folders: list[str] = []
        for name in self.evaluations:
            try:
                planned = Planned.of(name)
            except ValueError as error:
                issues.append(f"`evaluations`: {error}")
                continue
            if planned is None:
                if not Path(name, "metrics.json").is_file():
                    issues.append(f"`evaluations`: {name} has no metrics.json; is its evaluation finished?")
                continue
            folders.append(planned.folder)
            if planned.path.suffix not in (".yaml", ".yml") or not planned.path.is_file():
                issues.append(f"`evaluations`: {planned.path} is neither a YAML file nor a folder of `evaluate`")
            if "output" in planned.changes:
                issues.append(
                    f"`evaluations`: {planned.path} is run into this comparison's `output`; leave out output="
                )
        if len(set(folders)) < len(folders):
            issues.append(
                "`evaluations`: two configs have one file name and equal changes, which name their folders; rename one"
            )
        return issues

    def folders(self) -> dict[str, Path]:
        """Where each evaluation is, or will be."""
        planned = {name: Planned.of(name) for name in self.evaluations}
        return {
            name: Path(self.output, "runs", each.folder) if each is not None else Path(name)
            for name, each in planned.items()
        }

    def planned(self) -> dict[Path, Mapping[str, str]]:
        """The configs of evaluations that are to be run, each with the keys that are changed, by its folder."""
        limit = {} if self.limit is None else {"limit": str(self.limit)}
        return {
            folder: {"config": str(each.path), **each.changes, **limit, "output": str(folder)}
            for name, folder in self.folders().items()
            if (each := Planned.of(name)) is not None
        }

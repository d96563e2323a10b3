"""The settings of `reproduce.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.parsing import read_yaml
from reflectune.core.values import file_problem, folder_problem, output_of, short, split_problem
from reflectune.inference.reproduction.changes import Changes, merged, read_changes
from reflectune.inference.reproduction.steps import Step, read_steps
from reflectune.inference.reproduction.tables import table_problems


class ReproduceConfig(Settings):
    """A paper's steps from its downloads to its tables: which are done, stale or next; without `status`, run them."""

    paper: str = setting(
        "", "what the list is called; names the folder of its logs and tables", needed="a name for the list of steps"
    )
    steps: dict[str, Any] = setting(
        {},
        "by name, in order: module, config, set, launch, gigabytes, serves, extra",
        needed="e.g. configs/reproduce/mr2ag/steps.yaml",
    )
    tables: dict[str, Any] = setting({}, "by title: the step and the place in its output of each of a table's rows")
    choices: dict[str, Any] = setting({}, "by name: other settings, which `choose` takes")
    data: str = setting(".", "folder that the paths of all steps start from: downloads, runs, checkpoints")
    output: Annotated[str, output_of()] = setting(
        "", "folder for logs and tables.md; default: runs/reproduce/PAPER in `data`"
    )
    choose: list[str] = setting([], "of `choices`, those to take")
    changes: list[str] = setting([], "YAML files with settings of your own: settings, instead, launch, without, room")
    extras: list[str] = setting([], "groups of steps to take that are left out otherwise (`extra` of a step)")
    only: list[str] = setting([], "steps to show or run; all if unset")
    redo: list[str] = setting([], "steps whose output is moved aside (to NAME.before) and made anew")
    status: bool = setting(False, "say of each step whether it is done, stale, half done, next or blocked, and stop")
    dry_run: bool = setting(False, "print the commands that would be run, and stop")

    @cross_check
    def reproduce_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        issues: list[str] = []
        if told := folder_problem(self.data):
            issues.append(f"`data`: {told}")
        issues += [f"`paper`: the name {told}" for told in [split_problem(self.paper)] if told]
        issues += self._unknown("choose", self.choose, list(self.choices))
        issues += [f"`changes`: {told}" for name in self.changes if (told := file_problem(name))]
        if issues:
            return issues
        try:
            every = self.all_steps()
        except UserError as error:
            return [str(error)]
        names = [step.name for step in every]
        issues += self._unknown("extras", self.extras, [step.extra for step in every if step.extra])
        issues += self._unknown("only", self.only, names) + self._unknown("redo", self.redo, names)
        return issues + table_problems(self.tables, {name: str(step["module"]) for name, step in self.steps.items()})

    def changed(self) -> Changes:
        """The settings of `choose` and `changes` together; of two for one key the later one counts.

        Raises:
            UserError: One isn't of their form.
        """
        chosen = [read_changes(self.choices[name], f"`choices`: {name}") for name in self.choose]
        return merged([*chosen, *(read_changes(read_yaml(Path(name)), name) for name in self.changes)])

    def all_steps(self) -> list[Step]:
        """Every step, in order, those of all `extras` too.

        Raises:
            UserError: One isn't of the form of a step, or can't follow the others.
        """
        return read_steps(self.steps, self.changed(), Path(self.data))

    def chosen_steps(self, every: Sequence[Step] | None = None) -> list[Step]:
        """The steps to show or to run, in order; `every` is what `all_steps` gave, if it was asked before."""
        every = self.all_steps() if every is None else every
        taken = [step for step in every if not step.extra or step.extra in self.extras]
        return [step for step in taken if step.name in self.only] if self.only else taken

    def folder(self) -> Path:
        """Where logs and tables are written."""
        return Path(self.output) if self.output else Path(self.data, "runs", "reproduce", self.paper)

    def _unknown(self, key: str, names: list[str], known: list[str]) -> list[str]:
        listed = ", ".join(dict.fromkeys(known)) or "none"
        return [f"`{key}`: there is no {short(name)}; there are {listed}" for name in names if name not in known]

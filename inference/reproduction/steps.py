"""The steps of a reproduction: each a command with its config, what it reads, and the one thing that it writes."""

from __future__ import annotations

import functools
import importlib.resources
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from reflectune.core.errors import UserError
from reflectune.core.parsing import read_yaml
from reflectune.data_builders.conversion.config import ConvertConfig
from reflectune.inference.reproduction.changes import Changes, replaced

CONVERT: Final = "data_builders.convert"
PICTURES: Final = "data_builders.fetch_pictures"
DOWNLOAD: Final = "data_builders.download"
"""The step without an output: it is done when no file is missing that other steps read and no step writes."""

FINISHED: Final[Mapping[str, str]] = {
    CONVERT: "dataset.json",
    "data_builders.build_mr2ag": "reflection.json",
    "data_builders.build_plain": "reflection.json",
    "data_builders.convert_lens": "",
    "data_builders.derive_labels": "reflection.json",
    PICTURES: "pictures.parquet",
    "data_builders.probe": "probes.json",
    "inference.evaluate": "metrics.json",
    "inference.recall": "",
    "inference.sweep": "sweep.json",
    "metrics.convert_bem": "bem.json",
    "retrieval.build_index": "manifest.json",
    "retrieval.build_text_index": "manifest.json",
    "train.assemble_llava": "assembled.json",
    "train.merge": "reflectune.json",
    "train.sft": "run.json",
}
"""By module, the file that a command writes last into its output; "" if the output is a file itself."""

_LOCAL: Final = (
    "dataset index text_index text_knowledge knowledge reflection probes checkpoint visual_dataset ranked_entities "
    "leave_out lens inaturalist projector variables vocabulary examples names train_data eval_data rel_scores"
).split()
"""Keys that name files or folders."""
_MODELS: Final = "model base_model plain_model encoder reranker_model language vision tokenizer bem".split()
"""Keys that name files or folders, or models of the Hub or of this installation."""
_OUTPUTS: Final = ("output", "output_dir")
_PLACES: Final = ("runs", "data", "checkpoints")
"""Where a model's name that is a path begins; `owner/name` is the Hub's otherwise."""
_KEYS: Final = ("module", "config", "set", "launch", "gigabytes", "serves", "extra", "about")


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: What it is called.
        module: Its module, below `reflectune`.
        config: Its YAML file; None if all its settings are in the list.
        settings: All settings that it is given, those of the YAML file too.
        given: Those of them that differ from the file, and stand on its command line.
        launch: The launch config that it is started with; None for a plain process.
        output: What it writes, below the data's folder; "" for the downloads.
        reads: Files and folders that it reads, as they are named in its settings; no models of the Hub.
        serves: Rows of the paper's tables.
        gigabytes: Room on the disk that its output takes, by arithmetic; 0 if it is little.
        extra: The group that it is in, of those that are left out unless asked for; "" for none.
        about: What it does, or what of it is our choice.
    """

    name: str
    module: str
    config: Path | None
    settings: Mapping[str, Any]
    given: Mapping[str, Any]
    launch: Path | None
    output: str
    reads: tuple[str, ...]
    serves: tuple[str, ...]
    gigabytes: float
    extra: str
    about: str

    def command(self) -> list[str]:
        """The command line, to be run in the data's folder."""
        start = [sys.executable, "-m"]
        if self.launch is not None:
            start += ["accelerate.commands.launch", "--config_file", str(self.launch), "-m"]
        config = ["--config", str(self.config)] if self.config else []
        return [*start, f"reflectune.{self.module}", *config, *_flags(self.given)]

    def shown(self) -> str:
        """The command line as a person types it."""
        words = self.command()[2:]
        if self.launch is None:
            return shlex.join(["python", "-m", *words])
        return shlex.join(["accelerate", "launch", *words[1:]])


def read_steps(listed: Mapping[str, Any], changes: Changes, data: Path) -> list[Step]:
    """The steps of a list, in order, with changes; those of `without` are left out.

    Args:
        listed: By name, as the YAML file has them.
        changes: Settings of one's own.
        data: The folder that the steps' paths start from.

    Raises:
        UserError: A step isn't of this form, its config can't be read, a change is of no step, or two steps write one
            thing.
    """
    steps = [_read_step(name, values, changes, data) for name, values in listed.items()]
    known = {*listed, DOWNLOAD, *FINISHED}  # one file of changes may be for several lists
    for name in (*changes.settings, *changes.without):
        if name not in known:
            raise UserError(f"changes: there is no step or module {name}; there are {', '.join(listed)}")
    steps = [step for step in steps if step.name not in changes.without]
    writers: dict[str, str] = {}
    for step in steps:
        if step.output and writers.setdefault(step.output, step.name) != step.name:
            raise UserError(f"`steps`: {writers[step.output]} and {step.name} both write {step.output}; change one")
    return steps


def writer_of(path: str, steps: Sequence[Step]) -> Step | None:
    """The step that writes what lies at a path: of those whose output it is or lies in, the innermost; None if none."""
    within = [step for step in steps if step.output and _is_in(path, step.output)]
    return max(within, key=lambda step: len(step.output), default=None)


def _is_in(path: str, folder: str) -> bool:
    inside = _parts(folder)
    return _parts(path)[: len(inside)] == inside


@functools.lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    parsed = PurePosixPath(path)  # takes a while, and each path is compared with every step's
    return (parsed.root, *parsed.parts)


def _read_step(name: str, values: Any, changes: Changes, data: Path) -> Step:
    where = f"`steps`: {name}"
    if not isinstance(values, dict) or not set(values) <= set(_KEYS) or "module" not in values:
        raise UserError(f"{where} needs a mapping with `module`, and may have {', '.join(_KEYS[1:])}")
    module, own, serves = str(values["module"]), values.get("set") or {}, values.get("serves") or []
    if module not in FINISHED and module != DOWNLOAD:
        raise UserError(f"{where}: `module` is one of {', '.join([DOWNLOAD, *FINISHED])}; found {module}")
    gigabytes = values.get("gigabytes", 0)
    if not isinstance(own, dict) or not isinstance(serves, list) or not isinstance(gigabytes, (int, float)):
        raise UserError(f"{where}: `set` is a mapping, `serves` a list, `gigabytes` a number")
    config = _config_path(str(values["config"])) if values.get("config") else None
    filed = _filed(config, module)
    changed = {**changes.settings.get(module, {}), **changes.settings.get(name, {})}
    settings = {key: replaced(value, changes.instead) for key, value in {**filed, **own, **changed}.items()}
    output = next((str(settings[key]) for key in _OUTPUTS if settings.get(key)), "")
    if not output and module != DOWNLOAD:
        raise UserError(f"{where}: neither its config nor `set` has an `output`")
    launch = str(values.get("launch") or "")
    launch = changes.launch.get(launch, launch)
    return Step(
        name=name,
        module=module,
        config=config,
        settings=settings,
        given={key: value for key, value in settings.items() if key not in filed or filed[key] != value},
        launch=_config_path(f"configs/accelerate/{launch}.yaml") if launch else None,
        output=output,
        reads=tuple(dict.fromkeys(_reads(module, settings, data))),
        serves=tuple(map(str, serves)),
        gigabytes=float(gigabytes) * changes.room,
        extra=str(values.get("extra") or ""),
        about=str(values.get("about") or ""),
    )


def _config_path(name: str) -> Path:
    """A file; `configs/…` is this installation's, wherever the command is run."""
    if not name.startswith("configs/"):
        return Path(name).resolve()
    return Path(str(importlib.resources.files("reflectune.configs").joinpath(name.removeprefix("configs/"))))


def _filed(config: Path | None, module: str) -> dict[str, Any]:
    """The settings of a step's YAML file; those of the list of downloads are not looked at."""
    if config is None or module == DOWNLOAD:
        return {}
    values = read_yaml(config)
    if not isinstance(values, dict):
        raise UserError(f"{config} must hold `key: value` lines")
    return values


def _reads(module: str, settings: Mapping[str, Any], data: Path) -> list[str]:
    """The files and folders that a command reads."""
    if module in (CONVERT, PICTURES):
        return _converted(settings)
    paths = []
    for key in (*_LOCAL, *_MODELS):
        for value in _texts(settings.get(key)):
            if key in _LOCAL or _is_path(value, data):
                paths.append(value)
    return paths


def _converted(settings: Mapping[str, Any]) -> list[str]:
    """What the keys of a conversion name, with its `root` before it."""
    known = ConvertConfig.model_fields
    config = ConvertConfig(**{key: value for key, value in settings.items() if key in known})
    named = [config.knowledge_source, config.knowledge_images, config.images]
    files = config.question_paths() if config.questions else []
    return list(map(str, [*files, *(config.path(name) for name in named if name)]))


def _texts(value: Any) -> list[str]:
    """The names in a setting: one, those of a list, or the keys of a mixture."""
    if isinstance(value, (list, dict)):
        return [str(item) for item in value]
    return [value] if isinstance(value, str) and value else []


def _is_path(name: str, data: Path) -> bool:
    """Whether a model's name is a path, and not one of the Hub or of this installation."""
    first = PurePosixPath(name).parts[0]
    return name.startswith((".", "/", "~")) or first in _PLACES or (data / name).is_dir()


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command line."""
    return [word for key, value in settings.items() for word in (f"--{key}", _word(value))]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

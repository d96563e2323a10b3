"""Every key of every command against values that it must refuse: one error that names the key, and nothing written."""

from __future__ import annotations

import functools
import importlib
import math
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from reflectune.core.command import Command
from reflectune.core.config import Settings
from reflectune.core.values import LARGEST_SEED

ROOT = Path(__file__).parents[2]
_FLOORS = ("models", "metrics", "retrieval", "data_builders", "inference", "train")


@dataclass(frozen=True)
class Script:
    """A script, as its module is called below `reflectune`."""

    module: str

    @functools.cached_property
    def command(self) -> Command[Any]:
        module = importlib.import_module(f"reflectune.{self.module}")
        return getattr(module, self.module.rpartition(".")[2])

    @property
    def kind(self) -> type[Settings]:
        return self.command.kind

    @property
    def config(self) -> str:
        return self.kind.__name__

    def __str__(self) -> str:
        return self.module


def scripts() -> list[Script]:
    """In the order of the floors."""
    paths = [path for floor in _FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    return [
        Script(path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."))
        for path in paths
        if re.search(r"^@command\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def leaf_type(hint: Any) -> Any:
    """The type of one value: `int` of `int | None` and of `list[int]`."""
    if typing.get_origin(hint) is typing.Annotated:
        return leaf_type(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return leaf_type(next(option for option in typing.get_args(hint) if option is not type(None)))
    return leaf_type(typing.get_args(hint)[0]) if typing.get_origin(hint) is list else hint


SCRIPTS = scripts()

INPUTS = frozenset(
    "dataset index knowledge pictures image predictions against data eval_data train_data reflection probes world runs "
    "rel_scores checkpoint projector chat_template variables vocabulary examples names image_root visual_dataset "
    "knowledge_source knowledge_images images root model base_model plain_model encoder reranker_model bem vision text "
    "language tokenizer changes text_index text_knowledge ranked_entities lens inaturalist leave_out evaluation "
    "evaluations trained_on answerer results check official repairs repaired_predictions architecture".split()
)
"""Keys that name what must be there."""

OUTPUTS = frozenset("output output_dir captions cache cache_features rewards llm_cache llm_batch".split())
SPLITS = frozenset("split splits train_split eval_split visual_split extract_split".split())
DEVICES = frozenset({"device"})
ADDRESSES = frozenset({"llm_url", "web_url"})
CHOSEN = frozenset(
    "annotator annotators pipelines scheme evidence gates train_towers report_to sources metric best_metric dtype "
    "reranker_dtype knowledge questions lora_targets push_to_hub llm_key_variable llm_options grid options part "
    "choose device_map extras only redo cost pipeline query_forms web_key_variable stages".split()
)
"""Keys whose values are names of things that the tree has, or have a form of their own."""

FREE = frozenset(
    "question name licence paper llm_model reranker_query_prefix reranker_passage_prefix query_prefix passage_prefix "
    "box_field user_agent".split()
)
"""Keys whose value is any text."""

ELSEWHERE = {
    "PictureConfig": {"knowledge": CHOSEN},
    "ConvertConfig": {"knowledge": CHOSEN, "splits": CHOSEN, "knowledge_source": INPUTS},
    "IndexConfig": {"store": ADDRESSES},
    "TextIndexConfig": {"store": ADDRESSES},
    "EstimateConfig": dict.fromkeys(["train_data", "eval_data", "image_root"], FREE),  # they need not be there
    "ExportConfig": {"images": CHOSEN},
    "DownloadConfig": {"root": OUTPUTS, "files": CHOSEN, "models": CHOSEN, "only": CHOSEN},  # `root` is made
    "ReproduceConfig": dict.fromkeys(["steps", "tables", "choices"], CHOSEN),
    "SweepConfig": {"plain_model": FREE},  # no pipeline that it varies reads one
}
"""Keys that mean something else in one command."""

BESIDE = {
    ("SftConfig", "image_root"): ["--train_data=."],
    ("ConvertConfig", "knowledge_source"): ["--knowledge=own"],
    ("EvaluateConfig", "plain_model"): ["--pipelines", "tuned_baselines"],
    ("SweepConfig", "base_model"): ["--pipeline=mmkb_rag"],
}
"""What else has to be given for a key to be looked at."""

SECRET = "PASSWORD"
MALFORMED = (
    *("localhost", "ftp://host", "http://", "http://host:99999", "http://host:x", "http://[::1", "http://host:0/v1"),
    *(f"http://me:{SECRET}@", f"me:{SECRET}@host", f"http://me:1/{SECRET}@host", f"http://me:1#{SECRET}@host"),
    *(f"http://me:1?{SECRET}@host/v1", f"http://me:%2F/{SECRET}@host:80/v1", f"http://me:ü:/{SECRET}@host"),
)


def kind_of(script: Script, name: str) -> frozenset[str] | None:
    """Which of the lists above a key is in; None for one that is none of them."""
    own = ELSEWHERE.get(script.config, {})
    if name in own:
        return own[name]
    return next((kind for kind in (INPUTS, OUTPUTS, SPLITS, DEVICES, ADDRESSES, CHOSEN, FREE) if name in kind), None)


def bounds(field: FieldInfo) -> tuple[float, float]:
    """The least and the greatest value; minus and plus infinity where there is none."""
    found = [*field.metadata, *nested(field.annotation)]
    low = next((getattr(it, "ge", getattr(it, "gt", None)) for it in found if isinstance(it, (Ge, Gt))), -math.inf)
    return low, next((it.le for it in found if isinstance(it, Le)), math.inf)


def nested(annotation: Any) -> list[Any]:
    """The bounds of a list's items or of a union's options."""
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return [bound for item in inner[1:] for bound in getattr(item, "metadata", [item])] + nested(inner[0])
    return [bound for argument in inner for bound in nested(argument)]


def numbers(script: Script) -> Iterator[tuple[str, FieldInfo]]:
    """The keys that take numbers."""
    for name, field in script.kind.model_fields.items():
        leaf = leaf_type(field.annotation)
        if isinstance(leaf, type) and issubclass(leaf, (int, float)) and leaf is not bool:
            yield name, field


def texts(script: Script) -> Iterator[str]:
    """The keys that take a text, a list of them or a mapping."""
    taken = {name for name, _ in numbers(script)}
    for name, field in script.kind.model_fields.items():
        leaf = leaf_type(field.annotation)
        if name not in taken and isinstance(leaf, type) and leaf is not bool:
            yield name


def bad_numbers(script: Script) -> Iterator[tuple[str, str]]:
    for name, field in numbers(script):
        low, high = bounds(field)
        for value in ("nan", "inf", "-inf", "1e999", "9" * 400, "-" + "9" * 400, "x", ""):
            yield name, value
        if low >= 0:
            yield name, "-1"
        if math.isfinite(high):
            yield name, str(math.floor(high) + 1)


def bad_texts(script: Script, folder: Path) -> Iterator[tuple[str, str]]:
    (folder / "file.txt").write_text("a file")
    missing, below_a_file = str(folder / "no" / "such" / "thing"), str(folder / "file.txt" / "output")
    values = {
        INPUTS: (missing,),
        OUTPUTS: (below_a_file,),
        SPLITS: ("a/b", "..", "../../etc", "x" * 300, "é" * 150, "a\nb", "a\\b", " a"),
        DEVICES: ("meta", "gpu", "cuda:x", "cuda:-1", "cpu,cuda", "xla"),
        ADDRESSES: MALFORMED,
    }
    for name in texts(script):
        for value in values.get(kind_of(script, name) or FREE, ()):
            yield name, value


def run(script: Script, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of a command; whatever it raises beside SystemExit is raised, as a user sees a traceback."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", [f"{script.module}.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            script.command.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_every_number_has_a_least_value_and_every_text_is_of_a_kind(script: Script) -> None:
    """So that the test below leaves no key out."""
    unbounded = [name for name, field in numbers(script) if name != "k" and bounds(field)[0] == -math.inf]
    seeds = [field for name, field in numbers(script) if name in ("seed", "seeds")]

    assert unbounded == []
    assert [bounds(field) for field in seeds] == [(0, LARGEST_SEED)] * len(seeds)
    assert [name for name in texts(script) if kind_of(script, name) is None] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_value_that_a_key_can_not_have_is_one_error(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong: list[str] = []
    cases = [*bad_numbers(script), *bad_texts(script, tmp_path)]
    for name, value in cases:
        status = run(script, [f"--{name}={value}", *BESIDE.get((script.config, name), [])], monkeypatch)
        said = capsys.readouterr().err
        named = [line for line in said.splitlines() if f"`{name}`" in line or f"--{name}" in line]
        head = said.startswith("error: the config has problems:\n")
        lines = said.rstrip("\n").split("\n")[1:]
        whole = head and all(line.startswith("  ") for line in lines) and max(map(len, lines)) < 1000
        if status != 2 or not named or not whole or SECRET in said or "Traceback" in said:
            wrong.append(f"--{name}={value[:40]}: status {status}: {said[:600]}")

    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]

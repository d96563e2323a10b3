"""A list of steps becomes commands: what each is given, reads and writes, and what of a list is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.inference.reproduction.changes import Changes, merged, read_changes, replaced
from reflectune.inference.reproduction.config import ReproduceConfig
from reflectune.inference.reproduction.steps import read_steps, writer_of
from reflectune.inference.reproduction.tables import page


def test_a_step_is_a_command_with_what_differs_from_its_file(tmp_path: Path) -> None:
    (step,) = read_steps(
        {
            "train": {
                "module": "train.sft",
                "config": "configs/llava15_7b/mr2ag_full.yaml",
                "set": {"epochs": 2, "learning_rate": 2e-5},
                "launch": "zero2",
            }
        },
        Changes(settings={"train.sft": {"max_steps": 3}, "train": {"epochs": 5}}),
        tmp_path,
    )

    assert step.given == {"epochs": 5, "max_steps": 3}
    assert step.shown().startswith("accelerate launch --config_file ")
    assert step.shown().endswith("mr2ag_full.yaml --epochs 5 --max_steps 3")
    assert "-m reflectune.train.sft" in step.shown()
    assert (step.output, step.reads) == (
        "runs/llava15_7b/mr2ag_full",
        ("runs/data/infoseek/reflection", "checkpoints/llava15_7b_stage1"),
    )


def test_a_model_of_the_hub_is_no_file_and_one_in_its_place_is(tmp_path: Path) -> None:
    listed = {"train": {"module": "train.sft", "config": "configs/qwen2_vl_7b/mmkb_lora.yaml"}}
    (local,) = read_steps(listed, Changes(instead={"Qwen/Qwen2-VL-7B-Instruct": "/models/qwen"}), tmp_path)
    (hub,) = read_steps(listed, Changes(), tmp_path)

    assert hub.reads == ("runs/mmkb/infoseek/labels",)
    assert local.reads == ("runs/mmkb/infoseek/labels", "/models/qwen")
    assert local.given == {"model": "/models/qwen"}


def test_what_lies_in_two_outputs_is_the_inner_ones(config: Callable[..., ReproduceConfig]) -> None:
    steps = config(
        steps={
            "outer": {"module": "data_builders.convert", "set": {"output": "runs/a"}},
            "inner": {
                "module": "retrieval.build_index",
                "set": {"knowledge": "runs/a/knowledge", "output": "runs/a/i"},
            },
        },
        changes=[],
    ).all_steps()

    found = {path: writer_of(path, steps) for path in ("runs/a/knowledge", "runs/a/i", "runs/ab")}

    assert {path: step.name if step else "" for path, step in found.items()} == {
        "runs/a/knowledge": "outer",
        "runs/a/i": "inner",
        "runs/ab": "",
    }


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({"a": {"set": {}}}, "needs a mapping with `module`"),
        ({"a": {"module": "train.sftt"}}, "`module` is one of"),
        ({"a": {"module": "train.sft"}}, "neither its config nor `set` has an `output`"),
        ({"a": {"module": "train.sft", "config": "configs/none.yaml"}}, "not found"),
        (
            {name: {"module": "train.sft", "set": {"output_dir": "runs/x"}} for name in "ab"},
            "a and b both write runs/x",
        ),
        ({"a": {"module": "train.sft", "set": {"output_dir": "x"}, "gigabytes": "few"}}, "`gigabytes` a number"),
    ],
    ids=["no_module", "unknown_module", "no_output", "no_file", "one_output", "no_number"],
)
def test_a_list_that_can_not_be_run_is_refused_by_name(
    steps: dict[str, Any], told: str, config: Callable[..., ReproduceConfig]
) -> None:
    (problem,) = config(steps=steps, changes=[]).problems()

    assert told in problem


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("only", ["articels"], "`only`: there is no articels; there are downloads, articles, index"),
        ("redo", ["x"], "`redo`: there is no x"),
        ("extras", ["x"], "`extras`: there is no x; there are none"),
        ("choose", ["x"], "`choose`: there is no x"),
        ("changes", ["none.yaml"], "`changes`: there is no file none.yaml"),
        ("data", "none", "`data`: "),
        ("tables", {"T": {"columns": {}, "rows": {"r": {"step": "index", "pipeline": "p"}}}}, "r needs a `step`"),
        ("tables", {"T": {"columns": {}, "rows": {}, "paper": "Table 9"}}, "no paper's table is Table 9"),
    ],
    ids=["only", "redo", "extras", "choose", "changes", "data", "row", "paper"],
)
def test_a_name_that_is_not_in_the_list_is_refused(
    key: str, value: Any, told: str, config: Callable[..., ReproduceConfig]
) -> None:
    (problem,) = config(**{key: value}).problems()

    assert told in problem


def test_rows_of_what_is_left_out_are_no_problem(config: Callable[..., ReproduceConfig], tmp_path: Path) -> None:
    changes = tmp_path / "without.yaml"
    changes.write_text("without: [b]")
    steps = {name: {"module": "inference.evaluate", "set": {"output": f"runs/{name}"}} for name in "ab"}
    rows = {name: {"step": name, "pipeline": "mr2ag"} for name in "ab"}
    tables = {"One": {"columns": {}, "rows": rows}, "Other": {"columns": {}, "rows": {"b": rows["b"]}}}
    made = config(steps=steps, tables=tables, changes=[str(changes)])

    assert made.problems() == []
    assert page(tables, made.all_steps(), tmp_path, pilot=False).splitlines() == [
        "# One",
        "",
        "|  |",
        "| --- |",
        "| a |",
    ]


@pytest.mark.parametrize(
    "values",
    [[], {"setings": {}}, {"settings": {"a": 1}}, {"room": -1}, {"room": True}, {"pilot": 1}, {"without": "a"}],
    ids=["no_mapping", "unknown_key", "no_settings", "negative", "no_number", "no_truth", "no_list"],
)
def test_changes_of_another_form_are_refused(values: Any) -> None:
    with pytest.raises(UserError, match=r"^changes\.yaml: "):
        read_changes(values, "changes.yaml")


def test_of_two_changes_for_one_key_the_later_one_counts() -> None:
    first = read_changes({"settings": {"a": {"x": 1, "y": 1}}, "room": 0.5, "pilot": True}, "first")
    second = read_changes({"settings": {"a": {"y": 2}}, "room": 0.5, "without": ["b"]}, "second")

    assert merged([first, second]) == Changes(settings={"a": {"x": 1, "y": 2}}, without=("b",), room=0.25, pilot=True)


def test_values_are_replaced_in_lists_and_mixtures() -> None:
    assert replaced({"a": 1, "b": ["a", "c"]}, {"a": "x"}) == {"x": 1, "b": ["x", "c"]}
    assert replaced(True, {"True": "x"}) is True
    assert replaced(["a/b/c", "a/bc", "ab"], {"a": "x", "a/b": "y"}) == [
        "y/c",
        "x/bc",
        "ab",
    ]  # folders, the inner first

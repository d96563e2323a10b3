"""The papers' own lists: every step's settings are its command's, and every file comes from a download or a step."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import parse_config, read_config
from reflectune.core.errors import UserError
from reflectune.core.parsing import read_yaml
from reflectune.inference.reproduction.config import ReproduceConfig
from reflectune.inference.reproduction.steps import FINISHED, Step, writer_of
from reflectune.inference.reproduction.tables import page, paper_table

ROOT = Path(__file__).parents[3]
PAPERS = ("mr2ag", "mmkb_rag")
NOT_THERE_YET = re.compile(
    r"does not exist|has no [\w.]+\.json|there is no reflection\.json|is not a (folder|file)|not found: "
    r"|there is no (file|folder) (runs|data)/|is not there|pip install"
)
"""Problems that a step has because nothing before it was run, not because of what the list says."""


ALONE = {"choose": ["infoseek_alone", "annotator_string"]}
CHANGED: dict[str, tuple[str, dict[str, list[str]]]] = {
    **{paper: (paper, {}) for paper in PAPERS},
    "infoseek": ("mr2ag", ALONE),
    "another_model": ("mr2ag", {**ALONE, "changes": ["qwen2_vl_7b.yaml"]}),
    "own_questions": ("mr2ag", {**ALONE, "changes": ["own_questions.yaml"]}),
    "both": ("mr2ag", {**ALONE, "changes": ["qwen2_vl_7b.yaml", "own_questions.yaml"]}),
}
"""The papers' lists, and those of docs/infoseek.md, by name: which list, and how it is changed."""


@functools.cache
def config(name: str) -> ReproduceConfig:
    paper, changes = CHANGED[name]
    files = [str(ROOT / "configs/reproduce/changes" / each) for each in changes.get("changes", [])]
    listed = read_config(ReproduceConfig, ROOT / f"configs/reproduce/{paper}/steps.yaml")
    return replace(listed, choose=changes.get("choose", []), changes=files)


@functools.cache
def steps(name: str) -> list[Step]:
    return config(name).all_steps()


EVERY = [
    (name, step)
    for name, (paper, _) in CHANGED.items()
    for step in steps(name)
    if name == paper or step.command() not in [same.command() for same in steps(paper)]
]
"""Every step of the papers' lists, and those that are another command in a changed one."""


def config_class(module: str) -> Any:
    script = importlib.import_module(f"reflectune.{module}")
    calls = [node for node in ast.walk(ast.parse(Path(str(script.__file__)).read_text())) if isinstance(node, ast.Call)]
    (name,) = [call.args[0].id for call in calls if getattr(call.func, "id", "") == "parse_config"]  # type: ignore[attr-defined]
    return getattr(script, name)


@pytest.mark.parametrize(("paper", "step"), EVERY, ids=[f"{paper}-{step.name}" for paper, step in EVERY])
def test_a_steps_settings_are_its_commands(
    paper: str, step: Step, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether they fit what is there isn't looked at: nothing is."""
    monkeypatch.chdir(tmp_path)
    words = step.command()
    arguments = words[words.index(f"reflectune.{step.module}") + 1 :]
    try:
        parse_config(config_class(step.module), argv=arguments)
    except UserError as error:
        problems = [line for line in str(error).splitlines()[1:] if not NOT_THERE_YET.search(line)]
        assert problems == []
    assert step.launch is None or step.launch.is_file()


@pytest.mark.parametrize("name", CHANGED)
def test_a_list_and_its_changes_are_right(name: str) -> None:
    assert config(name).problems() == []


LAUNCHED = {"train.sft", "inference.evaluate", "retrieval.build_index", "data_builders.convert", "metrics.convert_bem"}
"""Commands that other tests start in a Python of their own; the walk of a whole list forks all."""


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted({step.module for _, step in EVERY} - LAUNCHED))
def test_a_steps_command_starts_in_a_python_of_its_own(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"reflectune.{module}", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: ")


OWN = ("runs/data/my_data", "runs/data/my_data/knowledge")
"""What own_questions.yaml says to convert first."""


@pytest.mark.parametrize("paper", CHANGED)
def test_what_a_step_reads_is_downloaded_or_written_before_it(paper: str) -> None:
    listed, known = steps(paper), []
    for step in listed:
        for path in step.reads:
            writer = writer_of(path, listed)
            assert writer is None or writer in known, f"{step.name} reads {path}, which {writer} writes"
            outside = path.startswith(("data/", "checkpoints/")) or path in OWN
            assert writer or outside, f"{step.name} reads {path}: nobody writes it"
        known.append(step)


def test_infoseek_alone_needs_no_other_set_and_has_tables_of_what_it_measures(tmp_path: Path) -> None:
    read = {path for step in steps("infoseek") for path in step.reads}
    assert not [path for path in read if re.search("evqa|nq|bem", path)]
    named = page(config("infoseek").tables, steps("infoseek"), tmp_path, pilot=False).splitlines()
    assert "# Table 1: InfoSeek, validation" in named
    assert not [line for line in named if line.startswith("# Table 2")]
    assert not [line for line in named if line.startswith("| without NQ")]


def test_another_model_and_own_questions_leave_nothing_of_the_old_ones() -> None:
    for step in steps("both"):
        if step.extra:
            continue
        said = " ".join(step.command())
        assert "runs/data/infoseek" not in said.replace("runs/data/infoseek_6m", ""), step.name
        if step.module in ("train.sft", "inference.evaluate", "inference.sweep"):
            assert "llava15_7b/" not in " ".join(str(step.settings[key]) for key in step.settings if "model" in key)
            assert step.settings["image_fit"] == "processor"
            assert step.settings["max_pixels"]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_step_without_an_extra_needs_none(paper: str) -> None:
    listed = steps(paper)
    for step in listed:
        writers = (writer_of(path, listed) for path in step.reads)
        needed = {writer.extra for writer in writers if writer} - {""}
        assert needed <= {step.extra}, f"{step.name} needs steps of {needed}"


@pytest.mark.parametrize("paper", PAPERS)
def test_what_is_downloaded_is_in_the_list_of_downloads(paper: str) -> None:
    path = ROOT / f"configs/reproduce/{paper}/downloads.yaml"
    files = [f"data/{name}".rstrip("/") for name in read_yaml(path)["files"]]
    outside = {path for step in steps(paper) for path in step.reads if writer_of(path, steps(paper)) is None}
    missing = [one for one in outside if not any(one == name or name.startswith(f"{one}/") for name in files)]
    assert set(missing) <= {f"data/bem/{name}" for name in BEM}


BEM = ("bem.npz", "vocab.txt", "bem_logits.json")
"""Made by hand with TensorFlow: docs/reproduce.md."""


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_of_a_table_is_evaluated_by_a_step_that_says_what_it_serves(paper: str) -> None:
    tables = read_yaml(ROOT / f"configs/reproduce/{paper}/steps.yaml")["tables"]
    by_name = {step.name: step for step in steps(paper)}
    for title, table in tables.items():
        for name, row in table["rows"].items():
            step = by_name[row["step"]]
            if "pipeline" in row:
                assert row["pipeline"] in step.settings["pipelines"], f"{title}: {name}"
            if "title_weight" in row:
                assert row["title_weight"] in step.settings["title_weights"]
            for key, value in row.get("at", {}).items():
                assert value in step.settings["grid"][key], f"{title}: {name}"
            assert step.serves or step.extra, f"{step.name} says of no table that it serves it"


@pytest.mark.parametrize(
    ("paper", "title", "missing"),
    [
        ("mr2ag", "Table 1: InfoSeek, validation", {"LLaVA-SFR, oracle"}),
        ("mr2ag", "Table 2: Encyclopedic-VQA, test, entities by Google Lens", set()),
        ("mr2ag", "Table 5: rankings of candidate answers", set()),
        ("mr2ag", "Table 6: number of retrieved entries", set()),
        ("mr2ag", "Table 7: with and without Natural Questions", set()),
        ("mr2ag", "Table 8: recall of the gold entry", set()),
        ("mmkb_rag", "Table 1: InfoSeek, validation", set()),
        ("mmkb_rag", "Table 2: the three tokens", set()),
        ("mmkb_rag", "Table 3: number of documents after SRT", set()),
        ("mmkb_rag", "Table 4: kind of MCT and number of documents", set()),
        ("mmkb_rag", "Table 5: who labels SRT's documents, and how many labels there are", {"GPT-4o, 2,000 labels"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_has_every_row_of_the_papers_but_those_that_are_named(
    paper: str, title: str, missing: set[str]
) -> None:
    table = read_yaml(ROOT / f"configs/reproduce/{paper}/steps.yaml")["tables"][title]
    printed = paper_table(table["paper"])
    assert printed is not None
    assert set(printed.rows) - set(table["rows"]) == missing
    if not title.startswith("Table 1"):
        assert set(table["rows"]) - set(printed.rows) <= {
            "LLaVA, without knowledge",
            "LLaVA-mR²AG, oracle",
            "string search, 2,000 labels",
        }


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, name in FINISHED.items() if name])
def test_the_file_that_a_command_writes_last_is_called_so_in_its_library(module: str, name: str) -> None:
    floors = {ROOT / floor for floor in (module.split(".")[0], "models")}
    texts = (path.read_text(encoding="utf-8") for floor in floors for path in floor.rglob("*.py"))
    assert any(f'"{name}"' in text for text in texts)

"""The miniature's tables run from finished models to Markdown, alone and in a launch of two processes."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from reflectune.core.durable import read_rows
from reflectune.core.types import Passage
from reflectune.examples.miniature.tables import run as tables_run
from reflectune.examples.miniature.tables.config import TablesConfig
from reflectune.examples.miniature.tables.layout import markdown
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.reflection_data import Manifest, write_examples, write_manifest
from reflectune.models.schemes.examples import Branch, ReflectionExample
from tests.inference.families import ONE_FAMILY


@pytest.fixture
def run(world, checkpoints, tmp_path) -> Path:
    """A finished quick start of tiny random models."""
    folder = tmp_path / "run"
    shutil.copytree(world, folder / "world")
    shutil.copytree(world / "index", folder / "index")
    shutil.copytree(checkpoints.tuned, folder / "checkpoint")
    shutil.copytree(checkpoints.plain, folder / "plain_checkpoint")
    return folder


@ONE_FAMILY
@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_mr2ags_tables_from_finished_runs(run, checkpoints, tmp_path) -> None:
    config = TablesConfig(
        base_model=checkpoints.base,
        seeds=[0, 1],
        runs=[str(run)] * 2,
        output=str(tmp_path / "out"),
        max_new_tokens=4,
    )
    assert config.problems() == []
    record = tables_run.run(config)
    assert [len(table["rows"]) for table in record["tables"]] == [16, 8, 28, 4]
    assert all(claim["verdict"] for table in record["tables"] for claim in table["claims"])
    text = Path(config.output, "tables.md").read_text()
    assert text == markdown(json.loads(Path(config.output, "tables.json").read_text()))
    assert "| Relevance-Reflection finds the evidence | **" in text
    assert "| At 3, mR²AG is ahead of the best baseline | **" in text
    again = tables_run.run(config)
    assert again["tables"] == record["tables"]


@pytest.mark.slow
@ONE_FAMILY  # the sharding is the same for every family
def test_two_processes_make_the_tables_of_one(run, checkpoints, tmp_path, start_program, start_launch) -> None:
    """Stages are the first one's alone: as one of two, a training would wait for the other, which answers nothing."""
    made = []
    for processes in (1, 2):
        output = tmp_path / f"out{processes}"
        settings = {
            "base_model": checkpoints.base,
            "seeds": 0,
            "runs": run,
            "output": output,
            "max_new_tokens": 4,
            "batch_questions": 2,
            "dtype": "bfloat16",
        }
        shutil.rmtree(run / "plain_checkpoint", ignore_errors=True)  # so that there is something to train
        reflection_data(run)
        flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        if processes == 1:
            program = start_program(["-m", "reflectune.examples.miniature.papers_tables", *flags])
        else:
            program = start_launch("examples/miniature/papers_tables.py", flags)
        assert program.wait(timeout=580) == 0, program.stderr[-3000:]
        assert program.stdout.count("# mR²AG's ablations in miniature") == 1
        assert program.stdout.count("== plain train, seed 0") == 1
        answers = output / "answers" / "mr2ag-0"
        assert not (answers / "parts").exists()
        tables = json.loads((output / "tables.json").read_text())["tables"]
        made.append((tables, list(read_rows(answers / "questions.jsonl"))))
    assert made[0] == made[1]


def reflection_data(run: Path) -> None:
    """mR²AG-IT of the world's own questions, so that the baselines can be tuned on them."""
    questions = Dataset(run / "world").questions("val_unseen_entity")
    evidence = Branch(Passage("e0", 1, 0, "Title e0", "", "Home", "It lives in an oak."), True, "oak", "gold")
    examples = [ReflectionExample(q.id, q.image, q.text, True, branches=(evidence,)) for q in questions]
    write_examples(run / "reflection" / "train.parquet", examples)
    write_manifest(run / "reflection", Manifest("mr2ag", (run / "world").resolve(), {"train": "0"}))
    write_questions(run / "world", "train", [dataclasses.replace(q, split="train") for q in questions])

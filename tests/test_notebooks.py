"""The notebook runs from its first cell to its last, and is committed with outputs of a real run."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import reflectune
from reflectune.examples.miniature.world.build import build_world
from reflectune.models.loading import load, save_checkpoint

NOTEBOOK = Path(__file__).parents[1] / "docs/notebooks/first_look.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small `runs/quickstart`: a tiny world, and the shipped LLaVA with untrained tokens."""
    folder = tmp_path_factory.mktemp("notebook")
    run = folder / "runs/quickstart"
    build_world(run / "world", size="tiny", seed=0)
    reflectune.build_index(
        knowledge=run / "world/knowledge", output=run / "index", encoder="miniature/clip", device="cpu"
    )
    loaded = load("miniature/llava", scheme="mr2ag")
    assert loaded.scheme is not None
    save_checkpoint(run / "checkpoint", loaded.model, loaded.processor, loaded.scheme, {})
    return folder


def outputs(notebook: nbformat.NotebookNode) -> tuple[str, list[str]]:
    """Return what cells printed, and the kinds of their images."""
    made = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in made if output.output_type == "stream" and output.name == "stdout")
    return printed, [kind for output in made for kind in output.get("data", {}) if kind.startswith("image/")]


@pytest.mark.slow
def test_the_notebook_runs_as_it_is_committed(folder: Path) -> None:
    committed, notebook = nbformat.read(NOTEBOOK, 4), nbformat.read(NOTEBOOK, 4)
    for cell in notebook.cells:
        cell.pop("outputs", None)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    for printed, images in (outputs(committed), outputs(notebook)):
        assert images.count("image/png") == 2  # the question's image, and the plot
        assert len(re.findall(r"^decision: ", printed, re.MULTILINE)) == 3
        assert len(re.findall(r"^shift [+-]\d: +\d+ passages relevant, +\d+\.\d % right$", printed, re.MULTILINE)) == 9


def test_the_committed_outputs_are_small_and_name_no_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 200_000
    assert not re.search(r'(?<![\w.])/(work|home|root|tmp|usr|Users)/|"name": "stderr"', text)

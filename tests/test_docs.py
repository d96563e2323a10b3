"""The documents: links and paths lead somewhere, code runs. (`scripts/lint.sh` builds the site.)"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from reflectune.core.errors import UserError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:core|models|metrics|retrieval|data_builders|train|inference|tests|benchmarks)/[\w/]+\.\w+)`")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_paths_of_modules_are_right(page: Path) -> None:
    paths = [path for path in PATH.findall(page.read_text(encoding="utf-8")) if "NAME" not in path]
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_every_page_is_in_the_sites_contents() -> None:
    contents = (ROOT / "docs/index.md").read_text(encoding="utf-8").splitlines()
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} == {
        line for line in contents if line.isidentifier()
    }


def test_the_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readmes_python_is_right_up_to_the_run_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="runs/quickstart"):
        exec(compile(code, "README.md", "exec"), {})


def test_the_picture_is_what_its_source_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/pipeline.py"))["draw"]()
    assert (ROOT / "docs/pipeline.svg").read_text(encoding="utf-8") == drawn

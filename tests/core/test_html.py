import re
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from jinja2 import Environment, UndefinedError, meta

from reflectune.core.html import ROOT, Cell, Table, read_asset, render

EVIL = "</td></table><script>alert(1)</script><!-- &amp; \"' {{ 7 * 7 }} {% if %} {# #}"
PACKAGES = ("core", "metrics", "models", "retrieval", "data_builders", "train", "inference")
TEMPLATES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("templates/*.html"))
FRAME = "core/templates/page.html"


def shown(table: Table) -> ElementTree.Element:
    """Return the table's `<div>`."""
    return ElementTree.fromstring(render("inference/report/templates/tables.html", tables=[table], notes=[]))


def test_text_in_a_table_comes_back_and_adds_no_element() -> None:
    def table(text: str) -> ElementTree.Element:
        return shown(Table([text, text], [[text, Cell(text, text)], [Cell(text, text), text]], caption=text, prose=1))

    evil, plain = table(EVIL), table("x")
    assert [(element.tag, element.attrib) for element in evil.iter()] == [
        (element.tag, element.attrib) for element in plain.iter()
    ]
    assert [text for text in evil.itertext() if text.strip()] == [EVIL] * 9


def test_a_column_of_prose_is_marked_in_head_and_rows() -> None:
    table = shown(Table(["a", "b", "c"], [["1", "2", "3"]], prose=1))
    assert [cell.text for cell in table.iter() if cell.get("class") == "prose"] == ["b", "2"]
    assert [cell.get("scope") for cell in table.iter("th")] == ["col", "col", "col", "row"]


def test_a_table_may_have_neither_head_nor_caption() -> None:
    table = shown(Table([], [["a", "b"]]))
    assert [element.tag for element in table.iter()] == ["div", "table", "tbody", "tr", "th", "td"]


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        render("inference/report/templates/report.html", style=read_asset("inference/report/page.css"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_template_leaves_no_value_unescaped_and_refers_to_others_that_exist(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    trusted = re.findall(r"[\w.]+(?=\s*\|\s*safe\b)", source)
    assert trusted == (["style.text", "script.text"] if path == ROOT / FRAME else [])
    assert "autoescape" not in source
    referenced = list(meta.find_referenced_templates(Environment().parse(source)))
    assert set(referenced) <= {str(template.relative_to(ROOT)) for template in TEMPLATES}


def test_a_wheel_holds_every_template_style_and_script() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    declared = {
        path
        for package, patterns in setuptools["package-data"].items()
        if (folder := ROOT.joinpath(*package.split(".")[1:])).joinpath("__init__.py").is_file()  # what `find` finds
        for pattern in patterns
        for path in folder.glob(pattern)
    }
    kept = {path for package in PACKAGES for path in (ROOT / package).rglob("*.*")}
    kept = {path for path in kept if path.suffix in (".html", ".css", ".js")}
    assert set(TEMPLATES) <= kept <= declared

"""Charts are SVG documents that name their lines, and a page without matplotlib says how to install it."""

import base64
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from reflectune.core.errors import UserError
from reflectune.inference.report.drawing import Chart, Line, draw, figures

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>&\"' $x$"


def texts(drawing: str) -> list[str | None]:
    return [text.text for text in ElementTree.fromstring(drawing).iter(f"{SVG}text")]


def test_a_chart_names_its_axes_lines_ticks_and_marker() -> None:
    lines = [Line("a", [(0.0, 0.0), (1.0, 1.0)]), Line("b", [(0.2, 0.4)], dots=True)]
    ticks = [(0.25, "off"), (0.75, "on")]
    chart = Chart("t", "gamma", "share", lines, marker=(0.7, "here"), x_ticks=ticks, right_label="rate")
    assert {"gamma", "share", "a", "b", "here", "off", "on", "rate"} <= set(texts(draw(chart)))


def test_a_chart_is_well_formed_whatever_its_texts_are() -> None:
    chart = Chart(EVIL, EVIL, EVIL, [Line(EVIL, [(0.2, 0.4)])], note=EVIL, marker=(0.7, EVIL), diagonal=True)
    assert texts(draw(chart)).count(EVIL) == 4
    page = figures([chart])
    root = ElementTree.fromstring(page)
    assert (root.find("h3").text, root.find("figcaption").text) == (EVIL, EVIL)
    assert "<script" not in page


def test_equal_charts_are_equal_bytes() -> None:
    chart = Chart("t", "x", "y", [Line("a", [(0.0, 0.0), (1.0, 1.0)])], diagonal=True)
    assert draw(chart) == draw(chart)
    assert "<dc:date>" not in draw(chart)


def test_a_chart_without_points_has_its_axes() -> None:
    assert "y" in texts(draw(Chart("t", "x", "y", [])))


def test_a_page_embeds_its_charts() -> None:
    (encoded,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', figures([Chart("t", "x", "y", [])]))
    assert base64.b64decode(encoded).decode() == draw(Chart("t", "x", "y", []))


def test_no_two_of_twelve_lines_look_alike() -> None:
    lines = [Line(f"line {n}", [(0.0, n), (1.0, n)]) for n in range(12)]
    styles = re.findall(r'style="(fill: none; [^"]*stroke-width: 1.8[^"]*)"', draw(Chart("t", "x", "y", lines)))
    assert len(set(styles)) == 12


def test_without_matplotlib_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = figures([Chart("t", "x", "y", []), Chart("u", "x", "y", [])])
    assert page.count("pip install") == 1
    assert "<img" not in page
    with pytest.raises(UserError, match=r"pip install 'reflectune\[report\]'"):
        draw(Chart("t", "x", "y", []))

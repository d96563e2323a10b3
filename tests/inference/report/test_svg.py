from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from reflectune.inference.report.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, line_chart


def test_the_unit_square_fills_the_plot() -> None:
    chart = line_chart("t", "x", "y", [Line("a", [(0.0, 0.0), (1.0, 1.0)])])
    corner = f"M{LEFT:.1f} {HEIGHT - BOTTOM:.1f} L{WIDTH - RIGHT:.1f} {TOP:.1f}"
    assert f'd="{corner}"' in chart


def test_a_chart_is_well_formed_and_escapes_its_texts() -> None:
    evil = "<script>&\"'"
    chart = line_chart(
        evil, evil, evil, [Line(evil, [(0.2, 0.4)], dots=True)], note=evil, marker=(0.7, evil), diagonal=True
    )
    root = ElementTree.fromstring(chart)
    assert root.find("h3").text == evil
    assert root.find(".//circle/title").text == f"{evil}: 0.200, 0.400"
    assert "<script" not in chart


def test_a_line_without_points_draws_nothing() -> None:
    assert "<path" not in line_chart("t", "x", "y", [Line("a", [])])


def test_each_line_has_its_own_class_in_plot_and_legend() -> None:
    chart = line_chart("t", "x", "y", [Line("a", [(0, 0), (1, 1)]), Line("b", [(0, 1), (1, 0)])])
    for number in (0, 1):
        assert chart.count(f"line-{number}") == 2

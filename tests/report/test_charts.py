"""Drawings: points where arithmetic puts them, and words that stay words."""

from xml.etree import ElementTree

import numpy as np
import pytest

from fieldwise import DataError
from fieldwise.charts import Axis, Line, dot_chart, heat_map, line_chart, nice_ticks, stacked
from fieldwise.evaluation.interval import Interval
from fieldwise.report.page import interval_cell, share_cell


def parsed(markup):
    return ElementTree.fromstring(str(markup))


X = Axis(label="x")
Y = Axis(label="y")


def chart(*lines, x=X, y=Y, **more):
    return parsed(line_chart(lines, x, y, title="t", **more))


def test_ticks_are_round(subtests):
    for low, high, expected in [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.48, 0.61, [0.5, 0.55, 0.6]),
        (-3, 12, [0, 5, 10]),
        (0, 0.02, [0, 0.005, 0.01, 0.015, 0.02]),
        (0, 25_000, [0, 5000, 10_000, 15_000, 20_000, 25_000]),
    ]:
        with subtests.test(low=low, high=high, expected=expected):
            assert nice_ticks(low, high) == pytest.approx(expected)


def test_points_lie_where_the_axes_say():
    """The drawing is 320 x 230 with margins of 50, 10, 10 and 40: 260 x 180 are left."""
    svg = chart(
        Line(name="", x=[0, 5, 10], y=[0, 1, 4]),
        x=Axis(label="x", span=(0, 10)),
        y=Axis(label="y", span=(0, 4)),
    )
    assert svg.get("viewBox") == "0 0 320 230"
    assert svg.find("polyline").get("points") == "50,190 180,145 310,10"


def test_intervals_diagonal_and_marks():
    line = Line(name="", x=[0.5], y=[0.5], low=[0.25], high=[0.75], joined=False)
    axis = Axis(label="", span=(0, 1), mark=0.5)
    svg = chart(line, x=axis, y=axis, diagonal=True)
    reach = next(e for e in svg.iter("line") if "reach" in e.get("class"))
    assert (reach.get("x1"), reach.get("y1"), reach.get("y2")) == ("180", "145", "55")
    rules = {
        tuple(e.get(k) for k in ("x1", "x2", "y1", "y2"))
        for e in svg.iter("line")
        if e.get("class") == "rule"
    }
    assert rules == {
        ("50", "310", "190", "10"),
        ("180", "180", "10", "190"),
        ("50", "310", "100", "100"),
    }
    assert svg.find("polyline") is None


def test_a_legend_line_each_and_a_seventh_line_is_dashed():
    lines = [Line(name=f"run {k}", x=[0, 1], y=[0, k + 1], colour=k) for k in range(7)]
    svg = chart(*lines)
    assert [t.text for t in svg.iter("text") if t.get("class") == "legend"] == [
        f"run {k}" for k in range(7)
    ]
    classes = [e.get("class") for e in svg.iter("polyline")]
    assert classes[0] == "line c0"
    assert classes[6] == "line c0 dashed"


def test_names_are_escaped_and_shortened():
    bad = "<script>alert(1)</script>" + "x" * 60
    text = str(
        line_chart(
            [Line(name=bad, x=[0, 1], y=[0, 1])],
            Axis(label="<b>"),
            Axis(label="&"),
            title=f'"{bad}"',
        )
    )
    assert "<script>" not in text
    assert "<b>" not in text
    svg = ElementTree.fromstring(text)
    assert svg.get("aria-label") == f'"{bad}"'
    assert next(t.text for t in svg.iter("text") if t.get("class") == "legend") == bad[:39] + "…"


def test_shades_go_from_faint_to_full():
    svg = parsed(
        heat_map(np.array([[0.0, 2.0], [np.nan, 1.0]]), ["a", "b"], ["<i>", "d"], title="t")
    )
    tiles = list(svg.iter("rect"))
    assert [t.get("fill-opacity") for t in tiles] == ["0.05", "1.00", "0.53"], "NaN has no tile"
    assert [t.find("title").text for t in tiles] == ["a, <i>: 0.000", "a, d: 2.000", "b, d: 1.000"]
    assert (
        parsed(heat_map(np.zeros((1, 1)), ["a"], ["b"], title="t")).find("rect").get("fill-opacity")
        == "0.05"
    )


def test_many_fields_make_a_map_that_scrolls():
    names = [f"f{k}" for k in range(60)]
    wide, small = (
        parsed(heat_map(np.ones((n, n)), names[:n], names[:n], title="t")) for n in (60, 10)
    )
    assert wide.get("class") == "fieldwise heat"
    assert small.get("class") == "fieldwise heat fits"
    assert float(next(wide.iter("rect")).get("width")) >= 14


def test_cells_stay_within_their_box():
    svg = parsed(interval_cell(Interval(value=0.5, low=-9.0, high=9.0), (0.0, 1.0), rule=0.25))
    assert [e.get("d") for e in svg.iter("path")] == ["M27.0 0V18", "M4.0 9H96.0"]
    assert svg.find("circle").get("cx") == "50.0"
    assert svg.get("aria-hidden") == "true"
    assert [parsed(share_cell(s)).find("rect").get("width") for s in (0.0, 0.5, 7.0)] == [
        "1.0",
        "50.0",
        "100.0",
    ]


def test_dots_lie_on_one_scale_with_their_intervals():
    names, ends = ["a" * 30, "b"], {"low": [0.0, 2.0], "high": [2.0, 2.0]}
    svg = parsed(
        dot_chart(names, [1.0, 2.0], (0.0, 2.0), title="t", colours=[1, 0], rule=1.0, **ends)
    )
    (reach,) = (e for e in svg.iter("line") if e.get("class") == "reach c1")
    (rule,) = (e for e in svg.iter("line") if e.get("class") == "rule")
    first, second = (float(e.get("cx")) for e in svg.iter("circle"))
    assert float(reach.get("x1")) == pytest.approx(2 * first - second)
    assert float(reach.get("x2")) == second
    assert float(rule.get("x1")) == first
    assert "a" * 21 + "…" in [e.text for e in svg.iter("text")]


def test_charts_are_stacked_and_saved_with_their_style(tmp_path):
    own = line_chart([Line(name="", x=[0, 1], y=[0, 1])], X, Y, title="<t>")
    both = stacked([own, own], "both")
    svg = parsed(both)
    assert svg.get("viewBox") == "0 0 320 460"
    assert [(e.get("y"), e.get("height")) for e in svg] == [("0", "230"), ("230", "230")]
    both.save(tmp_path / "both.svg")
    root = ElementTree.fromstring((tmp_path / "both.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in root[0].text
    assert repr(own) == "Chart('<t>')"
    assert own._repr_html_().startswith('<div style="max-width: 32rem">&lt;t&gt;<svg ')


def test_a_chart_that_cannot_be_saved_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"cannot write .*a\.svg"):
        line_chart([Line(name="", x=[0, 1], y=[0, 1])], X, Y, title="t").save(
            tmp_path / "file" / "a.svg"
        )


def test_characters_that_xml_does_not_allow_are_replaced(tmp_path):
    bad, good = "a\x00\x1b\ufffe\ud800\tß😀", "a\ufffd\ufffd\ufffd\ufffd\tß😀"
    one = line_chart([Line(name=bad, x=[0, 1], y=[0, 1])], X, Axis(label=bad), title=bad)
    tiles = heat_map(np.ones((1, 1)), [bad], [bad], title=bad)
    for k, drawing in enumerate((one, tiles, dot_chart([bad], [0.5], (0.0, 1.0), title=bad))):
        drawing.save(tmp_path / f"{k}.svg")
        svg = ElementTree.parse(tmp_path / f"{k}.svg").getroot()
        assert svg.get("aria-label") == good
        assert good in [e.text for e in svg.iter()]

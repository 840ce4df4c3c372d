"""Charts: points where arithmetic puts them, and words that stay words."""

import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from fieldwise.charts import Line, dot_chart, heat_map, line_chart, stacked
from fieldwise.errors import DataError
from fieldwise.evaluation.slices import Interval
from fieldwise.report.page import interval_cell, share_cell


def chart(*lines, x="x", y="y", title="t", **more):
    return ElementTree.fromstring(line_chart(lines, x, y, title=title, **more))


def words(svg):
    return [e.text for e in svg.iter("text")]


def paths(svg, colour, **more):
    """The ends of each path of a colour: [[x, y], ...]."""
    found = [e for e in svg.iter("path") if e.get("stroke") == f"var(--{colour})"]
    return [[[float(v) for v in point.split()] for point in re.split("[ML]", e.get("d", ""))[1:]] for e in found]


def test_points_lie_where_the_axes_say():
    """The drawing is 320 x 230 with margins of 56, 10, 10 and 40: 254 x 180 are left."""
    svg = chart(Line(x=[0, 5, 10], y=[0, 1, 4]), x_span=(0, 10), y_span=(0, 4), unit=" %")
    assert svg.get("viewBox") == "0 0 320 230"
    assert paths(svg, "c0") == [[[56, 190], [183, 145], [310, 10]]]
    assert {"0", "2", "10", "0 %", "4 %", "x", "y"} <= set(words(svg))
    assert all(len(line) == 2 for line in paths(svg, "grid"))


def test_intervals_diagonal_and_marks():
    line = Line(x=[0.5], y=[0.5], low=[0.25], high=[0.75], joined=False)
    svg = chart(line, x_span=(0, 1), y_span=(0, 1), x_mark=0.5, y_mark=0.5, diagonal=True)
    assert paths(svg, "c0") == [[[183, 145], [183, 55]]]
    assert paths(svg, "soft") == [[[56, 190], [310, 10]], [[183, 190], [183, 10]], [[56, 100], [310, 100]]]
    assert all(e.get("stroke-dasharray") for e in svg.iter("path") if e.get("stroke") == "var(--soft)")
    assert [(e.get("cx"), e.get("cy"), e.get("fill")) for e in svg.iter("circle")] == [("183", "100", "var(--c0)")]


def test_a_legend_line_each_and_a_seventh_line_is_dashed():
    svg = chart(*(Line(name=f"_run {k}", x=[0, 1], y=[0, k + 1], colour=k) for k in range(7)))
    assert [word for word in words(svg) if "run" in word] == [f"_run {k}" for k in range(7)]
    drawn = [e for e in svg.iter("path") if e.get("stroke") == "var(--c0)"]
    assert [bool(e.get("stroke-dasharray")) for e in drawn] == [False, True] * 2, "in the chart and in its legend"


def test_equal_values_still_have_an_axis():
    assert len(words(chart(Line(x=[1, 1], y=[0.0, 0.0])))) >= 6


def test_names_are_escaped_and_shortened():
    bad = "<script>$alert(1)$</script>" + "x" * 60
    text = str(line_chart([Line(name=bad, x=[0, 1], y=[0, 1])], "<b>", "&", title=f'"{bad}"'))
    assert "<script>" not in text
    assert "<b>" not in text
    svg = ElementTree.fromstring(text)
    assert svg.get("aria-label") == f'"{bad}"'
    assert {bad[:39] + "…", "<b>", "&"} <= set(words(svg))


def test_it_has_no_style_and_no_name_that_a_page_may_have_twice():
    first = line_chart([Line(name="a", x=[0, 1], y=[0, 1], points=True)], "x", "y", title="t")
    with mpl.rc_context({"font.size": 30, "axes.grid": False, "lines.markersize": 9}):  # a reader's own settings
        assert line_chart([Line(name="a", x=[0, 1], y=[0, 1], points=True)], "x", "y", title="t") == first
        assert mpl.rcParams["font.size"] == 30
    assert not re.search(r"style|\bid=|url\(|href|font|#", first)


def test_shades_go_from_faint_to_full():
    svg = ElementTree.fromstring(heat_map(np.array([[0.0, 2.0], [np.nan, 1.0]]), ["a", "b"], ["<i>", "d"], title="t"))
    tiles = [e for e in svg.iter("path") if e.get("fill") == "var(--c0)"]
    assert [float(t.get("fill-opacity", 1)) for t in tiles] == pytest.approx([0.05, 1, 0.525], abs=0.011), (
        "NaN has none"
    )
    assert [t.find("title").text for t in tiles] == ["a, <i>: 0.000", "a, d: 2.000", "b, d: 1.000"]
    assert 'fill-opacity="0.05"' in heat_map(np.zeros((1, 1)), ["a"], ["b"], title="t")


def test_many_fields_make_a_map_that_scrolls():
    names = [f"f{k}" for k in range(60)]
    wide, small = (ElementTree.fromstring(heat_map(np.ones((n, n)), names[:n], names[:n], title="t")) for n in (60, 10))
    assert wide.get("class") == "fieldwise heat"
    assert small.get("class") == "fieldwise heat fits"
    left, right = (float(end) for end in re.findall(r"M([\d.]+) .*?L([\d.]+)", next(wide.iter("path")).get("d"))[0])
    assert right - left >= 13.9


def test_cells_stay_within_their_box():
    cell = interval_cell(Interval(value=0.5, low=-9.0, high=9.0), (0.0, 1.0), rule=0.25)
    assert [re.search(part, cell)[1] for part in (r'reach" d="M([\d.]+)', r"9H([\d.]+)", r'cx="([\d.]+)')] == [
        "4.0",
        "96.0",
        "50.0",
    ]
    assert 'aria-hidden="true"' in cell
    assert [re.search('width="(.*?)"', share_cell(s))[1] for s in (0.0, 0.5, 7.0)] == ["1.0", "50.0", "100.0"]


def test_dots_lie_on_one_scale_with_their_intervals():
    names, title = ["a" * 30, "b"], "t"
    drawing = dot_chart(names, [1.0, 2.0], (0.0, 2.0), title=title, low=[0, 2], high=[2, 2], colours=[1, 0], rule=1.0)
    svg = ElementTree.fromstring(drawing)
    ((rule, _),), ((low, high),) = paths(svg, "soft"), paths(svg, "c1")
    first, second = (float(e.get("cx")) for e in svg.iter("circle"))
    assert [e.get("fill") for e in svg.iter("circle")] == ["var(--c1)", "var(--c0)"]
    assert (low[0], high[0], rule[0]) == pytest.approx((2 * first - second, second, first), abs=0.02)
    assert "a" * 21 + "…" in words(svg)


def test_charts_are_stacked_and_saved_with_their_style(tmp_path):
    own = line_chart([Line(x=[0, 1], y=[0, 1])], "x", "y", title="<t>")
    both = stacked([own, own], "both")
    svg = ElementTree.fromstring(both)
    assert svg.get("viewBox") == "0 0 320 460"
    assert [(e.get("y"), e.get("height")) for e in svg] == [("0", "230"), ("230", "230")]
    both.save(tmp_path / "both.svg")
    root = ElementTree.fromstring((tmp_path / "both.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in root[0].text
    assert repr(own) == "Chart('<t>')"
    assert own._repr_html_().startswith('<div style="max-width: 32rem">&lt;t&gt;<svg ')
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"cannot write .*a\.svg"):
        own.save(tmp_path / "file" / "a.svg")


def test_characters_that_xml_does_not_allow_are_replaced(tmp_path):
    bad, good = "a\x00\x1b\ufffe\ud800\tß😀", "a\ufffd\ufffd\ufffd\ufffd\tß😀"
    one = line_chart([Line(name=bad, x=[0, 1], y=[0, 1])], "x", bad, title=bad)
    tiles = heat_map(np.ones((1, 1)), [bad], [bad], title=bad)
    for k, drawing in enumerate((one, tiles, dot_chart([bad], [0.5], (0.0, 1.0), title=bad))):
        drawing.save(tmp_path / f"{k}.svg")
        svg = ElementTree.parse(tmp_path / f"{k}.svg").getroot()
        assert svg.get("aria-label") == good
        assert good in [e.text for e in svg.iter()]

"""Bars, heat maps and drawings within table cells, as SVG; `line_chart` has line charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from fieldwise.report.line_chart import nice_ticks
from fieldwise.report.svg import LEGEND_LINE, TOP, WIDTH, add, add_text, colour_class, markup, rounded, svg_root

__all__ = ["Pair", "dot_chart", "heat_map", "interval_cell", "paired_bars", "share_cell"]

CELL = 100.0, 18.0
LEAST_TILE, MOST_TILE, LETTER = 15.0, 26.0, 6.3
LONGEST_NAME = 22  # characters of a value's name
FAINTEST = 0.05  # opacity of a tile at 0, so that it stays visible


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two shares within 0 and 1 to compare, the second with an interval.

    Args:
        name: text before the bars.
        words: text after the bars.
    """

    name: str
    first: float
    second: float
    low: float
    high: float
    words: str


def paired_bars(pairs: Sequence[Pair], names: tuple[str, str], *, title: str, most: float = 1.0) -> Markup:
    """A bar chart with two bars per pair on a scale from 0 to `most`, the second with its interval.

    Args:
        pairs: from top to bottom.
        names: legend texts of the first and the second bars.
        title: text for screen readers.
        most: end of the scale.
    """
    left, right = (10 + LETTER * max(len(words) for words in parts) for parts in _words_of(pairs))
    top, height = TOP + 2 * LEGEND_LINE + 8, 30.0
    svg = svg_root(WIDTH, top + height * len(pairs) + 22, title)

    def place(share: float) -> float:
        return left + min(1.0, max(0.0, share / most)) * (WIDTH - left - right)

    for k, (name, style) in enumerate(zip(names, ("faint c5", "bar c0"), strict=True)):
        add(svg, "rect", style, x=left, y=TOP + LEGEND_LINE * k, width=18, height=10, rx=1.5)
        add_text(svg, left + 24, TOP + LEGEND_LINE * k + 9, name, "legend")
    bottom = top + height * len(pairs)
    for share in (0.0, most / 2, most):
        add(svg, "line", "grid", x1=place(share), x2=place(share), y1=top, y2=bottom)
        add_text(svg, place(share), bottom + 15, f"{100 * share:g} %", "tick", anchor="middle")
    for k, pair in enumerate(pairs):
        y = top + height * k + 3
        add_text(svg, left - 6, y + 15, pair.name, "tick", anchor="end")
        add(svg, "rect", "faint c5", x=left, y=y, width=max(1.0, place(pair.first) - left), height=11, rx=1.5)
        add(svg, "rect", "bar c0", x=left, y=y + 12, width=max(1.0, place(pair.second) - left), height=11, rx=1.5)
        add(svg, "line", "reach c1", x1=place(pair.low), x2=place(pair.high), y1=y + 17.5, y2=y + 17.5)
        add_text(svg, WIDTH - right + 6, y + 15, pair.words, "tick")
    return markup(svg)


def _words_of(pairs: Sequence[Pair]) -> tuple[list[str], list[str]]:
    return [pair.name for pair in pairs], [pair.words for pair in pairs]


def dot_chart(rows: Sequence[tuple[str, float]], span: tuple[float, float], *, title: str, unit: str = "") -> Markup:
    """A chart with a dot for each named value on a scale that other charts may share.

    Args:
        rows: names and values, from top to bottom.
        span: the first and last value of the scale.
        title: text for screen readers.
        unit: follows the scale's numbers.
    """
    names = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name, _ in rows]
    left, height = 10 + LETTER * max(map(len, names), default=0), 20.0
    bottom = TOP + height * len(rows)
    svg = svg_root(WIDTH, bottom + 22, title)

    def place(value: float) -> float:
        return left + 8 + (value - span[0]) / (span[1] - span[0]) * (WIDTH - left - 28)

    for tick in nice_ticks(*span, about=4):
        add(svg, "line", "grid", x1=place(tick), x2=place(tick), y1=TOP, y2=bottom)
        add_text(svg, place(tick), bottom + 15, f"{tick:g}{unit}", "tick", anchor="middle")
    for k, (name, (_, value)) in enumerate(zip(names, rows, strict=True)):
        y = TOP + height * (k + 0.5)
        add_text(svg, left, y + 4, name, "tick", anchor="end")
        add(svg, "circle", "dot c0", cx=place(value), cy=y, r=4)
    return markup(svg)


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    most: float | None = None,
    decimals: int = 3,
) -> Markup:
    """A heat map, with shades from 0 to `most`; hovering over a tile shows its number.

    Args:
        values: at least 0, or NaN for no value, [R, C].
        rows: names of the R rows.
        columns: names of the C columns.
        title: text for screen readers.
        most: value of the darkest shade; the largest value, if omitted.
        decimals: decimals of the numbers shown.
    """
    most = float(np.nanmax(values, initial=0.0)) if most is None else most
    left = max((len(name) for name in rows), default=0) * LETTER + 10
    above = max((len(name) for name in columns), default=0) * LETTER * 0.87 + 14
    tile = min(MOST_TILE, max(LEAST_TILE, (WIDTH - left) / max(1, len(columns))))
    width = max(left + tile * len(columns) + above * 0.5, 120.0)
    svg = svg_root(width, above + tile * len(rows) + 4, title)
    svg.set("class", "heat fits" if width <= 1.25 * WIDTH else "heat")
    svg.set("width", rounded(width))
    for k, name in enumerate(columns):
        x, y = left + tile * (k + 0.5) + 3, above - 6
        add_text(svg, x, y, name, "tick").set("transform", f"rotate(-60 {rounded(x)} {rounded(y)})")
    for r, row in enumerate(rows):
        add_text(svg, left - 6, above + tile * (r + 0.5) + 4, row, "tick", anchor="end")
        for c, column in enumerate(columns):
            value = float(values[r, c])
            if math.isnan(value):
                continue
            share = min(1.0, max(0.0, value / most)) if most > 0 else 0.0
            size = {"x": left + tile * c, "y": above + tile * r, "width": tile - 1, "height": tile - 1}
            shade = add(svg, "rect", "shade", **size)
            shade.set("fill-opacity", f"{FAINTEST + (1 - FAINTEST) * share:.2f}")
            ElementTree.SubElement(shade, "title").text = f"{row}, {column}: {value:.{decimals}f}"
    return markup(svg)


def interval_cell(
    value: float, low: float, high: float, span: tuple[float, float], *, rule: float | None = None, colour: int = 0
) -> Markup:
    """A table cell with a dot and its interval on a scale shared by all rows, with an optional reference line."""
    width, height = CELL
    svg = svg_root(width, height, None)

    def place(x: float) -> float:
        return 4 + (min(max(x, span[0]), span[1]) - span[0]) / (span[1] - span[0]) * (width - 8)

    if rule is not None:
        add(svg, "line", "rule", x1=place(rule), x2=place(rule), y1=0, y2=height)
    if low < high:
        add(svg, "line", f"reach {colour_class(colour)}", x1=place(low), x2=place(high), y1=height / 2, y2=height / 2)
    add(svg, "circle", f"dot {colour_class(colour)}", cx=place(value), cy=height / 2, r=3.5)
    return markup(svg)


def share_cell(share: float) -> Markup:
    """A table cell with a bar for a share within 0 and 1."""
    width, height = CELL
    svg = svg_root(width, height, None)
    add(svg, "rect", "bar c0", x=0, y=4, width=max(1.0, width * min(1.0, max(0.0, share))), height=height - 8, rx=1.5)
    return markup(svg)

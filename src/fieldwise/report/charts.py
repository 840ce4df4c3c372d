"""Charts as SVG, with colours from the page's style sheet for light and dark mode.

A chart is about 320 units wide, narrower than a phone, so that its text stays readable there; a wide page shows
several side by side. Elements are built as a tree, which escapes all text and values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

__all__ = [
    "COLOURS",
    "Line",
    "Pair",
    "heat_map",
    "interval_cell",
    "line_chart",
    "nice_ticks",
    "paired_bars",
    "share_cell",
]

COLOURS = 6  # classes c0, c1, ... of the style sheet
WIDTH, HEIGHT = 320.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 10.0, 10.0, 40.0
LEGEND_LINE = 17.0
LONGEST = 40  # characters per line of a legend
CELL = 100.0, 18.0
LEAST_TILE, MOST_TILE, LETTER = 15.0, 26.0, 6.3
FAINTEST = 0.05  # opacity of a tile at 0, so that it stays visible


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A series of points, optionally connected and with intervals.

    Args:
        name: its name in the legend; not shown if empty.
        colour: number of the page's colour; after the first `COLOURS` they repeat, dashed.
    """

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None
    colour: int = 0
    joined: bool = True
    points: bool = False


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    diagonal: bool = False,
    mark: float | None = None,
    level: float | None = None,
) -> Markup:
    """A line chart.

    Args:
        lines: at least one with a point.
        title: text for screen readers.
        x_label: label of the x axis.
        y_label: label of the y axis.
        x_range: range of the x axis; the points' range and a margin, if omitted.
        y_range: range of the y axis, likewise.
        diagonal: whether to draw y = x.
        mark: an x at which to draw a dashed line.
        level: a y at which to draw a dashed line.
    """
    named = [line for line in lines if line.name]
    top = TOP + LEGEND_LINE * len(named) + (4 if named else 0)
    height = HEIGHT + top - TOP
    svg = _svg(WIDTH, height, title)
    x_low, x_high = x_range or _span([line.x for line in lines])
    y_low, y_high = y_range or _span([v for line in lines for v in (line.y, line.low, line.high) if v is not None])

    def place_x(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def place_y(y: float) -> float:
        return height - BOTTOM - (y - y_low) / (y_high - y_low) * (height - BOTTOM - top)

    for k, line in enumerate(named):
        y = TOP + LEGEND_LINE * k + 5
        _add(svg, "line", f"line {_colour(line.colour)}", x1=LEFT, x2=LEFT + 18, y1=y, y2=y)
        text = line.name if len(line.name) <= LONGEST else line.name[: LONGEST - 1] + "…"
        _text(svg, LEFT + 24, y + 4, text, "legend")
    for tick in nice_ticks(y_low, y_high):
        _add(svg, "line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=place_y(tick), y2=place_y(tick))
        _text(svg, LEFT - 6, place_y(tick) + 4, _tick(tick, y_high - y_low), "tick", anchor="end")
    for tick in nice_ticks(x_low, x_high):
        _add(svg, "line", "grid", y1=top, y2=height - BOTTOM, x1=place_x(tick), x2=place_x(tick))
        _text(svg, place_x(tick), height - BOTTOM + 15, _tick(tick, x_high - x_low), "tick", anchor="middle")
    _text(svg, (LEFT + WIDTH - RIGHT) / 2, height - 6, x_label, "label", anchor="middle")
    middle = (top + height - BOTTOM) / 2
    side = _text(svg, 12, middle, y_label, "label", anchor="middle")
    side.set("transform", f"rotate(-90 12 {_n(middle)})")
    if diagonal:
        low, high = max(x_low, y_low), min(x_high, y_high)
        _add(svg, "line", "rule", x1=place_x(low), x2=place_x(high), y1=place_y(low), y2=place_y(high))
    if mark is not None:
        _add(svg, "line", "rule", x1=place_x(mark), x2=place_x(mark), y1=top, y2=height - BOTTOM)
    if level is not None:
        _add(svg, "line", "rule", x1=LEFT, x2=WIDTH - RIGHT, y1=place_y(level), y2=place_y(level))
    for line in lines:
        colour = _colour(line.colour)
        dots = [(place_x(float(x)), place_y(float(y))) for x, y in zip(line.x, line.y, strict=True)]
        if line.low is not None and line.high is not None:
            for (x, _), low, high in zip(dots, line.low, line.high, strict=True):
                _add(svg, "line", f"reach {colour}", x1=x, x2=x, y1=place_y(float(low)), y2=place_y(float(high)))
        if line.joined and len(dots) > 1:
            _add(svg, "polyline", f"line {colour}", points=" ".join(f"{_n(x)},{_n(y)}" for x, y in dots))
        if line.points or len(dots) == 1:
            for x, y in dots:
                _add(svg, "circle", f"dot {colour}", cx=x, cy=y, r=3)
    return _markup(svg)


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
    svg = _svg(WIDTH, top + height * len(pairs) + 22, title)

    def place(share: float) -> float:
        return left + min(1.0, max(0.0, share / most)) * (WIDTH - left - right)

    for k, (name, look) in enumerate(zip(names, ("faint c5", "bar c0"), strict=True)):
        _add(svg, "rect", look, x=left, y=TOP + LEGEND_LINE * k, width=18, height=10, rx=1.5)
        _text(svg, left + 24, TOP + LEGEND_LINE * k + 9, name, "legend")
    bottom = top + height * len(pairs)
    for share in (0.0, most / 2, most):
        _add(svg, "line", "grid", x1=place(share), x2=place(share), y1=top, y2=bottom)
        _text(svg, place(share), bottom + 15, f"{100 * share:g} %", "tick", anchor="middle")
    for k, pair in enumerate(pairs):
        y = top + height * k + 3
        _text(svg, left - 6, y + 15, pair.name, "tick", anchor="end")
        _add(svg, "rect", "faint c5", x=left, y=y, width=max(1.0, place(pair.first) - left), height=11, rx=1.5)
        _add(svg, "rect", "bar c0", x=left, y=y + 12, width=max(1.0, place(pair.second) - left), height=11, rx=1.5)
        _add(svg, "line", "reach c1", x1=place(pair.low), x2=place(pair.high), y1=y + 17.5, y2=y + 17.5)
        _text(svg, WIDTH - right + 6, y + 15, pair.words, "tick")
    return _markup(svg)


def _words_of(pairs: Sequence[Pair]) -> tuple[list[str], list[str]]:
    return [pair.name for pair in pairs], [pair.words for pair in pairs]


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
    svg = _svg(width, above + tile * len(rows) + 4, title)
    svg.set("class", "heat fits" if width <= 1.25 * WIDTH else "heat")
    svg.set("width", _n(width))
    for k, name in enumerate(columns):
        x, y = left + tile * (k + 0.5) + 3, above - 6
        _text(svg, x, y, name, "tick").set("transform", f"rotate(-60 {_n(x)} {_n(y)})")
    for r, row in enumerate(rows):
        _text(svg, left - 6, above + tile * (r + 0.5) + 4, row, "tick", anchor="end")
        for c, column in enumerate(columns):
            value = float(values[r, c])
            if math.isnan(value):
                continue
            share = min(1.0, max(0.0, value / most)) if most > 0 else 0.0
            size = {"x": left + tile * c, "y": above + tile * r, "width": tile - 1, "height": tile - 1}
            shade = _add(svg, "rect", "shade", **size)
            shade.set("fill-opacity", f"{FAINTEST + (1 - FAINTEST) * share:.2f}")
            ElementTree.SubElement(shade, "title").text = f"{row}, {column}: {value:.{decimals}f}"
    return _markup(svg)


def interval_cell(
    value: float, low: float, high: float, span: tuple[float, float], *, rule: float | None = None, colour: int = 0
) -> Markup:
    """A table cell with a dot and its interval on a scale shared by all rows, with an optional reference line."""
    width, height = CELL
    svg = _svg(width, height, None)

    def place(x: float) -> float:
        return 4 + (min(max(x, span[0]), span[1]) - span[0]) / (span[1] - span[0]) * (width - 8)

    if rule is not None:
        _add(svg, "line", "rule", x1=place(rule), x2=place(rule), y1=0, y2=height)
    if low < high:
        _add(svg, "line", f"reach {_colour(colour)}", x1=place(low), x2=place(high), y1=height / 2, y2=height / 2)
    _add(svg, "circle", f"dot {_colour(colour)}", cx=place(value), cy=height / 2, r=3.5)
    return _markup(svg)


def share_cell(share: float) -> Markup:
    """A table cell with a bar for a share within 0 and 1."""
    width, height = CELL
    svg = _svg(width, height, None)
    _add(svg, "rect", "bar c0", x=0, y=4, width=max(1.0, width * min(1.0, max(0.0, share))), height=height - 8, rx=1.5)
    return _markup(svg)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round tick values for an axis.

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= about + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _tick(value: float, span: float) -> str:
    decimals = max(0, 1 - math.floor(math.log10(span)))
    text = f"{value:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else f"{value:,.0f}") or "0"


def _span(values: Sequence[Sequence[float] | np.ndarray]) -> tuple[float, float]:
    every = np.concatenate([np.asarray(v, dtype=np.float64) for v in values])
    low, high = float(every.min()), float(every.max())
    room = (high - low) * 0.05 or max(abs(low) * 0.05, 0.5)
    return low - room, high + room


def _colour(number: int) -> str:
    return f"c{number % COLOURS}" + (" dashed" if number >= COLOURS else "")


def _svg(width: float, height: float, title: str | None) -> ElementTree.Element:
    svg = ElementTree.Element("svg", viewBox=f"0 0 {_n(width)} {_n(height)}")
    if title is None:
        svg.set("class", "cell")
        svg.set("aria-hidden", "true")  # its numbers are in the next cell
    else:
        svg.set("role", "img")
        svg.set("aria-label", title)
    return svg


def _add(svg: ElementTree.Element, tag: str, look: str, **places: float | str) -> ElementTree.Element:
    attributes = {name: value if isinstance(value, str) else _n(value) for name, value in places.items()}
    return ElementTree.SubElement(svg, tag, {"class": look, **attributes})


def _text(
    svg: ElementTree.Element, x: float, y: float, text: str, look: str, anchor: str = "start"
) -> ElementTree.Element:
    found = _add(svg, "text", look, x=x, y=y, **{"text-anchor": anchor})
    found.text = text
    return found


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _markup(svg: ElementTree.Element) -> Markup:
    return Markup(ElementTree.tostring(svg, encoding="unicode"))

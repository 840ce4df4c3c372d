"""Charts as SVG, in light and dark colours: for the report's page, notebooks and files.

A chart is about 320 units wide, narrower than a phone, so that its text stays readable there; a
wide page shows several side by side. `charts.css` has the colours. Elements are built as a tree,
which escapes all text and values.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Self
from xml.etree import ElementTree

import numpy as np

from fieldwise.storage.files import write_atomically

COLOURS = 6  # classes c0, c1, ... of the style sheet
WIDTH = 320.0
TOP = 10.0
LEGEND_LINE = 17.0
HEIGHT = 230.0  # of a line chart without a legend
LEFT = 50.0
RIGHT = 10.0
BOTTOM = 40.0
# characters of a line's name, and of a value's
LONGEST_LEGEND = 40
LONGEST_NAME = 22
MOST_POINTS = 240  # of a drawn curve
LEAST_TILE = 15.0
MOST_TILE = 26.0
LETTER = 6.3
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FAINTEST = 0.05  # opacity of a tile at 0, so that it stays visible


class Chart(str):
    """A drawing as SVG: text for an HTML page that has the style of `charts.css`.

    A notebook shows it with its title.

    Args:
        svg: the drawing.
        about: its title.
    """

    about: str

    def __new__(cls, svg: str, about: str = "") -> Self:
        """The drawing, with its title."""
        result = super().__new__(cls, svg)
        result.about = about
        return result

    def __repr__(self) -> str:
        return f"Chart({self.about!r})"

    def __html__(self) -> str:
        """The drawing, which a template does not escape."""
        return self

    def _repr_html_(self) -> str:
        return f'<div style="max-width: 32rem">{escape(self.about)}{self._styled()}</div>'

    def save(self, path: Path | str) -> None:
        """Write the drawing as an SVG file with its style.

        Errors:
            DataError: the disk is full or the folder is not writable.
        """
        write_atomically(Path(path), self._styled().encode())

    def _styled(self) -> str:
        root, end, content = self.partition(">")
        return (
            f'{root} xmlns="http://www.w3.org/2000/svg"{end}<style>{chart_style()}</style>{content}'
        )


@cache
def chart_style() -> str:
    """The style sheet of charts."""
    return Path(__file__).with_name("charts.css").read_text("utf-8")


def stacked(charts: Sequence[Chart], title: str) -> Chart:
    """One drawing of several line charts, one below the other."""
    trees = [ElementTree.fromstring(chart) for chart in charts]
    tops = np.cumsum([0.0, *(float(tree.get("viewBox", "").split()[3]) for tree in trees)])
    svg = _root(WIDTH, tops[-1], title)
    for tree, top, bottom in zip(trees, tops, tops[1:], strict=False):
        tree.set("y", _rounded(top))
        tree.set("height", _rounded(bottom - top))
        svg.append(tree)
    return _chart(svg)


def wider(low: float, high: float, least: float = 0.5) -> tuple[float, float]:
    """A span with a margin of 5 % on both sides, or of `least` if it has no width.

    >>> wider(0.0, 1.0), wider(2.0, 2.0)
    ((-0.05, 1.05), (1.5, 2.5))
    """
    room = (high - low) * 0.05 or least
    return low - room, high + room


def _colour(number: int) -> str:
    """The class of a line's colour; numbers after the first `COLOURS` repeat them, dashed."""
    return f"c{number % COLOURS}" + (" dashed" if number >= COLOURS else "")


def _root(width: float, height: float, title: str) -> ElementTree.Element:
    about = {"class": "fieldwise", "role": "img", "aria-label": _legal(title)}
    return ElementTree.Element(
        "svg", {"viewBox": f"0 0 {_rounded(width)} {_rounded(height)}", **about}
    )


def _add(
    svg: ElementTree.Element, tag: str, style: str, **places: float | str
) -> ElementTree.Element:
    """Append an element of class `style`, and return it."""
    attributes = {
        name: value if isinstance(value, str) else _rounded(value) for name, value in places.items()
    }
    return ElementTree.SubElement(svg, tag, {"class": style, **attributes})


def _line(svg: ElementTree.Element, style: str, x1: float, x2: float, y1: float, y2: float) -> None:
    _add(svg, "line", style, x1=x1, x2=x2, y1=y1, y2=y2)


def _text(
    svg: ElementTree.Element, x: float, y: float, text: str, style: str, anchor: str = "start"
) -> ElementTree.Element:
    """Append text at a point, and return its element."""
    result = _add(svg, "text", style, x=x, y=y, **{"text-anchor": anchor})
    result.text = _legal(text)
    return result


def _legal(text: str, longest: int | None = None) -> str:
    """The text, shortened, with U+FFFD for what XML 1.0 does not allow: control characters, halves of surrogates."""
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return NOT_XML.sub("\ufffd", text)


def _rounded(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _chart(svg: ElementTree.Element) -> Chart:
    return Chart(ElementTree.tostring(svg, encoding="unicode"), svg.get("aria-label", ""))


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A series of points, optionally connected and with intervals.

    Args:
        name: its name in the legend; not shown if empty.
        colour: number of the page's colour; after the first `COLOURS` they repeat, dashed.
        joined: whether its points are connected; if not, each has a dot.
        points: whether each point has a dot as well.
    """

    name: str = ""
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None
    colour: int = 0
    joined: bool = True
    points: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a line chart.

    Args:
        label: what its numbers are.
        span: its ends; all points with a margin, if omitted.
        unit: follows the vertical axis's numbers.
        mark: where a dashed line crosses the chart.
    """

    label: str
    span: tuple[float, float] | None = None
    unit: str = ""
    mark: float | None = None


def line_chart(
    lines: Sequence[Line], x: Axis, y: Axis, *, title: str, diagonal: bool = False
) -> Chart:
    """A line chart, with `title` for screen readers; with `diagonal` a dashed line is where y = x."""
    named = [line for line in lines if line.name]
    top = TOP + LEGEND_LINE * len(named) + (4 if named else 0)
    height = HEIGHT + top - TOP
    svg = _root(WIDTH, height, title)
    x_span = x.span or _span([line.x for line in lines])
    y_values = [values for line in lines for values in (line.y, line.low, line.high)]
    y_span = y.span or _span([values for values in y_values if values is not None])
    right = WIDTH - RIGHT
    bottom = height - BOTTOM
    middle = (top + bottom) / 2
    across = _scale(x_span, LEFT, right)
    up = _scale(y_span, bottom, top)
    for k, line in enumerate(named):
        level = TOP + LEGEND_LINE * k + 5
        _line(svg, f"line {_colour(line.colour)}", LEFT, LEFT + 18, level, level)
        _text(svg, LEFT + 24, level + 4, _legal(line.name, LONGEST_LEGEND), "legend")

    for tick in nice_ticks(*y_span):
        text = _tick(tick, y_span[1] - y_span[0]) + y.unit
        _line(svg, "grid", LEFT, right, up(tick), up(tick))
        _text(svg, LEFT - 6, up(tick) + 4, text, "tick", anchor="end")
    ticks = {tick: _tick(tick, x_span[1] - x_span[0]) for tick in nice_ticks(*x_span)}
    _draw_scale(svg, across, top, bottom, ticks)
    _text(svg, (LEFT + right) / 2, bottom + BOTTOM - 6, x.label, "label", anchor="middle")
    side = _text(svg, 12, middle, y.label, "label", anchor="middle")
    side.set("transform", f"rotate(-90 12 {_rounded(middle)})")

    if diagonal:
        low = max(x_span[0], y_span[0])
        high = min(x_span[1], y_span[1])
        _line(svg, "rule", across(low), across(high), up(low), up(high))
    if x.mark is not None:
        _line(svg, "rule", across(x.mark), across(x.mark), top, bottom)
    if y.mark is not None:
        _line(svg, "rule", LEFT, right, up(y.mark), up(y.mark))
    for line in lines:
        _draw(svg, line, across, up)
    return _chart(svg)


Scale = Callable[[float], float]
"""The place of a value in a drawing."""


def _scale(span: tuple[float, float], start: float, end: float) -> Scale:
    """A scale from `start`, where the span's first value is, to `end`."""
    low, high = span
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _draw_scale(
    svg: ElementTree.Element, across: Scale, top: float, bottom: float, ticks: Mapping[float, str]
) -> None:
    """Draw upright grid lines, with what to write below each."""
    for tick, text in ticks.items():
        _line(svg, "grid", across(tick), across(tick), top, bottom)
        _text(svg, across(tick), bottom + 15, text, "tick", anchor="middle")


def _draw(svg: ElementTree.Element, line: Line, across: Scale, up: Scale) -> None:
    """Draw a series: its intervals, its line, its points."""
    colour = _colour(line.colour)
    if line.low is not None and line.high is not None:
        for x, low, high in zip(line.x, line.low, line.high, strict=True):
            _line(
                svg,
                f"reach {colour}",
                across(float(x)),
                across(float(x)),
                up(float(low)),
                up(float(high)),
            )
    points = _thinned(line.x, line.y) if line.joined and not line.points else (line.x, line.y)
    dots = [(across(float(x)), up(float(y))) for x, y in zip(*points, strict=True)]
    if line.joined and len(dots) > 1:
        _add(
            svg,
            "polyline",
            f"line {colour}",
            points=" ".join(f"{_rounded(x)},{_rounded(y)}" for x, y in dots),
        )
    if line.points or not line.joined or len(dots) == 1:
        for x, y in dots:
            _add(svg, "circle", f"dot {colour}", cx=x, cy=y, r=3)


def _thinned(
    x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The curve's points, or a subset of them that is evenly spaced along the curve."""
    x = np.asarray(x)
    y = np.asarray(y)
    if len(x) <= MOST_POINTS:
        return x, y
    way = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    numbers = np.searchsorted(way, np.linspace(0, way[-1], MOST_POINTS)).clip(max=len(x) - 1)
    numbers = np.unique(numbers)
    return x[numbers], y[numbers]


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round tick values for an axis.

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= about + 1e-9)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _tick(value: float, span: float) -> str:
    decimals = max(0, 1 - math.floor(math.log10(span)))
    text = f"{value:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else f"{value:,.0f}") or "0"


def _span(values: Sequence[Sequence[float] | np.ndarray]) -> tuple[float, float]:
    every = np.concatenate([np.asarray(v, dtype=np.float64) for v in values])
    low = float(every.min())
    high = float(every.max())
    return wider(low, high, max(abs(low) * 0.05, 0.5))


def dot_chart(
    names: Sequence[str],
    values: Sequence[float] | np.ndarray,
    span: tuple[float, float],
    *,
    title: str,
    low: Sequence[float] | np.ndarray | None = None,
    high: Sequence[float] | np.ndarray | None = None,
    colours: Sequence[int] | np.ndarray | None = None,
    unit: str = "",
    rule: float | None = None,
) -> Chart:
    """A chart with a dot for each named value, from top to bottom, on a scale that other charts may share.

    `low` and `high` are the ends of intervals, `unit` follows the scale's numbers, and a dashed
    line is at `rule`.
    """
    shown = [_legal(name, LONGEST_NAME) for name in names]
    height = 20.0
    left = 10 + LETTER * max(map(len, shown), default=0)
    bottom = TOP + height * len(shown)
    svg = _root(WIDTH, bottom + 22, title)
    to_x = _scale(span, left + 8, WIDTH - 20)
    _draw_scale(
        svg, to_x, TOP, bottom, {tick: f"{tick:g}{unit}" for tick in nice_ticks(*span, about=4)}
    )
    if rule is not None:
        _line(svg, "rule", to_x(rule), to_x(rule), TOP, bottom)
    for k, (name, value) in enumerate(zip(shown, values, strict=True)):
        y = TOP + height * (k + 0.5)
        colour = _colour(0 if colours is None else int(colours[k]))
        _text(svg, left, y + 4, name, "tick", anchor="end")
        if low is not None and high is not None:
            _line(svg, f"reach {colour}", to_x(float(low[k])), to_x(float(high[k])), y, y)
        _add(svg, "circle", f"dot {colour}", cx=to_x(float(value)), cy=y, r=4)
    return _chart(svg)


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    most: float | None = None,
) -> Chart:
    """A heat map, with shades from 0 to `most`; hovering over a tile shows its number.

    Args:
        values: at least 0, or NaN for no value, [R, C].
        rows: names of the R rows.
        columns: names of the C columns.
        title: text for screen readers.
        most: value of the darkest shade; the largest value, if omitted.
    """
    most = float(np.nanmax(values, initial=0.0)) if most is None else most
    left = max((len(name) for name in rows), default=0) * LETTER + 10
    above = max((len(name) for name in columns), default=0) * LETTER * 0.87 + 14
    tile = min(MOST_TILE, max(LEAST_TILE, (WIDTH - left) / max(1, len(columns))))
    width = max(left + tile * len(columns) + above * 0.5, 120.0)
    svg = _root(width, above + tile * len(rows) + 4, title)
    svg.set("class", "fieldwise heat fits" if width <= 1.25 * WIDTH else "fieldwise heat")
    svg.set("width", _rounded(width))
    for k, name in enumerate(columns):
        x = left + tile * (k + 0.5) + 3
        y = above - 6
        _text(svg, x, y, name, "tick").set("transform", f"rotate(-60 {_rounded(x)} {_rounded(y)})")
    for r, row in enumerate(rows):
        _text(svg, left - 6, above + tile * (r + 0.5) + 4, row, "tick", anchor="end")
        for c, column in enumerate(columns):
            value = float(values[r, c])
            if math.isnan(value):
                continue
            share = min(1.0, max(0.0, value / most)) if most > 0 else 0.0
            size = {
                "x": left + tile * c,
                "y": above + tile * r,
                "width": tile - 1,
                "height": tile - 1,
            }
            shade = _add(svg, "rect", "shade", **size)
            shade.set("fill-opacity", f"{FAINTEST + (1 - FAINTEST) * share:.2f}")
            ElementTree.SubElement(shade, "title").text = _legal(f"{row}, {column}: {value:.3f}")
    return _chart(svg)

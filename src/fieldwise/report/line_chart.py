"""Line charts as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from fieldwise.report.svg import LEGEND_LINE, TOP, WIDTH, add, add_text, colour_class, markup, rounded, svg_root

__all__ = ["Axis", "Line", "line_chart", "nice_ticks"]

HEIGHT = 230.0
LEFT, RIGHT, BOTTOM = 50.0, 10.0, 40.0
LONGEST = 40  # characters per line of a legend


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


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Args:
        label: its label.
        span: its first and last value; the points' range and a margin, if omitted.
        mark: a value at which to draw a dashed line across the chart.
        unit: follows the numbers of a vertical axis.
    """

    label: str
    span: tuple[float, float] | None = None
    mark: float | None = None
    unit: str = ""


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, *, title: str, diagonal: bool = False) -> Markup:
    """A line chart.

    Args:
        lines: at least one with a point.
        x: the horizontal axis.
        y: the vertical axis.
        title: text for screen readers.
        diagonal: whether to draw y = x.
    """
    named = [line for line in lines if line.name]
    top = TOP + LEGEND_LINE * len(named) + (4 if named else 0)
    height = HEIGHT + top - TOP
    svg = svg_root(WIDTH, height, title)
    x_span = x.span or _span([line.x for line in lines])
    y_span = y.span or _span([v for line in lines for v in (line.y, line.low, line.high) if v is not None])
    plane = _Plane(svg, top, height - BOTTOM, x_span, y_span)
    _draw_legend(svg, named)
    _draw_axes(plane, x.label, y.label, y.unit)
    if diagonal:
        low, high = max(x_span[0], y_span[0]), min(x_span[1], y_span[1])
        add(svg, "line", "rule", x1=plane.x(low), x2=plane.x(high), y1=plane.y(low), y2=plane.y(high))
    if x.mark is not None:
        add(svg, "line", "rule", x1=plane.x(x.mark), x2=plane.x(x.mark), y1=top, y2=plane.bottom)
    if y.mark is not None:
        add(svg, "line", "rule", x1=LEFT, x2=WIDTH - RIGHT, y1=plane.y(y.mark), y2=plane.y(y.mark))
    for line in lines:
        _draw(plane, line)
    return markup(svg)


@dataclass(frozen=True)
class _Plane:
    """The area between the axes, and where values are in it."""

    svg: ElementTree.Element
    top: float
    bottom: float
    x_span: tuple[float, float]
    y_span: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_span
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_span
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)


def _draw_legend(svg: ElementTree.Element, named: Sequence[Line]) -> None:
    for k, line in enumerate(named):
        y = TOP + LEGEND_LINE * k + 5
        add(svg, "line", f"line {colour_class(line.colour)}", x1=LEFT, x2=LEFT + 18, y1=y, y2=y)
        text = line.name if len(line.name) <= LONGEST else line.name[: LONGEST - 1] + "…"
        add_text(svg, LEFT + 24, y + 4, text, "legend")


def _draw_axes(plane: _Plane, x_label: str, y_label: str, y_unit: str) -> None:
    """Draw grid lines with their values, and both labels."""
    svg, top, bottom = plane.svg, plane.top, plane.bottom
    (x_low, x_high), (y_low, y_high) = plane.x_span, plane.y_span
    for tick in nice_ticks(y_low, y_high):
        add(svg, "line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=plane.y(tick), y2=plane.y(tick))
        add_text(svg, LEFT - 6, plane.y(tick) + 4, _tick(tick, y_high - y_low) + y_unit, "tick", anchor="end")
    for tick in nice_ticks(x_low, x_high):
        add(svg, "line", "grid", y1=top, y2=bottom, x1=plane.x(tick), x2=plane.x(tick))
        add_text(svg, plane.x(tick), bottom + 15, _tick(tick, x_high - x_low), "tick", anchor="middle")
    add_text(svg, (LEFT + WIDTH - RIGHT) / 2, bottom + BOTTOM - 6, x_label, "label", anchor="middle")
    middle = (top + bottom) / 2
    side = add_text(svg, 12, middle, y_label, "label", anchor="middle")
    side.set("transform", f"rotate(-90 12 {rounded(middle)})")


def _draw(plane: _Plane, line: Line) -> None:
    """Draw a series: its intervals, its line, its points."""
    svg, colour = plane.svg, colour_class(line.colour)
    dots = [(plane.x(float(x)), plane.y(float(y))) for x, y in zip(line.x, line.y, strict=True)]
    if line.low is not None and line.high is not None:
        for (x, _), low, high in zip(dots, line.low, line.high, strict=True):
            add(svg, "line", f"reach {colour}", x1=x, x2=x, y1=plane.y(float(low)), y2=plane.y(float(high)))
    if line.joined and len(dots) > 1:
        add(svg, "polyline", f"line {colour}", points=" ".join(f"{rounded(x)},{rounded(y)}" for x, y in dots))
    if line.points or len(dots) == 1:
        for x, y in dots:
            add(svg, "circle", f"dot {colour}", cx=x, cy=y, r=3)


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

"""Charts as SVG by Matplotlib, in light and dark colours: for the report's page, notebooks and files.

A chart is about 320 units wide, narrower than a phone, so that its text stays readable there; a wide page shows
several side by side. `charts.css` has the colours.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Self, cast
from xml.etree import ElementTree

import numpy as np

from fieldwise.storage.files import write_atomically

COLOURS = 6  # colours c0, c1, ... of the style sheet; numbers after the last one repeat them, dashed
WIDTH = 320.0
LONGEST_LEGEND, LONGEST_NAME = 40, 22  # characters of a line's name, and of a value's
LEAST_TILE, MOST_TILE, LETTER = 15.0, 26.0, 6.3
FAINTEST = 0.05  # opacity of a tile at 0, so that it stays visible
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Chart(str):
    """A drawing as SVG: text for an HTML page that has the style of `charts.css`.

    A notebook shows it with its title, `about`.
    """

    about: str

    def __new__(cls, svg: str, about: str = "") -> Self:
        """The drawing, with its title."""
        found = super().__new__(cls, svg)
        found.about = about
        return found

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
        return f'{root} xmlns="http://www.w3.org/2000/svg"{end}<style>{chart_style()}</style>{content}'


@cache
def chart_style() -> str:
    """The style sheet of charts."""
    return Path(__file__).with_name("charts.css").read_text("utf-8")


@cache
def _colours() -> dict[str, str]:
    """The style sheet's colours of a light page by name; `_chart` puts the names back, which have two values."""
    return dict(reversed(re.findall(r"--([\w-]+): (#\w+)", chart_style())))


def stacked(charts: Sequence[Chart], title: str) -> Chart:
    """One drawing of several line charts, one below the other."""
    trees = [ElementTree.fromstring(chart) for chart in charts]
    heights = [tree.get("viewBox", "").split()[3] for tree in trees]
    tops = np.cumsum([0.0, *map(float, heights)])
    root = _root(WIDTH, tops[-1], title)
    for tree, top, height in zip(trees, tops, heights, strict=False):
        tree.attrib |= {"y": f"{top:g}", "height": height}
        root.append(tree)
    return Chart(ElementTree.tostring(root, encoding="unicode"), root.get("aria-label", ""))


def wider(low: float, high: float, least: float = 0.5) -> tuple[float, float]:
    """A span with a margin of 5 % on both sides, or of `least` if it has no width.

    >>> wider(0.0, 1.0), wider(2.0, 2.0)
    ((-0.05, 1.05), (1.5, 2.5))
    """
    room = (high - low) * 0.05 or least
    return low - room, high + room


@contextmanager
def _axes(width: float, height: float, left: float, right: float, top: float, bottom: float) -> Iterator[Any]:
    """Axes of a figure with such margins; within the context Matplotlib has the settings of our charts."""
    import matplotlib as mpl  # imported here: takes half a second, and training has no charts
    from matplotlib.figure import Figure

    colours = _colours()
    style: dict[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fieldwise",
        "text.parse_math": False,  # names of fields may have a $
        "text.color": colours["ink"],
        "axes.labelcolor": colours["ink"],
        "font.size": 11,
        "legend.frameon": False,
        "legend.borderpad": 0,
        "legend.handlelength": 1.6,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": colours["grid"],
        "grid.linewidth": 1,
        "path.simplify_threshold": 0.5,
    }
    ticks = {"labelcolor": colours["soft"], "major.size": 0, "major.pad": 6}
    style |= {f"{axis}tick.{name}": value for axis in "xy" for name, value in ticks.items()}
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # the reader's own settings are for their own figures
        mpl.rcParams.update(cast(Any, style))
        # Matplotlib's font only measures the text; the reader's fonts have the characters that it lacks.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure = Figure((width / 72, height / 72), frameon=False)
        size = (width - left - right) / width, (height - top - bottom) / height
        yield figure.add_axes((left / width, bottom / height, *size), frameon=False)


def _root(width: float, height: float, title: str) -> ElementTree.Element:
    view = {"viewBox": f"0 0 {width:g} {height:g}", "class": "fieldwise"}
    return ElementTree.Element("svg", view | {"role": "img", "aria-label": _legal(title)})


def _chart(axes: Any, title: str, tips: Sequence[str] = (), **more: str) -> Chart:
    """The figure as flat SVG without styles, which a page's Content-Security-Policy may forbid; text stays text.

    `tips` are the texts to show when hovering over each of the tiles.
    """
    file = io.StringIO()
    axes.figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    tree = ElementTree.fromstring(file.getvalue())
    _, _, width, height = map(float, tree.get("viewBox", "").split())
    root = _root(width, height, title)
    root.attrib |= more
    names = {colour: f"var(--{name})" for name, colour in reversed(_colours().items())}
    group, rest = "", iter(tips)
    for element in tree.iter():
        tag = element.tag.rpartition("}")[2]
        group = element.get("id", "") if tag == "g" else group
        if tag not in ("path", "text", "use") or "id" in element.attrib:  # a path with an id is a marker's shape
            continue
        style = dict(part.split(": ", 1) for part in element.get("style", "").split("; "))
        kept = {name: names.get(value, value) for name, value in style.items() if name in _KEPT}
        if tag == "path":
            kept["d"] = re.sub(r"\s*([MLz]|$)\s*", r"\1", element.get("d", ""))
        elif tag == "text":
            kept |= {name: element.get(name, "") for name in ("x", "y", "transform")}
            if "rotate(-0" in kept["transform"]:
                del kept["transform"]
        else:
            tag, place = "circle", {"cx": element.get("x", ""), "cy": element.get("y", "")}
            kept = {"fill": kept["fill"], **place, "r": "3"}
        short = {name: re.sub(r"\d+\.\d{3,}", lambda x: f"{float(x[0]):.2f}", v) for name, v in kept.items()}
        shape = ElementTree.SubElement(root, tag, short)
        shape.text = (element.text or "").strip()
        if group == _TILES:
            ElementTree.SubElement(shape, "title").text = next(rest)
    return Chart(ElementTree.tostring(root, encoding="unicode"), root.get("aria-label", ""))


_KEPT = ("fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "text-anchor")
_TILES = "tiles"


def _legal(text: str, longest: int = 1000) -> str:
    """The text, shortened, with U+FFFD for what XML 1.0 does not allow: control characters, halves of surrogates."""
    return NOT_XML.sub("\ufffd", text if len(text) <= longest else text[: longest - 1] + "…")


def _rule() -> dict[str, Any]:
    """The look of a dashed line across a chart."""
    return {"color": _colours()["soft"], "linewidth": 1, "linestyle": (0, (3, 3))}


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


def line_chart(
    lines: Sequence[Line],
    x: str,
    y: str,
    *,
    title: str,
    x_span: tuple[float, float] | None = None,
    y_span: tuple[float, float] | None = None,
    x_mark: float | None = None,
    y_mark: float | None = None,
    unit: str = "",
    diagonal: bool = False,
) -> Chart:
    """A line chart with the axes' labels `x` and `y`, and `title` for screen readers.

    An axis without a span holds all points with a margin; `unit` follows the vertical one's numbers. There are dashed
    lines at marks, and with `diagonal` where y = x.
    """
    named = [line for line in lines if line.name]
    top = 10 + (17 * len(named) + 4 if named else 0)
    with _axes(WIDTH, 220 + top, left=56, right=10, top=top, bottom=40) as axes:
        for line in lines:
            colour = _colours()[f"c{line.colour % COLOURS}"]
            if line.low is not None and line.high is not None:
                axes.vlines(line.x, line.low, line.high, colour, linewidth=1.6)
            style = ("-" if line.colour < COLOURS else "--") if line.joined else "none"
            marker = "o" if line.points or not line.joined or len(line.x) == 1 else ""
            label = f" {_legal(line.name, LONGEST_LEGEND)}"  # a name that starts with _ would not be shown
            look = {"color": colour, "linestyle": style, "linewidth": 2, "marker": marker}
            axes.plot(line.x, line.y, label=label if line.name else "", **look)
        axes.set(xlabel=_legal(x), ylabel=_legal(y), xlim=x_span, ylim=y_span)
        axes.yaxis.set_label_coords(-40 / 254, 0.5)  # beside the widest numbers
        axes.xaxis.set_major_formatter("{x:,.6g}")
        axes.yaxis.set_major_formatter("{x:,.6g}" + unit)
        if diagonal:
            axes.axline((0, 0), slope=1, **_rule())
        if x_mark is not None:
            axes.axvline(x_mark, **_rule())
        if y_mark is not None:
            axes.axhline(y_mark, **_rule())
        if named:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.4)
        return _chart(axes, title)


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

    `low` and `high` are the ends of intervals, `unit` follows the scale's numbers, and a dashed line is at `rule`.
    """
    shown = [_legal(name, LONGEST_NAME) for name in names]
    left = 18 + LETTER * max(map(len, shown), default=0)
    with _axes(WIDTH, 32 + 20 * len(names), left=left, right=20, top=10, bottom=22) as axes:
        if rule is not None:
            axes.axvline(rule, **_rule())
        for k, value in enumerate(values):
            colour = _colours()[f"c{0 if colours is None else int(colours[k])}"]
            if low is not None and high is not None:
                axes.hlines(k, low[k], high[k], colour, linewidth=1.6)
            axes.plot(value, k, "o", color=colour)
        axes.set(xlim=span, ylim=(len(names) - 0.5, -0.5))
        axes.set_yticks(range(len(names)), shown)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_formatter("{x:,.6g}" + unit)
        axes.locator_params(axis="x", nbins=4)
        return _chart(axes, title)


def heat_map(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, title: str, most: float | None = None
) -> Chart:
    """A heat map of values [R, C], at least 0, or NaN for no tile; hovering over one shows its number.

    The darkest shade has the value `most`, or the largest one.
    """
    most = float(np.nanmax(values, initial=0.0)) if most is None else most
    rows, columns = list(map(_legal, rows)), list(map(_legal, columns))
    left = max((len(name) for name in rows), default=0) * LETTER + 10
    above = max((len(name) for name in columns), default=0) * LETTER * 0.87 + 14
    tile = min(MOST_TILE, max(LEAST_TILE, (WIDTH - left) / max(1, len(columns))))
    right = max(above * 0.5, 120.0 - left - tile * len(columns))
    width, height = left + tile * len(columns) + right, above + tile * len(rows) + 4
    with _axes(width, height, left, right, above, 4) as axes:
        from matplotlib.collections import PatchCollection
        from matplotlib.colors import to_rgb
        from matplotlib.patches import Rectangle

        known, size = np.argwhere(~np.isnan(values)), 1 - 1 / tile
        share = np.clip(values[tuple(known.T)] / (most if most > 0 else 1.0), 0, 1)
        colours = [(*to_rgb(_colours()["c0"]), FAINTEST + (1 - FAINTEST) * one) for one in share]
        tiles = [Rectangle((c, r), size, size) for r, c in known]
        axes.add_collection(PatchCollection(tiles, facecolors=colours, linewidths=0, gid=_TILES))
        axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
        axes.grid(visible=False)
        axes.xaxis.tick_top()
        axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=60, ha="left", rotation_mode="anchor")
        axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
        tips = [f"{rows[r]}, {columns[c]}: {values[r, c]:.3f}" for r, c in known]
        fits = "fieldwise heat fits" if width <= 1.25 * WIDTH else "fieldwise heat"
        return _chart(axes, title, tips, **{"class": fits, "width": f"{width:g}"})

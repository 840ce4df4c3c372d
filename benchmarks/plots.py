"""Plots of cost against size, as small SVG files; Matplotlib is the extra `plots`."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.page import image_name
from fieldwise.storage.files import write_atomically

__all__ = ["curves", "write_plots"]

LINES = ("-", "--", ":", "-.")


def curves(case: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Points (size, median) of every contender, by size."""
    found = {}
    for contender in case["contenders"]:
        measures = contender.get("measures", {})
        points = sorted((float(m), v["median"]) for m, v in measures.items() if m.replace(".", "").isdigit())
        if points:
            found[contender["name"]] = points
    return found


def write_plots(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """An SVG file for every case that has a plot; the files' paths.

    Errors:
        SystemExit: Matplotlib is not installed; says how to get it.
    """
    cases = {name: case for name, case in results["cases"].items() if case["plot"]}
    if not cases:
        return []
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise SystemExit("plots need Matplotlib: pip install 'fieldwise[plots]'") from None
    mpl.use("svg")
    # Text as text and fixed ids: small files that change only where the numbers do.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fieldwise", "font.size": 9})
    return [_write(case, folder / image_name(name)) for name, case in cases.items()]


def _write(case: Mapping[str, Any], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for k, (contender, points) in enumerate(curves(case).items()):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, LINES[k // 4 % 4], color=f"C{k % 4}", marker="o", markersize=3, linewidth=1.2, label=contender)
    axes.set(xscale="log", yscale="log", xlabel=case["plot"]["x"], ylabel=case["plot"]["y"], title=case["title"])
    sizes = sorted({x for points in curves(case).values() for x, _ in points})
    axes.set_xticks(sizes, [f"{x:,.0f}" for x in sizes])
    axes.minorticks_off()
    axes.grid(which="major", linewidth=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    write_atomically(path, buffer.getvalue())
    return path

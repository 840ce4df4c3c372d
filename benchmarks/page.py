"""Writes docs/performance.md from a results file; all figures come from that file."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["grid", "number", "page"]

HEAD = """# Performance

Written by `python -m benchmarks write`; do not edit. `python -m benchmarks run CASE...` measures cases again and merges
them into the results file of this page.

Each contender is a separate process, started once and warmed up. In each round every contender has one turn, while the
others sleep. Model, data, batch, threads and number type are equal unless a case says otherwise. Figures are medians
over the rounds, with quartiles in brackets. A ratio is the ratio of the medians, with the quartiles of the rounds'
ratios. Machines are shared, so only ratios within a case are meaningful. Other libraries run from their released
packages in a separate environment (`benchmarks/peers/setup`). Idle threads wait as each library does by default: the
command line's choice (`OMP_WAIT_POLICY=PASSIVE`, see [training](training.md)) is not set here. "The machine" is
PyTorch's matrix product of 1024 x 1024 and its copy of 64 MB, in a process that takes turns like the others.
"""

NO_GPU = """\
**No figure on this page is of a GPU, and fieldwise was never measured on one.** `python -m benchmarks run gpu` measures
there epochs of AFM and AutoInt ([a GPU](how-to/devices.md)).
"""
"""Stands on the page until a case of a GPU was measured."""


def grid(head: Sequence[str], align: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table in Markdown.

    >>> grid(("a", "b"), "lr", [("x", 1)])
    ['| a | b |', '|---|---:|', '| x | 1 |']
    """
    rule = "|" + "".join("---:|" if side == "r" else "---|" for side in align)
    return [_line(head), rule, *map(_line, rows)]


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def number(value: float) -> str:
    """A number with three significant digits.

    >>> number(1234567.0), number(12.345), number(0.0123456), number(5.0)
    ('1,234,567', '12.3', '0.0123', '5')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2e}" if 0 < abs(value) < 1e-4 else f"{value:.3g}"


def page(results: Mapping[str, Any]) -> str:
    """The text of the page."""
    cases: Mapping[str, Any] = results["cases"]
    parts = [HEAD, "" if any(name.startswith("gpu-") for name in cases) else NO_GPU, targets(cases)]
    parts += [section(name, case) for name, case in cases.items()]
    return "\n".join(part for part in parts if part)


def targets(cases: Mapping[str, Any]) -> str:
    """The targets with the measured values."""
    rows = [
        (
            f"[{name}](#{name})",
            result["what"],
            f"{number(result['goal'])} ×",
            f"{number(result['value'])} × ({number(result['low'])}–{number(result['high'])})",
            "yes" if result["met"] else "no",
        )
        for name, case in cases.items()
        for result in case["targets"]
    ]
    return (
        "\n".join([*grid(("case", "what", "target", "measured", "met"), "llrrl", rows), ""])
        if rows
        else ""
    )


def section(name: str, case: Mapping[str, Any]) -> str:
    """The section of one case: title, description, the table, and the provenance of the numbers."""
    lines = [f"## {name}", "", f"{case['title']}. {case['about']}", ""]
    lines += table(case)
    lines += ["", _provenance(case), ""]
    return "\n".join(lines)


def table(case: Mapping[str, Any]) -> list[str]:
    """A table with one row per contender; rows of contenders that were not measured give the reason."""
    contenders = [c for c in case["contenders"] if c["name"] != "machine"]
    shown = [m for m in case["measures"] if any(m in c.get("measures", {}) for c in contenders)]
    first = next((c["measures"] for c in contenders if "measures" in c), {})
    base = first.get(shown[0], {}).get("median") if shown else None
    head = ["contender", *shown, *(["ratio to the first"] if base else []), "facts"]
    rows = []
    for contender in contenders:
        measures = contender.get("measures", {})
        cells = [_cell(measures[m]) if m in measures else "" for m in shown]
        if base:
            cells.append(
                number(measures[shown[0]]["median"] / base) if shown[0] in measures else ""
            )
        why = contender.get("absent") or contender.get("error")
        facts = f"not measured: {why}" if why else _facts(contender["facts"])
        rows.append([contender["name"], *cells, facts.replace("|", "/")])
    return grid(head, "l" + "r" * (len(head) - 2) + "l", rows)


def _cell(measure: Mapping[str, Any]) -> str:
    median, low, high = (number(measure[part]) for part in ("median", "low", "high"))
    return f"{median} ({low}–{high})"


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:,}" if type(value) is int else f"{name} {value}"
        for name, value in facts.items()
    )


def _provenance(case: Mapping[str, Any]) -> str:
    """Date, machine, commit and command of a case's numbers."""
    machine = next(
        (c for c in case["contenders"] if c["name"] == "machine" and "measures" in c), None
    )
    rates = ""
    if machine:
        measured = ", ".join(
            f"{name} {_cell(result)}"
            for name, result in machine["measures"].items()
            if name != "seconds"
        )
        rates = f" The machine: {measured}; {_facts(machine['facts'])}."
    return (
        f"Measured {case['date']} at commit {case['commit']} on {case['machine']}, {case['threads']} threads, "
        f"{case['repeats']} rounds, size {case['size']}: `{case['command']}`.{rates}"
    )

"""`fieldwise doctor`: report whether this machine is ready, and what is missing.

Only the standard library, Typer and Rich are required: any other package that is missing or broken is reported.
Packages are imported to check that they work, which takes seconds; `--quick` only reads their versions.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldwise.cli.options import AsJson, DataDir
from fieldwise.cli.show import console, print_json

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["DoctorOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of `fieldwise doctor`."""

    data_dir: DataDir = None
    json: AsJson = False
    quick: Annotated[bool, typer.Option("--quick", help="Only read versions; import and run nothing.")] = False


def run(options: DoctorOptions) -> None:
    """Show packages, extras and their purpose, devices, compilers, data sets, and what is missing."""
    from fieldwise.cli.doctor_facts import examine

    facts = examine(options.data_dir, quick=options.quick)
    if options.json:
        print_json(facts)
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    """Print the facts; problems come last, one sentence each."""
    out = console()
    out.print(f"fieldwise {facts['fieldwise']}, Python {facts['python']}, {facts['platform']}")
    out.print("packages: " + ", ".join(f"{name} {v or 'absent'}" for name, v in facts["packages"].items()))
    out.print(_extras_table(facts["extras"]))
    out.print(
        f"{facts['cores']} cores, {facts['threads'] or 'unknown'} threads, "
        f"vector instructions {facts['cpu_capability'] or 'unknown'}, {facts['free_disk_gib']:.1f} GiB free on disk"
    )
    for device in facts["devices"] or ():
        out.print(f"device {device}")
    out.print(f"C++ compiler: {facts['compiler'] or 'none'} (for training.compile, export --to aoti, and builds)")
    for name, backend in (facts["ops"] or {}).items():
        out.print(f"operation {name}: {backend}")
    if facts["bfloat16"] is not None:
        out.print(f"bfloat16: {facts['bfloat16']}")
    if facts["data_sets"] is not None:
        out.print(f"data sets in {facts['data_dir']}: {', '.join(facts['data_sets']) or 'none'}")
    for problem in facts["attention"]:
        out.print(f"- {problem}")
    if not facts["attention"]:
        out.print("no problems found")


def _extras_table(extras: dict[str, Any]) -> "Table":
    from rich.table import Table

    table = Table("extra", "for", "works", "packages", box=None)
    for name, facts in extras.items():
        works = {True: "yes", False: "no", None: "installed"}[facts["works"]]
        found = ", ".join(f"{package} {v}" for package, v in facts["packages"].items() if v is not None)
        table.add_row(name, facts["for"], works, found or facts["install"])
    return table

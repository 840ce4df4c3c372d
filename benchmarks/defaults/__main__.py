"""`python -m benchmarks.defaults`: `run` models with default settings, `show` results, `write` the page."""

import argparse
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from benchmarks.defaults.large_tables import LARGE_TABLES
from benchmarks.defaults.page import body, page
from benchmarks.defaults.runs import BASELINES, MODELS, Rows, applies, kept_run, rows_of, summary
from benchmarks.defaults.tables import TABLES
from benchmarks.results import load, merge, say
from fieldwise.runs import training_facts
from fieldwise.storage.files import write_atomically

ROOT = Path(__file__).parents[2]
STORE = ROOT / "build" / "defaults"
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "defaults-results.md"
PART = "tables"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    if options.command == "write":
        _write(options)
        return 0
    if options.command == "show":
        results = {name: summary(options.store, options.tag, name) for name in options.tables}
        print(body({name: one for name, one in results.items() if one is not None}))
        return 0
    say(f"tables: {', '.join(options.tables)}")
    if options.as_large:
        training_facts.LARGE_VOCABULARY = 0
        training_facts.MOST_REGRESSION_CELLS = 0
    for name in options.tables:
        _run_table(name, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="train the runs that are missing in the store")
    shows = commands.add_parser("show", help="print the results of a tag's runs")
    writes = commands.add_parser(
        "write", help="write the page from the results, after merging a tag's runs into them"
    )
    tables = TABLES | LARGE_TABLES
    for command in (runs, shows, writes):
        command.add_argument(
            "--tables", type=names_of(tables), default=list(TABLES), help=", ".join(tables)
        )
        default = None if command is writes else "now"
        command.add_argument("--tag", default=default, help="the name under which runs are stored")
        command.add_argument("--store", type=Path, default=STORE)
    known = (*MODELS, *BASELINES)
    runs.add_argument("--models", type=names_of(known), default=list(known), help=", ".join(known))
    runs.add_argument("--seeds", type=int, default=3)
    runs.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, in TOML",
    )
    runs.add_argument("--bins", type=int, help="with --numbers: how many; as init has them")
    runs.add_argument(
        "--numbers", choices=["quantile", "piecewise"], help="the encoding of numbers in bins"
    )
    runs.add_argument(
        "--data-dir", type=Path, default=Path(os.environ.get("FIELDWISE_DATA", "data"))
    )
    runs.add_argument("--threads", type=int, default=1)
    runs.add_argument(
        "--as-large",
        action="store_true",
        help="the rules of larger tables: lazy updates, LR by steps",
    )
    runs.add_argument("--again", action="store_true", help="repeat runs that are in the store")
    writes.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="the results file"
    )
    writes.add_argument("--page", type=Path, default=PAGE)
    return result


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names, for argparse."""

    def read(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"must be among {', '.join(known)}, found {name!r}"
                )
        return names

    return read


def _run_table(name: str, options: argparse.Namespace) -> None:
    words = {
        "folder": options.store,
        **{name: getattr(options, name) for name in ("tag", "sets", "threads", "again")},
    }
    rows: Rows | None = None
    table = (TABLES | LARGE_TABLES)[name]
    for seed in range(options.seeds):
        if rows is None or table.by_seed:
            rows = rows_of(table, seed, options.data_dir, options.numbers, options.bins)
        for model in options.models:
            result = kept_run(rows, model, seed, **words) if applies(model, rows.schema) else None
            if result is not None:
                test = result["test"]
                say(
                    f"{name} {model} seed {seed}: AUC {test['auc']:.4f}, logloss {test['logloss']:.4f}, "
                    f"ECE {test['ece']:.4f}, {result['seconds']:.1f} s"
                )


def _write(options: argparse.Namespace) -> None:
    for name in options.tables if options.tag else ():
        result = summary(options.store, options.tag, name)
        if result is None:
            say(f"{name}: no runs of {options.tag}")
        else:
            merge(options.json, name, result, PART)
    write_atomically(options.page, page(load(options.json, PART)).encode())


if __name__ == "__main__":
    sys.exit(main())

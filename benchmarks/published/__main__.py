"""`python -m benchmarks.published`: train the runs of published tables (`run`), or write the page (`write`)."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.published.features import features_section
from benchmarks.published.page import page
from benchmarks.published.tables import Table, read_tables
from benchmarks.published.trees import tree_runs
from benchmarks.results import environments, load, merge, say
from fieldwise.runs.leaderboard import leaderboards
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recorded_runs import RunContext, recorded_runs
from fieldwise.runs.records import RunRecord, Store
from fieldwise.storage.cache import default_cache
from fieldwise.storage.files import write_atomically
from fieldwise.training.progress import progress_for

PART = "tables"
DRAWS = 3
ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "results.md"
FEATURES = ROOT / "benchmarks" / "features_on_logs.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    tables = read_tables()
    options = parser(tables).parse_args(arguments)
    if options.command == "write":
        text = page(tables, load(options.json, PART))
        section = features_section(load(options.features, "logs")["logs"])
        if section:
            text = f"{text}\n{section}"
        write_atomically(options.page, text.encode())
        return 0
    for name in dict.fromkeys(options.tables):
        if name not in tables:
            sys.exit(f"a table must be one of {', '.join(tables)}; found {name!r}")
        merge(options.json, name, run(tables[name], options), PART)
    return 0


def parser(tables: Mapping[str, Table]) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    runs = commands.add_parser(
        "run", help="train the missing runs of tables and merge their figures into the results"
    )
    runs.add_argument("tables", nargs="+", metavar="TABLE", help=", ".join(tables))
    runs.add_argument("--data-dir", type=Path, required=True)
    runs.add_argument("--store", type=Path, default=Path("runs/results"))
    runs.add_argument("--seeds", type=int, help="number of seeds instead of the table's")
    writes = commands.add_parser("write", help="write the page from the results")
    writes.add_argument("--page", type=Path, default=PAGE)
    writes.add_argument("--features", type=Path, default=FEATURES, metavar="FILE")
    for command in (runs, writes):
        command.add_argument(
            "--json", type=Path, default=RESULTS, metavar="FILE", help="the results file"
        )
    return result


def run(table: Table, options: argparse.Namespace) -> dict[str, Any]:
    """The table's leaderboard, and the dates, machines and commits of its runs."""
    seeds = range(table.seeds if options.seeds is None else options.seeds)
    context = RunContext(
        data_dir=options.data_dir,
        cache=default_cache(),
        note=say,
        callbacks=lambda title: [progress_for(title, quiet=not sys.stderr.isatty())],
    )
    given = {"store": Store(options.store), "context": context}
    recipes = [row.load(table.protocol) for row in table.rows if row.learner is None]
    runs = recorded_runs(recipes, seeds, **given)
    for row in table.rows:
        if row.learner is not None:
            runs[row.name] = tree_runs(row.load(table.protocol), seeds, name=row.name, **given)
    boards = leaderboards(runs, base=table.base, metric=table.metrics[0])
    if len(boards) != 1:
        raise SystemExit(
            f"the recipes of table {table.name} must share their test rows, found {len(boards)} sets"
        )
    board = boards[0].to_plain()
    for line in board["lines"]:
        del line["runs"]  # folders of one machine
        line["commits"] = environments(runs[line["recipe"]])["commit"]
    records = [record for records in runs.values() for record in records]
    draws = {}
    for row in table.rows:
        if row.name not in table.draws:
            continue
        name = row.name
        result = drawn_runs(row.load(table.protocol), seeds, given)
        draws[name] = {
            m: [[r.about["test"][m] for r in of_draw] for of_draw in result] for m in table.metrics
        }
        records += [record for of_draw in result for record in of_draw]
    return {
        "board": board,
        "environment": environments(records),
        **({"draws": draws} if draws else {}),
    }


def drawn_runs(
    recipe: Recipe, seeds: Sequence[int], given: Mapping[str, Any]
) -> list[list[RunRecord]]:
    """Runs of a recipe with every seed, for every sample of its negatives."""
    drawn = [dataclasses.replace(recipe, data_seed=draw) for draw in range(DRAWS)]
    return [recorded_runs([one], seeds, **given)[recipe.name] for one in drawn]


if __name__ == "__main__":
    sys.exit(main())

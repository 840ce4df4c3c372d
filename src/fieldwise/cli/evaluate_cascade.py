"""`fieldwise evaluate-cascade`."""

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import BundleDevice, load_bundle
from fieldwise.cli.next import suggest
from fieldwise.cli.options import MAX_SEED, AsJson, Reading, Threads, set_threads
from fieldwise.cli.show import console, drawn_rows, print_json

if TYPE_CHECKING:
    from fieldwise.serving.evaluate import CascadeReport

__all__ = ["EvaluateCascadeOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class EvaluateCascadeOptions:
    """Options of `fieldwise evaluate-cascade`."""

    prerank: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The IntTower that made the index.")]
    ranker: Annotated[Path, typer.Argument(metavar="RANKER", help="The bundle that ranks the pre-ranked items.")]
    index: Annotated[Path, typer.Option(help="Folder of the index.")]
    data: Annotated[Path, typer.Option(help="Rows whose users and contexts make the requests.")]
    k: Annotated[int, typer.Option(min=1, help="Items returned.")] = 20
    size: Annotated[int, typer.Option("--prerank", min=1, help="Items passed to the ranking bundle.")] = 200
    nprobe: Annotated[
        int | None,
        typer.Option(
            min=1, help="Approximate search: item-head clusters probed per user head. Default: score all items."
        ),
    ] = None
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of contexts, sampled at random.")] = 200
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed for sampling contexts.")] = 0
    reading: Reading
    json: AsJson = False
    device: BundleDevice = "cpu"
    threads: Threads = None


def run(options: EvaluateCascadeOptions) -> None:
    """Measure the loss of pre-ranking compared with ranking every item, and the latency of each stage."""
    from fieldwise.serving.cascade import Cascade
    from fieldwise.serving.evaluate import evaluate_cascade
    from fieldwise.serving.index import open_index

    set_threads(options.threads)
    prerank, ranker = (load_bundle(folder, options.device) for folder in (options.prerank, options.ranker))
    cascade = Cascade(prerank, open_index(options.index), ranker, nprobe=options.nprobe)
    frame = options.reading.table(options.data)
    contexts = drawn_rows(frame, options.rows, options.seed, "rows sampled as contexts")
    report = evaluate_cascade(cascade, contexts, k=options.k, prerank=options.size)
    if options.json:
        print_json(asdict(report))
        return
    _print(report, options.nprobe)
    if find_spec("uvicorn") is not None:
        given = ["--prerank", options.prerank, "--index", options.index]
        given += [] if options.nprobe is None else ["--nprobe", str(options.nprobe)]
        suggest("start a server with a web page that uses both bundles", "serve", options.ranker, *given)


def _print(report: "CascadeReport", nprobe: int | None) -> None:
    from rich.table import Table

    out = console()
    out.print(
        f"{report.contexts:,} contexts, {report.items:,} items, {min(report.prerank, report.items):,} pre-ranked, "
        f"{report.k} returned; compared with ranking all items:"
    )
    table = Table("metric", "value", box=None)
    table.add_row(f"recall@{report.k}", f"{report.recall:.4f}")
    table.add_row(f"NDCG@{report.k}", f"{report.ndcg:.4f}")
    table.add_row("best item found", f"{report.best_found:.4f}")
    if nprobe is not None:
        table.add_row("items scored by the IntTower, mean", f"{report.candidates:,.0f}")
        table.add_row(f"share of its best {report.prerank:,} items among them", f"{report.candidate_recall:.4f}")
    if report.hit_rate is not None:
        table.add_row(f"hit rate@{report.k} of the items in {report.targets:,} rows", f"{report.hit_rate:.4f}")
        table.add_row("the same, ranking all items", f"{report.hit_rate_all:.4f}")
    out.print(table)
    table = Table("pre-ranked", f"share of the best {report.k} kept", title="\nrecall of pre-ranking", box=None)
    for size, share in report.recall_by_prerank.items():
        table.add_row(f"{size:,}", f"{share:.4f}")
    out.print(table)
    table = Table("stage", "p50", "p95", "p99", title="\nmilliseconds per request", box=None)
    for stage, values in report.milliseconds.items():
        name = "ranking all items" if stage == "everything" else stage
        table.add_row(name, *(f"{value:.2f}" for value in values))
    out.print(table)

"""`fieldwise evaluate` and `fieldwise evaluate-cascade`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import BundleDevice, load_bundle, rows_of_bundle
from fieldwise.cli.next import command, log_words, suggest, suggest_report
from fieldwise.cli.options import AsJson, BundleFolder, Reading
from fieldwise.cli.ranking import RankingOptions, show_rankings
from fieldwise.cli.show import calibration_words, console, drawn_rows, print_json, print_table, say, show_metrics
from fieldwise.errors import ConfigError
from fieldwise.scoring import PRERANK

if TYPE_CHECKING:
    from fieldwise.serving.evaluate import CascadeReport

__all__ = ["run", "run_cascade"]


def run(
    *,
    bundle: BundleFolder,
    data: Annotated[Path | None, typer.Option(help="A table with labels. Default: the recipe's test rows.")] = None,
    reading: Reading,
    ranking: RankingOptions,
    json: AsJson = False,
    device: BundleDevice = "cpu",
) -> None:
    """Evaluate a saved bundle on its recipe's test rows, or on a table of your own."""
    from fieldwise.bundle.trained_rows import rows_trained, trained_words
    from fieldwise.data.encode.encoder import check_table
    from fieldwise.data.prepare.labels import read_labels
    from fieldwise.runs.leaderboard import ranking_boards
    from fieldwise.runs.ranking import RankingTask, rank_items

    wanted = ranking.settings()
    reading.check_used("--data", data)
    if data is not None and wanted is not None:
        raise ConfigError(
            "--ranking excludes items that users liked in training rows, which --data does not have: omit one"
        )
    model, where, ranked, seen = load_bundle(bundle, device), str(data), [], None
    if data is not None:
        frame = reading.table(data)
    else:
        prepared, (frame,) = rows_of_bundle(model, bundle, ["test"], "give --data FILE")
        where = "the recipe's test rows"
    with reading.lines(data):
        check_table(frame, model.schema)
        rows = read_labels(frame, model.schema.labels)
    if rows.dropped:
        say(f"{rows.dropped:,} rows dropped by the label's rule")
    if model.calibration:
        say(f"measured with the bundle's calibration ({calibration_words(model)})")
    metrics = model.metrics(rows, one_class=True)
    if data is not None:
        seen = rows_trained(model, rows.frame)
    elif wanted is not None:
        task = RankingTask(prepared, model.schema, wanted)
        ranked = ranking_boards({bundle.name: [rank_items(model, task)]}, k=ranking.cutoff)
    if json:
        found: dict[str, object] = {"bundle": str(bundle), "data": where, "metrics": metrics}
        if data is not None:
            found["share_trained"] = None if seen is None else seen.share
        if ranked:
            found["ranking"] = ranked[0].to_plain()
        print_json(found)
    else:
        show_metrics({where: metrics})
        show_rankings(ranked, "[95 % interval] for other users")
    if seen is not None and seen.found:
        instead = "evaluate on rows that were not passed to `fit`"
        if "recipe" in model.about:
            instead = f"to evaluate on its test rows: {command('evaluate', bundle)}"
        say(f"WARNING: {trained_words(rows.frame.height, seen)}; {instead}")
    if not json and data is None:
        suggest_report(model, bundle)
    elif not json:
        suggest("explain the scores of these rows", "explain", bundle, "--data", data, *reading.options())


def run_cascade(
    *,
    prerank: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The IntTower that made the index.")],
    ranker: Annotated[Path, typer.Argument(metavar="RANKER", help="The bundle that ranks the pre-ranked items.")],
    index: Annotated[Path, typer.Option(help="Folder of the index.")],
    data: Annotated[Path, typer.Option(help="Rows whose users and contexts make the requests.")],
    k: Annotated[int, typer.Option(min=1, help="Items returned.")] = 20,
    size: Annotated[int, typer.Option("--prerank", min=1, help="Items passed to the ranking bundle.")] = PRERANK,
    nprobe: Annotated[
        int | None,
        typer.Option(
            min=1, help="Approximate search: item-head clusters probed per user head. Default: score all items."
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of contexts, sampled at random.")] = 200,
    reading: Reading,
    json: AsJson = False,
    device: BundleDevice = "cpu",
) -> None:
    """Measure the loss of pre-ranking compared with ranking every item, and the latency of each stage."""
    from fieldwise.scoring.ranker import Ranker
    from fieldwise.serving.evaluate import evaluate_cascade
    from fieldwise.serving.index import open_index

    tower, ranking = load_bundle(prerank, device), load_bundle(ranker, device)
    cascade = Ranker(ranking, open_index(index), prerank=tower, nprobe=nprobe)
    contexts = drawn_rows(reading.table(data), rows, "rows sampled as contexts")
    report = evaluate_cascade(cascade, contexts, k=k, prerank=size)
    if json:
        print_json(asdict(report))
        return
    _show_cascade(report, approximate=nprobe is not None)
    given = ["--prerank", prerank, "--index", index, *([] if nprobe is None else ["--nprobe", nprobe])]
    given += log_words(tower)
    suggest("start a server with a web page that uses both bundles", "serve", ranker, *given, needs="uvicorn")


def _show_cascade(report: "CascadeReport", *, approximate: bool) -> None:
    k, size = report.k, report.prerank
    console().print(
        f"{report.contexts:,} contexts, {report.items:,} items, {min(size, report.items):,} pre-ranked, {k} returned; "
        "compared with ranking all items:"
    )
    figures = {f"recall@{k}": report.recall, f"NDCG@{k}": report.ndcg, "best item found": report.best_found}
    rows = [[name, f"{value:.4f}"] for name, value in figures.items()]
    if approximate:
        rows.append(["items scored by the IntTower, mean", f"{report.candidates:,.0f}"])
        rows.append([f"share of its best {size:,} items among them", f"{report.candidate_recall:.4f}"])
    if report.hit_rate is not None:
        rows.append([f"hit rate@{k} of the items in {report.targets:,} rows", f"{report.hit_rate:.4f}"])
        rows.append(["the same, ranking all items", f"{report.hit_rate_all:.4f}"])
    print_table(["metric", "value"], rows)
    rows = [[f"{size:,}", f"{share:.4f}"] for size, share in report.recall_by_prerank.items()]
    print_table(["pre-ranked", f"share of the best {k} kept"], rows, title="\nrecall of pre-ranking")
    stages = {"ranking all items" if name == "everything" else name: v for name, v in report.milliseconds.items()}
    rows = [[name, *(f"{value:.2f}" for value in values)] for name, values in stages.items()]
    print_table(["stage", "p50", "p95", "p99"], rows, title="\nmilliseconds per request")

"""`fieldwise evaluate --prerank`: what pre-ranking loses compared with ranking every item, and its latency."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.evaluate_options import EvaluateOptions
from fieldwise.errors import ConfigError
from fieldwise.scoring import PRERANK

if TYPE_CHECKING:
    from fieldwise.serving.evaluate import CascadeReport

DEFAULT_RETURNED = 20
DEFAULT_CONTEXTS = 200


def measure_prerank(options: EvaluateOptions, prerank: Path) -> None:
    """Measure the loss of pre-ranking compared with ranking every item, and the latency of each stage."""
    from fieldwise.scoring.ranker import Ranker
    from fieldwise.serving.evaluate import evaluate_cascade
    from fieldwise.serving.index import open_index

    preranked = _preranked(options.ranking.candidates)
    assert options.index is not None, "checked before"
    assert options.data is not None, "checked before"
    tower = opt.load_bundle(prerank, options.device)
    ranker = opt.load_bundle(options.bundle, options.device)
    cascade = Ranker(ranker, open_index(options.index), prerank=tower, nprobe=options.nprobe)
    text_columns = [*ranker.schema.text_columns, *tower.schema.text_columns]
    table = options.reading.table(options.data, text_columns)
    contexts = show.drawn_rows(table, options.rows or DEFAULT_CONTEXTS, "rows sampled as contexts")
    returned = options.ranking.k or DEFAULT_RETURNED
    report = evaluate_cascade(cascade, contexts, k=returned, prerank=preranked)
    if options.json:
        show.print_json(asdict(report))
        return

    is_approximate = options.nprobe is not None
    _show_report(report, is_approximate=is_approximate)
    words: list[object] = ["--prerank", prerank, "--index", options.index]
    words += show.log_words(tower)
    if is_approximate:
        words += ["--nprobe", options.nprobe]
    show.suggest(
        "start a server with a web page that uses both bundles",
        "serve",
        options.bundle,
        *words,
        needs="uvicorn",
    )


def _preranked(candidates: str | None) -> int:
    """The number of items passed on, as --candidates gives it."""
    if candidates is None:
        return PRERANK
    if not candidates.isdecimal() or not int(candidates):
        raise ConfigError(
            f"--candidates must be the number of items passed on, found {candidates!r}"
        )
    return int(candidates)


def _show_report(report: "CascadeReport", *, is_approximate: bool) -> None:
    """Print the losses, and the latencies."""
    k = report.k
    preranked = min(report.prerank, report.items)
    show.console().print(
        f"{show.counted(report.contexts, 'context')}, {report.items:,} items, {preranked:,} pre-ranked, {k} returned; "
        "compared with ranking all items:"
    )
    rows = [
        [f"recall@{k}", f"{report.recall:.4f}"],
        [f"NDCG@{k}", f"{report.ndcg:.4f}"],
        ["best item found", f"{report.best_found:.4f}"],
    ]
    if is_approximate:
        share_name = f"share of its best {report.prerank:,} items among them"
        rows.append(["items scored by the IntTower, mean", f"{report.candidates:,.0f}"])
        rows.append([share_name, f"{report.candidate_recall:.4f}"])
    if report.hit_rate is not None:
        hit_rate_name = f"hit rate@{k} of the items in {report.targets:,} rows"
        rows.append([hit_rate_name, f"{report.hit_rate:.4f}"])
        rows.append(["the same, ranking all items", f"{report.hit_rate_all:.4f}"])
    show.print_table(["metric", "value"], rows)

    rows = [[f"{size:,}", f"{share:.4f}"] for size, share in report.recall_by_prerank.items()]
    heads = ["pre-ranked", f"share of the best {k} kept"]
    show.print_table(heads, rows, title="\nrecall of pre-ranking")

    rows = []
    for stage, percentiles in report.milliseconds.items():
        stage_name = "ranking all items" if stage == "everything" else stage
        rows.append([stage_name, *(f"{value:.2f}" for value in percentiles)])
    heads = ["stage", "p50", "p95", "p99"]
    show.print_table(heads, rows, title="\nmilliseconds per request")

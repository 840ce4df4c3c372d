"""`fieldwise evaluate`: metrics of a trained bundle on rows, also of its rankings."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.calibrate import calibrate
from fieldwise.cli.evaluate_options import EvaluateOptions
from fieldwise.cli.prerank import measure_prerank
from fieldwise.cli.rankings import show_rankings
from fieldwise.errors import ConfigError
from fieldwise.storage.scratch import NO_LIMIT

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.prepare.labels import LabelledRows


def run(options: EvaluateOptions) -> None:
    """Evaluate a bundle on its test rows, or on your table.

    With --ranking it also ranks items for users. --calibrate fits a calibration, with which the
    bundle then predicts. --prerank measures what two stages lose compared with ranking every item,
    and the latency of each stage.
    """
    options.check()
    if options.calibrate is not None:
        calibrate(options, options.calibrate)
    elif options.prerank is not None:
        measure_prerank(options, options.prerank)
    elif options.data is not None:
        _evaluate_table(options, options.data)
    else:
        _evaluate_test_rows(options)


def _evaluate_table(options: EvaluateOptions, data: Path) -> None:
    """Print the metrics of the bundle on a table with labels."""
    from fieldwise.bundle.trained_rows import rows_trained, trained_words
    from fieldwise.bundle.unknown_ids import unknown_id_doubts

    if options.ranking.settings() is not None:
        raise ConfigError(
            "--ranking excludes items that users liked in training rows, which --data does not have: omit one"
        )
    bundle = opt.load_bundle(options.bundle, options.device)
    table = options.reading.table(data, bundle.schema.text_columns)
    with options.reading.lines(data):
        rows = _labelled_rows(bundle, table)
    metrics = _metrics(bundle, rows)
    seen = rows_trained(bundle, rows.frame)
    if options.json:
        share_trained = None if seen is None else seen.share
        facts = {"data": str(data), "metrics": metrics, "share_trained": share_trained}
        show.print_json({"bundle": str(options.bundle), **facts})
    else:
        show.show_metrics({str(data): metrics})

    if seen is not None and seen.found:
        remedy = "evaluate on rows that were not passed to `fit`"
        if "recipe" in bundle.about:
            remedy = f"to evaluate on its test rows: {show.command('evaluate', options.bundle)}"
        show.say(f"WARNING: {trained_words(rows.frame.height, seen)}; {remedy}")
    for doubt in unknown_id_doubts(bundle, rows.frame):
        show.say(f"CHECK: {doubt}")
    if not options.json:
        words = ["--data", data, *options.reading.options()]
        show.suggest("explain the scores of these rows", "explain", options.bundle, *words)


def _evaluate_test_rows(options: EvaluateOptions) -> None:
    """Print the metrics of the bundle on the test rows of its recipe, and of its rankings."""
    from fieldwise.runs.leaderboard import ranking_boards
    from fieldwise.runs.ranking import RankingTask, rank_items

    ranking = options.ranking.settings()
    options.reading.check_used("--data", None)
    bundle = opt.load_bundle(options.bundle, options.device)
    prepared, (table,) = opt.rows_of_bundle(bundle, options.bundle, ["test"], "give --data FILE")
    metrics = _metrics(bundle, _labelled_rows(bundle, table))
    boards = []
    if ranking is not None:
        ranked = rank_items(bundle, RankingTask(prepared, bundle.schema, ranking))
        boards = ranking_boards({options.bundle.name: [ranked]}, k=options.ranking.cutoff)

    where = "the recipe's test rows"
    if options.json:
        plain: dict[str, Any] = {"bundle": str(options.bundle), "data": where, "metrics": metrics}
        if boards:
            plain["ranking"] = boards[0].to_plain()
        show.print_json(plain)
        return
    show.show_metrics({where: metrics})
    show_rankings(boards, "[95 % interval] for other users")
    show.suggest_report(bundle, options.bundle)


def _labelled_rows(bundle: "Bundle", table: "pl.DataFrame") -> "LabelledRows":
    """The rows of a table with their labels, without those that the label's rule drops."""
    from fieldwise.data.encode.encoder import check_table
    from fieldwise.data.prepare.labels import read_labels

    check_table(table, bundle.schema, budget=NO_LIMIT)
    return read_labels(table, bundle.schema.labels, missing=bundle.schema.missing, budget=NO_LIMIT)


def _metrics(bundle: "Bundle", rows: "LabelledRows") -> dict[str, float]:
    """The metrics of a bundle; says how many rows were dropped, and which calibration it has."""
    show.say_dropped(rows.dropped)
    if bundle.calibration:
        has_several_labels = len(bundle.schema.labels) > 1
        kinds: list[str] = []
        for name, calibration in bundle.calibration.items():
            kinds.append(f"{name}: {calibration.kind}" if has_several_labels else calibration.kind)
        show.say(f"measured with the bundle's calibration ({', '.join(kinds)})")
    return bundle.metrics(rows, one_class=True)

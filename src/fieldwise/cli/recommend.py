"""`fieldwise recommend`: write the best items for every user of a log."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.schema.ids import id_column
from fieldwise.scoring import seen_words
from fieldwise.storage.outputs import check_output


@dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """Options of `fieldwise recommend`."""

    bundle: opt.BundleFolder
    log: Annotated[
        Path,
        Option(
            help="Events of users with items: the users, their latest contexts, the candidates."
        ),
    ]
    out: Annotated[Path, Option(help=f"File to write to: {opt.WRITTEN_FORMATS}.")]
    k: Annotated[int, Option(min=1, help="Number of items for each user.")] = 10
    users: Annotated[
        list[str] | None, Option("--user", help="Only this user; may be repeated. Default: all.")
    ] = None
    exclude_seen: opt.ExcludeSeen = None
    limit: opt.Limits = None
    pin: opt.Pins = None
    title: Annotated[
        str | None, Option(metavar="COLUMN", help="Column of items' names, to be written too.")
    ] = None
    overwrite: opt.Overwrite = False
    raw: opt.Raw = False
    reading: opt.Reading
    quiet: opt.Quiet = False
    progress: opt.Shown = "text"
    device: opt.BundleDevice = "cpu"


def run(options: RecommendOptions) -> None:
    """Recommend items to every user of a log.

    These are the best by the model, ten for each, without the items of the user's positive rows.
    Users whom the model does not know get the most popular items, which the column `source` says.
    """
    from fieldwise.data.read.table_writer import TableWriter
    from fieldwise.evaluation.lists import LIST_MEASURES, Exposure, same_list_sentence
    from fieldwise.scoring.recommend import BatchRecommender, IdColumns

    check_output(
        options.out,
        overwrite=options.overwrite,
        inputs=[options.bundle, *resources.table_files(options.log)],
    )
    model = resources.load_bundle(options.bundle, options.device)
    writer = TableWriter(options.out, raw=options.raw)
    row_count = 0
    users_by_source = Counter[str]()
    with (
        options.reading.lines(options.log),
        resources.reports_for(options.progress, quiet=options.quiet) as reports,
    ):
        frame = options.reading.table(options.log, model.schema.text_columns)
        columns = IdColumns(
            user=id_column("user", [model.schema], frame.columns),
            item=id_column("item", [model.schema], frame.columns),
            title=options.title,
        )
        seen = opt.seen_rule(options.exclude_seen)
        batch = BatchRecommender(
            model,
            frame,
            columns,
            options.users,
            n=options.k,
            exclude_seen=seen,
            limits=opt.limits_of(options.limit),
            pinned=opt.pins_of(options.pin),
        )
        exposure = Exposure(batch.popularity)
        changed_lists = 0
        short_lists = 0
        with writer:
            for lists in batch.blocks(reports):
                block = lists.rows
                writer.add(block)
                exposure.add(lists.items, lists.lengths)
                short_lists += sum(length < options.k for length in lists.lengths)
                if "by_score" in block.columns:
                    moved = block.filter(block["by_score"] != block["rank"])
                    changed_lists += moved.to_series(0).n_unique()
                row_count += block.height
                source_of_each_user = block["source"].filter(block["rank"] == 1)
                users_by_source.update(source_of_each_user.to_list())

    written = f"{show.counted(row_count, 'recommendation')} written to {options.out} ({', '.join(block.columns)})"
    by_model = f"{show.counted(users_by_source['model'], 'user')} by the model"
    unknown = f"{users_by_source['popularity']:,} whom it does not know by popularity"
    show.say(f"{written}: {by_model}, {unknown}")
    if options.limit or options.pin:
        changed = show.counted(changed_lists, "list")
        show.say(f"limits and pinned items changed {changed}, in rows whose by_score is not rank")
    if short_lists:
        show.say(f"{show.counted(short_lists, 'list')} of fewer than {options.k} items")
    measures = (f"{m.title} {m.text(m.of(exposure))}" for m in LIST_MEASURES.values())
    show.say(f"the lists: {', '.join(measures)}")
    check = same_list_sentence([exposure])
    if check is not None:
        show.say(f"CHECK: {check}")
    label = model.schema.label
    excluded = seen_words(label if label.column in frame.columns else None, seen)
    if excluded:
        show.say(excluded)
    show.say_guarded(writer)

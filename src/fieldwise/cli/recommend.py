"""`fieldwise recommend`: write the best items for every user of a log."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.schema.ids import id_column
from fieldwise.scoring import seen_words
from fieldwise.scoring.list_options import ListOptions
from fieldwise.storage.outputs import check_output

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.read.table_writer import TableWriter
    from fieldwise.data.reports import Reports
    from fieldwise.evaluation.lists import Exposure
    from fieldwise.scoring.recommend import BatchRecommender, ListsOfUsers


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
    users: Annotated[
        list[str] | None, Option("--user", help="Only this user; may be repeated. Default: all.")
    ] = None
    lists: opt.UserLists
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

    lists = options.lists.options
    check_output(
        options.out,
        overwrite=options.overwrite,
        inputs=[options.bundle, *resources.table_files(options.log)],
    )
    model = resources.load_bundle(options.bundle, options.device)
    writer = TableWriter(options.out, raw=options.raw)
    with (
        options.reading.lines(options.log),
        resources.reports_for(options.progress, quiet=options.quiet) as reports,
    ):
        log = resources.scored_table(model, options.log, options.reading)
        recommender = _recommender(model, log, options, lists)
        with writer:
            written = _write(recommender, writer, reports)

    show.say(written.sentence(options.out))
    for sentence in written.sentences_of_lists(lists):
        show.say(sentence)
    label = model.schema.label
    excluded = seen_words(label if label.column in log.columns else None, lists.exclude_seen)
    if excluded:
        show.say(excluded)
    show.say_guarded(writer)


def _recommender(
    model: "Bundle", log: "pl.DataFrame", options: RecommendOptions, lists: ListOptions
) -> "BatchRecommender":
    """What makes the lists of the log's users."""
    from fieldwise.scoring.recommend import BatchRecommender, IdColumns

    columns = IdColumns(
        user=id_column("user", [model.schema], log.columns),
        item=id_column("item", [model.schema], log.columns),
        title=options.title,
    )
    return BatchRecommender(model, log, columns, options.users, lists)


@dataclass
class _Written:
    """What was written: numbers of rows and lists, and how often each item is in a list."""

    exposure: "Exposure"
    columns: list[str] = field(default_factory=list)
    rows: int = 0
    users_by_source: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    changed_lists: int = 0
    lists_without_pinned: int = 0

    def add(self, lists: "ListsOfUsers") -> None:
        """Count some lists."""
        block = lists.rows
        self.columns = block.columns
        self.rows += block.height
        self.lengths += lists.lengths
        self.exposure.add(lists.items, lists.lengths)
        source_of_each_user = block["source"].filter(block["rank"] == 1)
        self.users_by_source.update(source_of_each_user.to_list())
        if "by_score" in block.columns:
            moved = block.filter(block["by_score"] != block["rank"])
            self.changed_lists += moved.to_series(0).n_unique()

    def sentence(self, file: Path) -> str:
        """The number of rows, and by what users' lists were made."""
        by_model = show.counted(self.users_by_source["model"], "user")
        unknown = f"{self.users_by_source['popularity']:,} whom it does not know by popularity"
        columns = ", ".join(self.columns)
        rows = show.counted(self.rows, "recommendation")
        return f"{rows} written to {file} ({columns}): {by_model} by the model, {unknown}"

    def sentences_of_lists(self, options: ListOptions) -> Iterator[str]:
        """What rules changed, which lists are short, and how lists differ."""
        from fieldwise.evaluation.lists import LIST_MEASURES, same_list_sentence

        if options.limits or options.pinned:
            changed = show.counted(self.changed_lists, "list")
            yield f"limits and pinned items changed {changed}, in rows whose by_score is not rank"
        if self.lists_without_pinned:
            without = show.counted(self.lists_without_pinned, "list")
            yield f"CHECK: {without} without a pinned item: it is excluded, as the user has seen it"
        short_lists = sum(length < options.n for length in self.lengths)
        if short_lists:
            remedy = ": raise a limit, or ask for fewer" if options.limits else ""
            yield f"{show.counted(short_lists, 'list')} of fewer than {options.n} items{remedy}"
        measures = (f"{m.title} {m.text(m.of(self.exposure))}" for m in LIST_MEASURES.values())
        yield f"the lists: {', '.join(measures)}"
        same = same_list_sentence([self.exposure])
        if same is not None:
            yield f"CHECK: {same}"


def _write(recommender: "BatchRecommender", writer: "TableWriter", reports: "Reports") -> _Written:
    """Write all lists, some users at a time."""
    from fieldwise.evaluation.lists import Exposure

    without_pinned = recommender.lists_without_pinned
    written = _Written(Exposure(recommender.popularity), lists_without_pinned=without_pinned)
    for lists in recommender.blocks(reports):
        writer.add(lists.rows)
        written.add(lists)
    return written

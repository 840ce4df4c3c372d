"""`fieldwise recommend`."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.devices import BundleDevice, load_bundle
from fieldwise.cli.options import BundleFolder, Quiet, Raw, Reading, Shown, Threads, reports_for, set_threads
from fieldwise.cli.show import say, say_guarded

__all__ = ["RecommendOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """Options of `fieldwise recommend`."""

    bundle: BundleFolder
    log: Annotated[
        Path, typer.Option(help="Events of users with items: the users, their latest contexts, and the candidates.")
    ]
    out: Annotated[Path, typer.Option(help="File to write to: .csv, .tsv, .parquet or .arrow.")]
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Number of items for each user.")] = 10
    users: Annotated[
        list[str] | None,
        typer.Option("--user", help="Only this user. May be repeated. Default: every user of the log."),
    ] = None
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Do not exclude items that the log has for the user.")
    ] = False
    user_id: Annotated[
        str | None, typer.Option("--user-id", metavar="COLUMN", help="Column of user ids. Default: the schema's.")
    ] = None
    item_id: Annotated[
        str | None, typer.Option("--item-id", metavar="COLUMN", help="Column of item ids. Default: the schema's.")
    ] = None
    title: Annotated[
        str | None, typer.Option("--title", metavar="COLUMN", help="Column of items' names, to be written too.")
    ] = None
    raw: Raw = False
    reading: Reading
    quiet: Quiet = False
    progress: Shown = "text"
    device: BundleDevice = "cpu"
    threads: Threads = None


def run(options: RecommendOptions) -> None:
    """Recommend items to every user of a log: the best by the model, without items seen, ten for each.

    Users whom the model does not know get the most popular items, which the column `source` says.
    """
    from fieldwise.data.read.writing import TableWriter
    from fieldwise.schema.ids import id_column
    from fieldwise.scoring.recommend import Catalogue, recommended_blocks
    from fieldwise.storage.files import check_file

    check_file(options.out)
    set_threads(options.threads)
    bundle = load_bundle(options.bundle, options.device)
    writer = TableWriter(options.out, raw=options.raw)
    rows, users = 0, Counter[str]()
    with options.reading.lines(options.log), reports_for(options.progress, quiet=options.quiet) as reports:
        log, schemas = options.reading.table(options.log), [bundle.schema]
        user = id_column("user", schemas, log.columns, options.user_id, option="--user-id")
        item = id_column("item", schemas, log.columns, options.item_id, option="--item-id")
        blocks = recommended_blocks(
            bundle,
            log,
            Catalogue(user=user, item=item, title=options.title),
            options.users,
            n=options.n,
            exclude_seen=not options.keep_seen,
            reports=reports,
        )
        with writer:
            for block in blocks:
                writer.add(block)
                rows += block.height
                users.update(block["source"].filter(block["rank"] == 1).to_list())
    say(
        f"{rows:,} recommendations written to {options.out} ({', '.join(block.columns)}): {users['model']:,} users by "
        f"the model, {users['popularity']:,} whom it does not know by popularity"
    )
    say_guarded(writer)

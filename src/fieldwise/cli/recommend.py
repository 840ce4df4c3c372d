"""`fieldwise recommend`."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.options import BundleDevice, BundleFolder, Quiet, Raw, Reading, Shown, load_bundle, reports_for
from fieldwise.cli.show import say, say_guarded


def run(
    *,
    bundle: BundleFolder,
    log: Annotated[
        Path, typer.Option(help="Events of users with items: the users, their latest contexts, and the candidates.")
    ],
    out: Annotated[Path, typer.Option(help="File to write to: .csv, .tsv, .parquet or .arrow.")],
    k: Annotated[int, typer.Option(min=1, help="Number of items for each user.")] = 10,
    users: Annotated[
        list[str] | None,
        typer.Option("--user", help="Only this user. May be repeated. Default: every user of the log."),
    ] = None,
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Do not exclude items that the log has for the user.")
    ] = False,
    title: Annotated[
        str | None, typer.Option("--title", metavar="COLUMN", help="Column of items' names, to be written too.")
    ] = None,
    raw: Raw = False,
    reading: Reading,
    quiet: Quiet = False,
    progress: Shown = "text",
    device: BundleDevice = "cpu",
) -> None:
    """Recommend items to every user of a log.

    These are the best by the model, without items seen, ten for each. Users whom the model does not know get the
    most popular items, which the column `source` says.
    """
    from fieldwise.data.read.tables import TableWriter
    from fieldwise.schema.ids import id_column
    from fieldwise.scoring.recommend import Catalogue, recommended_blocks
    from fieldwise.storage.files import check_file

    check_file(out)
    model = load_bundle(bundle, device)
    writer = TableWriter(out, raw=raw)
    rows, sources = 0, Counter[str]()
    with reading.lines(log), reports_for(progress, quiet=quiet) as reports:
        frame = reading.table(log)
        user, item = (id_column(role, [model.schema], frame.columns) for role in ("user", "item"))
        catalogue = Catalogue(user=user, item=item, title=title)
        blocks = recommended_blocks(model, frame, catalogue, users, n=k, exclude_seen=not keep_seen, reports=reports)
        with writer:
            for block in blocks:
                writer.add(block)
                rows += block.height
                sources.update(block["source"].filter(block["rank"] == 1).to_list())
    say(
        f"{rows:,} recommendations written to {out} ({', '.join(block.columns)}): {sources['model']:,} users by "
        f"the model, {sources['popularity']:,} whom it does not know by popularity"
    )
    say_guarded(writer)

"""`fieldwise explain --why-not`: why an item is not in a user's list."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.errors import ConfigError, DataError
from fieldwise.scoring.list_options import ListOptions

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class WhyNotOptions:
    """Options of `fieldwise explain --why-not`."""

    why_not: Annotated[
        str | None,
        Option(metavar="ITEM", help="Say why this item is not in the list of --user instead."),
    ] = None
    user: Annotated[
        str | None, Option(metavar="ID", help="With --why-not: the user, by the rows of --data.")
    ] = None
    lists: opt.UserLists
    tower: Annotated[
        Path | None, Option(metavar="TOWER", help="With --why-not: this IntTower pre-ranks.")
    ] = None
    index: Annotated[Path | None, Option(help="With --tower: folder of its index.")] = None

    def __post_init__(self) -> None:
        values = {**vars(self), **vars(self.lists)}
        del values["lists"]
        usual = vars(opt.UserLists())
        given = [name for name, value in values.items() if value != usual.get(name)]
        if self.why_not is None and given:
            option = given[0].replace("_", "-")
            raise ConfigError(f"--{option} is an option of --why-not: give --why-not ITEM")
        if self.why_not is not None and self.user is None:
            raise ConfigError("--why-not is about the list of a user: give --user ID")
        if (self.tower is None) != (self.index is None):
            raise ConfigError("a list in two stages needs --tower and --index: give both")


def show_why_not(
    options: WhyNotOptions, bundle: "Bundle", log: "pl.DataFrame", *, device: str, as_json: bool
) -> None:
    """Print why an item is not in a user's list, and its terms against the list's last item."""
    from fieldwise.explain.why_not import why_not
    from fieldwise.scoring.ranker import Ranker
    from fieldwise.scoring.recommend import BatchRecommender
    from fieldwise.serving.index import open_index

    lists = options.lists.options
    batch = BatchRecommender(
        bundle,
        log,
        users=[str(options.user)],
        options=ListOptions(exclude_seen=lists.exclude_seen),
    )
    if batch.context_rows[0] < 0:
        raise DataError(
            f"--user must be one whom the model knows, found {options.user!r}, whose list is by popularity"
        )
    ranker = batch.ranker
    if options.tower is not None and options.index is not None:
        ranker = Ranker(
            bundle,
            open_index(options.index),
            tower=resources.load_bundle(options.tower, device),
        )
    result = ranker.recommend(
        batch.contexts.row(0, named=True),
        k=lists.n,
        seen=batch.ranker.index.texts[batch.seen[0]],
        limits=lists.limits,
        pinned=lists.pinned,
    )
    answer = why_not(ranker, result, options.why_not)
    if as_json:
        show.print_json(answer.to_dict())
        return
    show.console().print(answer.sentence)
    if answer.terms:
        rows = [[*term[:3], f"{term.difference:+.4f}"] for term in answer.terms]
        show.print_table(["field", "value", "of the last item", "difference"], rows)

"""`fieldwise explain --why-not`: why an item is not in a user's list."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle

DEFAULT_K = 10


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
    k: Annotated[
        int | None, Option(min=1, help="With --why-not: the length of the list. Default: 10.")
    ] = None
    exclude_seen: opt.ExcludeSeen = None
    limit: opt.Limits = None
    pin: opt.Pins = None
    prerank: Annotated[
        Path | None, Option(metavar="TOWER", help="With --why-not: this IntTower pre-ranks.")
    ] = None
    index: Annotated[Path | None, Option(help="With --prerank: folder of its index.")] = None

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if self.why_not is None and given:
            option = given[0].replace("_", "-")
            raise ConfigError(f"--{option} is an option of --why-not: give --why-not ITEM")
        if self.why_not is not None and self.user is None:
            raise ConfigError("--why-not is about the list of a user: give --user ID")
        if (self.prerank is None) != (self.index is None):
            raise ConfigError("a list in two stages needs --prerank and --index: give both")


def show_why_not(
    options: WhyNotOptions, bundle: "Bundle", log: "pl.DataFrame", *, device: str, as_json: bool
) -> None:
    """Print why an item is not in a user's list, and its terms against the list's last item."""
    from fieldwise.explain.why_not import why_not
    from fieldwise.scoring.ranker import Ranker
    from fieldwise.scoring.recommend import BatchRecommender
    from fieldwise.serving.index import open_index

    batch = BatchRecommender(
        bundle,
        log,
        users=[str(options.user)],
        exclude_seen=opt.seen_rule(options.exclude_seen),
    )
    if batch.context_rows[0] < 0:
        raise DataError(
            f"--user must be one whom the model knows, found {options.user!r}, whose list is by popularity"
        )
    ranker = batch.ranker
    if options.prerank is not None and options.index is not None:
        ranker = Ranker(
            bundle,
            open_index(options.index),
            prerank=resources.load_bundle(options.prerank, device),
        )
    result = ranker.recommend(
        batch.contexts.row(0, named=True),
        k=options.k or DEFAULT_K,
        seen=batch.ranker.index.texts[batch.seen[0]],
        limits=opt.limits_of(options.limit),
        pinned=opt.pins_of(options.pin),
    )
    answer = why_not(ranker, result, options.why_not)
    if as_json:
        terms = [term._asdict() for term in answer.terms]
        show.print_json({**asdict(answer), "sentence": answer.sentence, "terms": terms})
        return
    show.console().print(answer.sentence)
    if answer.terms:
        rows = [[*term[:3], f"{term.difference:+.4f}"] for term in answer.terms]
        show.print_table(["field", "value", "of the last item", "difference"], rows)

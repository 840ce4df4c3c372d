"""Options of `fieldwise evaluate`, and which of them belong together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli.rankings import RankingOptions
from fieldwise.errors import ConfigError

NO_CALIBRATION = "none"
OPTIONS_OF = {"--calibrate": ("out", "overwrite"), "--prerank": ("index", "nprobe", "rows")}
"""By an option that names an evaluation, the further options of that evaluation alone."""
RANKING_OPTIONS_OF_PRERANK = ("--k", "--candidates")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of `fieldwise evaluate`."""

    bundle: opt.BundleFolder
    data: Annotated[
        Path | None,
        Option(
            help="A table with labels. Default: the recipe's test rows (--calibrate: validation)."
        ),
    ] = None
    reading: opt.Reading
    ranking: RankingOptions
    calibrate: Annotated[
        str | None,
        Option(
            metavar="METHOD", help="Fit and save a calibration: platt or isotonic; none removes it."
        ),
    ] = None
    out: Annotated[
        Path | None, Option(help="With --calibrate: folder of the new bundle. Default: the same.")
    ] = None
    overwrite: opt.Overwrite = False
    prerank: Annotated[
        Path | None,
        Option(
            metavar="TOWER",
            help="Measure two stages: this IntTower chooses --candidates for BUNDLE.",
        ),
    ] = None
    index: Annotated[
        Path | None, Option(help="With --prerank: folder of the index that TOWER made.")
    ] = None
    nprobe: Annotated[
        int | None, Option(min=1, help="With --prerank: head clusters to probe. Default: all.")
    ] = None
    rows: Annotated[
        int | None, Option(min=1, help="With --prerank: contexts at most, sampled. Default: 200.")
    ] = None
    json: opt.AsJson = False
    device: opt.BundleDevice = "cpu"

    def check(self) -> None:
        """Check that the options belong together; else raise a ConfigError."""
        evaluations = self._evaluations()
        if len(evaluations) > 1:
            raise ConfigError(
                f"{evaluations[0]} and {evaluations[1]} are evaluations of their own: omit one"
            )
        for evaluation, names in OPTIONS_OF.items():
            if evaluation not in evaluations:
                self._check_omitted(names, evaluation)
        self._check_ranking_options(evaluations)
        if self.calibrate == NO_CALIBRATION and self.data is not None:
            raise ConfigError(
                "--calibrate none fits nothing, so that --data has no effect: omit --data"
            )
        if self.prerank is not None and (self.index is None or self.data is None):
            raise ConfigError(
                "--prerank needs an index of items, and rows with users and contexts: give --index and --data"
            )

    def _evaluations(self) -> list[str]:
        """The evaluations that are given other than the metrics of scores."""
        given = {
            "--ranking": self.ranking.ranking,
            "--calibrate": self.calibrate is not None,
            "--prerank": self.prerank is not None,
        }
        return [name for name, is_given in given.items() if is_given]

    def _check_omitted(self, names: tuple[str, ...], evaluation: str) -> None:
        """Check that options of an evaluation that is not given are not given either."""
        for name in names:
            if getattr(self, name) not in (None, False):
                raise ConfigError(
                    f"--{name} is an option of {evaluation}, which is not given: add it, or omit --{name}"
                )

    def _check_ranking_options(self, evaluations: list[str]) -> None:
        """Check that options of rankings have an effect on the evaluation that is given."""
        unused = self.ranking.given
        if self.prerank is not None:
            unused = [name for name in unused if name not in RANKING_OPTIONS_OF_PRERANK]
        has_other = self.calibrate is not None or self.prerank is not None
        if unused and has_other:
            raise ConfigError(
                f"{unused[0]} is an option of --ranking, without effect on {evaluations[0]}: omit {unused[0]}"
            )

"""From a CSV file of clicks to encoded rows."""

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.preparing import CONTESTANTS, write_log


def preparing(settings: Settings) -> Case:
    """Encoding a Criteo-like CSV file of 39 columns: fieldwise, scikit-learn's encoders, FuxiCTR's preprocessing."""
    rows = settings.rows_of(5_000_000, 200_000, 2_000)
    path = settings.folder / "log.csv"
    write_log(path, rows)
    options = {"path": str(path), "rows": rows}
    own = [
        Contender(name=name, make="encoding:contestant", options={**options, "contestant": name})
        for name in CONTESTANTS
    ]
    # One run of a slow contestant takes minutes at the full size, so all contestants get the same few rounds.
    return Case(
        title=f"Encoding {rows:,} rows of 39 columns from a CSV file",
        about="A 0/1 label, 13 numbers with missing values and 26 categories (10 to 1,000,000 values), read, fitted "
        "and encoded to disk. FuxiCTR 2.3.10 runs on Polars 1, since its CSV reader uses an argument that Polars 2 "
        "removed; its numbers are scaled by its `StandardScaler`, missing ones filled with 0.",
        contenders=(
            *own,
            Contender(name="FuxiCTR 2.3.10", make="fuxictr_data:preprocess", options=options, peers=True),
        ),
        targets=(
            Target.faster("fieldwise", "FuxiCTR 2.3.10", 3),
            Target.faster("fieldwise", "scikit-learn", 15),
        ),
    )

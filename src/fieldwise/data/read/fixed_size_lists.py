"""Lists of a fixed size, Polars' `Array`, as lists, which the rest of the package reads."""

import polars as pl


def as_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with every fixed-size list as a list.

    >>> as_lists(pl.DataFrame({"v": pl.Series([[0.5, 1.0]], dtype=pl.Array(pl.Float32, 2))}))["v"].dtype
    List(Float32)
    """
    fixed_size = [
        pl.col(name).arr.to_list()
        for name, dtype in frame.schema.items()
        if isinstance(dtype, pl.Array)
    ]
    if not fixed_size:
        return frame
    return frame.with_columns(fixed_size)

"""Tables of files and of other libraries as polars DataFrames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl

from fieldwise.data.read.fixed_size_lists import as_lists
from fieldwise.data.read.frames import frame_of
from fieldwise.data.read.load_table import open_table
from fieldwise.data.read.text_format import TextFormat
from fieldwise.storage.forks import computing

TableLike = Annotated[Any, "as_table"]
"""Input of `as_table`: a path, a polars, pandas or pyarrow table, a dict of lists, or a list of dicts."""


def as_table(
    data: Any,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    columns: Sequence[str] | None = None,
    text_columns: Sequence[str] = (),
) -> pl.DataFrame:
    """Read or convert `data` into a polars DataFrame.

    In JSON Lines a key that a line lacks is null. Types of delimited text are inferred from all
    values of a column: Int64, Float64 or Boolean if every value fits, else String; numbers with
    leading zeros stay text, so that codes such as `01234` are not changed, and so do columns such
    as 1.604 and 12.500, which may be thousands.
    Cells of `text_columns` are never changed: `4.10` and `4.1` stay different, as in a Parquet file
    with the same text. An empty unquoted field is null. If the first rows have a space after every
    delimiter (`u1, i2, 3`), the spaces before names and cells are left out; quoted cells keep their
    own. A pandas frame's index is dropped. Fixed-size lists become lists.

    Args:
        data: a file (csv, tsv, tab, txt, jsonl, ndjson, libfm, libsvm, svm, each also with `.gz` or
            `.zst`; parquet; arrow, feather, ipc), a folder of such files of one kind or a pattern such as
            `logs/*.parquet`, whose rows follow in the order of the files' names; a polars DataFrame
            or LazyFrame, a pandas DataFrame, or a pyarrow Table; a dict with a list for each
            column, or a list with a dict for each row (an absent key is null).
        separator: delimiter of text; if omitted the one that a first line such as `sep=;` names
            (which is no row), a tab for `.tsv` and `.tab`, else that of tab, semicolon, `|` and
            comma that divides first records evenly.
        encoding: encoding of delimited text.
        columns: column names of delimited text without a header. A header that looks like a row
            causes a warning.
        text_columns: columns of delimited text whose cells are read as they are written, as
            `Schema.text_columns`.

    Errors:
        DataError: missing file, unknown suffix, empty file, duplicate columns, a malformed line
            (file and line are named), a wrong encoding, an object of another kind.
        MissingExtraError: a pandas frame or a `.zst` file, and no pyarrow to read it.
        FieldwiseError: this process was forked from one that has read a table or loaded a model.

    >>> as_table(pl.DataFrame({"user": [1, 2]}).lazy()).shape
    (2, 1)
    """
    computing()
    if isinstance(data, (str, Path)):
        text = TextFormat(
            separator=separator,
            encoding=encoding,
            columns=columns,
            text_columns=tuple(text_columns),
        )
        return open_table(data, text)
    return as_lists(frame_of(data))

"""What the text of a file tells that its values do not: doubts about columns of a schema."""

import sys
from pathlib import Path

import polars as pl

from fieldwise.data.infer.findings import THIS_COLUMN
from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.file_listing import find_files
from fieldwise.data.read.formats import table_files_of
from fieldwise.data.read.formats.table_files import TableFiles
from fieldwise.data.read.table_sample import Sample
from fieldwise.data.read.text_format import TextFormat
from fieldwise.schema import Schema
from fieldwise.schema.ids import kind_of_name

VERSION_LIKE = r"^\d{1,4}(?:\.\d{1,3})?$"


def text_doubts(schema: Schema, sample: Sample, table: Path, text: TextFormat) -> dict[str, str]:
    """Doubts about columns of a file whose cells are text, by column, with `THIS_COLUMN`; none about other files."""
    source = table_files_of(find_files(table), text)
    if source.types is None:
        return {}
    doubts = _whole_numbers_with_fractions(schema, sample)
    return doubts | _texts_of_one_number(schema, sample, source)


def _whole_numbers_with_fractions(schema: Schema, sample: Sample) -> dict[str, str]:
    """A doubt for every column of ids or categories whose cells are whole numbers, written as `12.0`."""
    contents = {field.column: "categories" for field in schema.fields if field.cell == "category"}
    if schema.user is not None:
        contents[schema.user] = "user ids"
    if schema.item is not None:
        contents[schema.item] = "item ids"
    doubts: dict[str, str] = {}
    for column, content in contents.items():
        cells = sample.frame.get_column(column).drop_nulls()
        if len(cells) and cells.dtype == pl.Float64 and (cells % 1 == 0).all():
            doubts[column] = (
                f"the {content} in {THIS_COLUMN} are whole numbers written with a fraction, such as 12.0, which is "
                "another value than the 12 of a frame or a request: if pandas wrote the file, convert the column with "
                "astype('Int64') before to_csv"
            )
    return doubts


def _texts_of_one_number(schema: Schema, sample: Sample, source: TableFiles) -> dict[str, str]:
    """A doubt for every field of numbers that has two texts of one number, such as 4.1 and 4.10.

    The first rows are looked at. A name such as `price` tells that the texts are numbers.
    """
    dtypes = sample.frame.schema  # which polars makes anew each time that it is asked for
    columns = {
        field.column
        for field in schema.fields
        if field.cell == "number"
        and dtypes.get(field.column) == pl.Float64
        and kind_of_name(field.column) != "quantity"
    }
    if not columns:
        return {}

    limits = ChunkLimits(memory=sys.maxsize)
    _, first_rows = next(source.chunks(limits))
    doubts: dict[str, str] = {}
    for column in sorted(columns.intersection(first_rows.columns)):
        texts = _two_texts_of_one_number(first_rows.get_column(column))
        if texts is not None:
            doubts[column] = (
                f"{texts[0]!r} and {texts[1]!r} in column {THIS_COLUMN} are one number: if they are versions or codes, "
                'which differ, write kind = "categorical"'
            )
    return doubts


def _two_texts_of_one_number(column: pl.Series) -> tuple[str, str] | None:
    """The first two texts of a column that are one number, if all are like versions; else None."""
    texts = column.drop_nulls().unique()
    if texts.dtype != pl.String or not texts.str.contains(VERSION_LIKE).all():
        return None
    numbers = texts.cast(pl.Float64)
    repeated = (
        pl.DataFrame({"text": texts, "number": numbers})
        .filter(numbers.is_duplicated())
        .sort("number", "text")
    )
    if not repeated.height:
        return None
    first, second = repeated["text"].head(2)
    return first, second

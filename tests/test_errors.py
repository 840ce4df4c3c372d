"""What an error's facts survive: other processes, and layers that know more of the place."""

import copy
import inspect

import pytest

from fieldwise import DataError
from fieldwise.cli.app import COMMANDS, OPTIONS, as_command
from fieldwise.data.read.row_numbers import counting_from, naming_lines, renumbering_rows
from fieldwise.distributed.engine import answered, done_here
from fieldwise.errors import Argument, ConfigError, Row, SchemaError


def refuse_a_row(_):
    raise DataError("a price must be finite, found {row} in ", Row(1), "; correct it")


def test_each_layer_adds_what_it_knows_of_the_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('x\n"1\n2"\n3\n4\n5\n6\n')
    with (
        pytest.raises(DataError) as e,
        naming_lines(path),
        naming_lines(path),
        renumbering_rows([0, 2, 3, 4]),
        counting_from(2),
        renumbering_rows(None),
    ):
        refuse_a_row({})
    # row 1 of a chunk from 2 is row 3 of the rows that are left, which is row 4 of the file
    assert str(e.value) == f"a price must be finite, found {{row}} in line 7 of {path}; correct it"
    assert e.value.row == Row(4, file=str(path), line=7)


def test_facts_survive_a_copy():
    with pytest.raises(DataError) as e:
        refuse_a_row({})
    copied = copy.deepcopy(e.value)  # by the protocol of pickle, as process pools do it
    copied.row.number += 10
    assert type(copied) is DataError
    assert (
        str(copied) == "a price must be finite, found {row} in row 11 (counting from 0); correct it"
    )
    assert "row 1 (" in str(e.value)


def test_facts_survive_an_engine(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x\n1\n2\n3\n")
    with (
        pytest.raises(DataError, match=r"found \{row\} in line 4 of "),
        naming_lines(path),
        counting_from(1),
    ):
        answered(done_here(refuse_a_row, "{}"))


class OwnError(DataError):
    """A class that only this file knows."""


def refuse_by_an_own_class(_):
    raise OwnError("a price must be finite, found none in ", Row(1))


def test_an_error_of_a_class_defined_elsewhere_leaves_an_engine_as_the_class_above_it():
    with pytest.raises(DataError, match="found none in row 1 ") as caught:
        answered(done_here(refuse_by_an_own_class, "{}"))
    assert type(caught.value) is DataError


def test_a_wider_error_keeps_the_row_of_the_one_it_wraps():
    narrow = DataError("every row needs a label, found none in ", Row(5))
    with (
        pytest.raises(SchemaError, match=r"^label 'y': every .* row 105 \(counting from 0\)$"),
        counting_from(100),
    ):
        raise SchemaError("label 'y': ", *narrow.args)


def refuse_an_argument(_):
    raise ConfigError(
        "b exists: give ", Argument("overwrite", True), " or another ", Argument("out")
    )


def test_the_command_line_names_options_where_the_package_names_arguments():
    def run(overwrite: bool = False, out: str = "b") -> None:
        """A command."""
        answered(done_here(refuse_an_argument, "{}"))

    def without_options() -> None:
        """A command."""
        refuse_an_argument({})

    with pytest.raises(ConfigError, match=r"^b exists: give overwrite=True or another out$"):
        run()
    with pytest.raises(ConfigError, match=r"^b exists: give --overwrite or another --out$"):
        as_command(run)(overwrite=False, out="b")
    with pytest.raises(ConfigError, match=r"^b exists: give overwrite=True or another out$"):
        as_command(without_options)()


def test_options_of_the_table_are_options_of_commands():
    runs = [run for commands in COMMANDS.values() for run in commands.values()]
    options = {name for run in runs for name in inspect.signature(as_command(run)).parameters}
    assert {parameter for parameter, _ in OPTIONS.values()} <= options

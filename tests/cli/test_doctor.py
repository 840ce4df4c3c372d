"""`fieldwise doctor`: every extra by name, whether it works, compilers and devices."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
import torch

from fieldwise.cli import doctor
from fieldwise.cli.doctor import EXTRAS, examine

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def _two_extras(monkeypatch):
    """To import the packages of all extras takes seconds."""
    monkeypatch.setattr(doctor, "EXTRAS", {name: EXTRAS[name] for name in ("tune", "report")})


def test_every_extra_is_named_with_its_packages():
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    del declared["dev"]
    named = {
        extra: {re.match(r"[\w-]+", line).group() for line in lines}
        for extra, lines in declared.items()
    }
    named["postgresql"].add("psycopg-pool")  # of psycopg's own extras
    named["mlflow"] -= {"alembic", "sqlalchemy"}  # Optuna brings them too
    assert {name: set(packages.split()) for name, (_, packages) in EXTRAS.items()} == named
    assert all(purpose for purpose, *_ in EXTRAS.values())


def test_an_extra_that_is_not_here_is_no_fault_but_half_of_one_is(monkeypatch):
    none = ("nothing", "absent-one absent-two")
    half = ("half a thing", "rich absent-two")
    monkeypatch.setattr(doctor, "EXTRAS", {"none": none, "half": half})
    facts = examine()
    assert [extra["works"] for extra in facts["extras"].values()] == [False, False]
    assert facts["extras"]["none"]["install"] == "pip install 'fieldwise[none]'"
    about = [line for line in facts["attention"] if "absent" in line]
    assert about == [
        "the extra half (half a thing) lacks absent-two: pip install 'fieldwise[half]'"
    ]


def test_an_extra_that_is_installed_but_cannot_be_imported_wants_attention(monkeypatch):
    real = importlib.import_module

    def broken(name, package=None):
        if name == "optuna":
            raise ImportError("libabsent.so: cannot open shared object file")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", broken)
    facts = examine()
    assert facts["extras"]["tune"]["works"] is False
    assert any("optuna cannot be imported (libabsent.so" in line for line in facts["attention"])


def test_compilers_and_devices(tmp_path, monkeypatch):
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\necho my compiler 1.0\necho more\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    facts = examine()
    assert facts["compiler"] == "my compiler 1.0"
    assert facts["devices"][0].startswith("cpu: ")
    assert (
        len(facts["devices"]) == 1 + torch.cuda.device_count() + torch.backends.mps.is_available()
    )
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert examine()["compiler"] is None


def test_what_is_printed(capsys):
    doctor.run()
    shown = capsys.readouterr().out
    for name in ("tune", "report"):
        assert re.search(rf"^ {name} +{re.escape(EXTRAS[name][0])} +(yes|no)", shown, re.M), name
    assert "C++ compiler: " in shown

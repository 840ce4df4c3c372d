"""`fieldwise doctor`: every extra by name, whether it works, compilers and devices."""

import importlib
import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch

from fieldwise.cli import doctor, doctor_facts
from fieldwise.cli.doctor_facts import EXTRAS, examine

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_extra_is_named_with_its_packages():
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    del declared["dev"]
    named = {extra: {re.match(r"[\w-]+", line).group() for line in lines} for extra, lines in declared.items()}
    named["postgresql"].add("psycopg-pool")  # of psycopg's own extras
    named["mlflow"] -= {"alembic", "sqlalchemy"}  # Optuna brings them too
    assert {extra: set(EXTRAS[extra].packages) for extra in EXTRAS} == named
    assert all(extra.purpose for extra in EXTRAS.values())


def test_an_extra_that_is_here_works_and_has_versions(tmp_path):
    facts = examine(tmp_path)["extras"]["tune"]
    assert facts["works"] is True
    assert facts["packages"] == {"optuna": metadata.version("optuna")}
    assert examine(tmp_path, quick=True)["extras"]["tune"] == facts | {"works": None}


@pytest.mark.parametrize("quick", [False, True])
def test_an_extra_that_is_not_here_is_no_fault_but_half_of_one_is(quick, tmp_path, monkeypatch):
    none = doctor_facts.Extra("nothing", {"absent-one": "absent_one", "absent-two": "absent_two"})
    half = doctor_facts.Extra("half a thing", {"rich": "rich", "absent-two": "absent_two"})
    monkeypatch.setattr(doctor_facts, "EXTRAS", {"none": none, "half": half})
    facts = examine(tmp_path, quick=quick)
    assert [extra["works"] for extra in facts["extras"].values()] == [False, False]
    assert facts["extras"]["none"]["install"] == "pip install 'fieldwise[none]'"
    about = [line for line in facts["attention"] if "absent" in line]
    assert about == ["the extra half (half a thing) lacks absent-two: pip install 'fieldwise[half]'"]


def test_an_extra_that_is_installed_but_cannot_be_imported_wants_attention(tmp_path, monkeypatch):
    real = importlib.import_module

    def broken(name, package=None):
        if name == "optuna":
            raise ImportError("libabsent.so: cannot open shared object file")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", broken)
    facts = examine(tmp_path)
    assert facts["extras"]["tune"]["works"] is False
    assert any("optuna cannot be imported (libabsent.so" in line for line in facts["attention"])


def test_compilers_and_devices(tmp_path, monkeypatch):
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\necho my compiler 1.0\necho more\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    facts = examine(tmp_path)
    assert facts["compiler"] == "my compiler 1.0"
    assert facts["devices"][0].startswith("cpu: ")
    assert len(facts["devices"]) == 1 + torch.cuda.device_count() + torch.backends.mps.is_available()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert examine(tmp_path, quick=True)["compiler"] is None


def test_what_is_printed(capsys, tmp_path):
    doctor.run(doctor.DoctorOptions(data_dir=tmp_path, quick=True))
    shown = capsys.readouterr().out
    for name, extra in EXTRAS.items():
        assert re.search(rf"^ {name} +{re.escape(extra.purpose)} +(installed|no)", shown, re.M), name
    assert "C++ compiler: " in shown
    doctor.run(doctor.DoctorOptions(data_dir=tmp_path, json=True, quick=True))
    facts = json.loads(capsys.readouterr().out)
    assert facts["devices"] is None
    assert facts["ops"] is None
    assert facts["data_sets"] is None

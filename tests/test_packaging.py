"""What is installed: pins for every dependency, and package data in the wheel."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def _pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_every_dependency_has_an_exact_pin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    pinned = {_name(line) for line in _pins()}
    assert {_name(r) for r in wanted} - {"fieldwise"} <= pinned


def test_pins_are_names_with_versions_and_nothing_else() -> None:
    for line in _pins():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line), line


def test_setup_installs_the_pinned_pytorch_first() -> None:
    script = (ROOT / "scripts" / "setup-venv").read_text(encoding="utf-8")
    installs = re.findall(r"^pip_install (\S+)", script, flags=re.MULTILINE)
    assert installs[0] in _pins()
    assert installs[0].startswith("torch==")


@pytest.mark.slow
def test_wheel_is_pure_and_holds_recipes_and_type_marker(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    source = ROOT / "src"
    expected = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.suffix in {".py", ".toml", ".typed"}}
    assert "fieldwise/py.typed" in expected
    assert expected <= set(zipfile.ZipFile(wheel).namelist())

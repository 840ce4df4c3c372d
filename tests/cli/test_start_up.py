"""What commands load: those that train nothing start without PyTorch. Times are not tested, they are the machine's."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = "torch", "polars", "numpy", "sklearn", "pandas", "scipy"

PROBE = """
import sys
from fieldwise.cli import run
code = run(sys.argv[1:])
print(code, *(name for name in {names!r} if name in sys.modules), file=sys.stderr)
"""


def loaded(*arguments: str, names: tuple[str, ...] = HEAVY, cwd: Path | None = None) -> tuple[int, list[str], str]:
    """The exit code of a command in a fresh process, which of the packages it loaded, and its standard error."""
    command = [sys.executable, "-c", PROBE.format(names=names), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=True)
    *said, last = done.stderr.splitlines()
    code, *found = last.split()
    return int(code), found, "\n".join(said)


@pytest.mark.parametrize(
    "command",
    ["--help", "--version", "recipes", "train --help", "data --help", "cache --help", "cache show", "doctor --quick"],
)
def test_help_and_lists_load_nothing_heavy(command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loaded(*command.split())[:2] == (0, [])


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("train simulated/afmm", "no recipe is named"),
        ("describe absent.toml", "a recipe file must exist"),
        ("tune simulated/afm --protocol none", "has no protocol"),
        ("train simulated/afm --set training.epoch=3", "did you mean 'training.epochs'?"),
        ("train simulated/afm --set trainin.epochs=3", "did you mean 'training.epochs'?"),
        ("train simulated/afm --set training.epochs=0", "epochs must be at least 1"),
        ("compare simulated/fm simulated/afm --set seed=-1", "seed must lie between"),
        ("compare simulated/fm simulated/afmm", "no recipe is named"),
        ("describe broken.toml", "must be valid TOML"),
    ],
)
def test_errors_of_a_recipe_load_nothing_heavy(command, sentence, tmp_path):
    (tmp_path / "broken.toml").write_text("[model")
    code, found, said = loaded(*command.split(), cwd=tmp_path)
    assert (code, found) == (2, [])
    assert sentence in said


@pytest.mark.parametrize(
    "command",
    ["data list", "data fetch absent", "data simulate --rows 20 --out log.csv", "data infer t.csv", "init t.csv"],
)
def test_commands_on_tables_load_no_pytorch(command, tmp_path):
    (tmp_path / "t.csv").write_text("user,item,click\n" + "".join(f"u{i % 3},i{i % 5},{i % 2}\n" for i in range(40)))
    assert loaded(*command.split(), names=("torch", "sklearn"), cwd=tmp_path)[1] == []


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("fieldwise.AFM", ("torch._dynamo", "polars", "sklearn", "scipy")),
        ("fieldwise.train_recipe", ("torch._dynamo", "sklearn", "scipy.stats")),
        ("import fieldwise.serving.cascade", ("torch._dynamo", "sklearn", "scipy.stats")),
    ],
)
def test_what_needs_pytorch_loads_little_more(code, names):
    program = f"import fieldwise, sys; {code}; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

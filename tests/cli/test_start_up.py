"""What commands load: those that train nothing start without PyTorch. Times are not tested, they are the machine's."""

import json
import subprocess
import sys

HEAVY = "torch", "polars", "numpy", "sklearn", "pandas", "scipy"

PROBE = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from fieldwise.cli import run
found = []
for command, names in json.load(sys.stdin):
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        code = run(command.split())
    found.append([code, [name for name in names if name in sys.modules], said.getvalue()])
print(json.dumps(found))
"""


def test_commands_load_only_the_packages_that_they_need(tmp_path, monkeypatch, subtests):
    """Commands one after the other in one fresh process, those that may load more last."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "broken.toml").write_text("[model")
    (tmp_path / "t.csv").write_text(
        "user,item,click\n" + "".join(f"u{i % 3},i{i % 5},{i % 2}\n" for i in range(40))
    )
    recipes = {  # exit code, what is printed
        **dict.fromkeys(
            ["--help", "--version", "describe", "train --help", "prepare --help", "store --help"],
            (0, ""),
        ),
        "prepare": (0, ""),
        "train simulated/afmm": (2, "no recipe is named"),
        "describe absent.toml": (2, "a recipe file must exist"),
        "tune simulated/afm --set protocol=none": (2, "has no protocol"),
        "train simulated/afm --set training.epoch=3": (2, "did you mean 'training.epochs'?"),
        "train simulated/afm --set trainin.epochs=3": (2, "did you mean 'training.epochs'?"),
        "train simulated/afm --set training.epochs=0": (2, "epochs must be at least 1"),
        "compare simulated/fm simulated/afm --set seed=-1": (2, "seed must lie between"),
        "compare simulated/fm simulated/afmm": (2, "no recipe is named"),
        "describe broken.toml": (2, "must be valid TOML"),
    }
    tables = {
        "fetch": (0, ""),
        "fetch absent": (2, ""),
        "simulate --rows 20 --out log.csv": (0, ""),
        "init t.csv --out -": (0, ""),
        "init t.csv": (0, ""),
    }
    given = json.dumps(
        [*((one, HEAVY) for one in recipes), *((one, ("torch", "sklearn")) for one in tables)]
    )
    process = [sys.executable, "-c", PROBE]
    done = subprocess.run(
        process, input=given, capture_output=True, text=True, cwd=tmp_path, check=True
    )
    for (command, (code, words)), outcome in zip(
        (recipes | tables).items(), json.loads(done.stdout), strict=True
    ):
        with subtests.test(command=command):
            assert outcome[:2] == [code, []], outcome
            assert words in outcome[2]


def test_what_needs_pytorch_loads_little_more_and_sets_up_no_logging():
    steps = [
        ("import fieldwise; fieldwise.AFM", ("torch._dynamo", "polars", "sklearn", "scipy")),
        ("fieldwise.train_recipe", ("torch._dynamo", "sklearn", "scipy.stats")),
        ("import fieldwise.scoring.ranker", ("torch._dynamo", "sklearn", "scipy.stats")),
    ]
    checks = (
        f"{code}; print({code!r}, [name for name in {names} if name in sys.modules])"
        for code, names in steps
    )
    handlers = "print('handlers', logging.root.handlers, logging.getLogger('fieldwise').handlers)"
    program = "\n".join(("import logging, sys", *checks, handlers))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [*(f"{code} []" for code, _ in steps), "handlers [] []"]

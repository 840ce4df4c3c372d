"""Several writers of one bundle: threads and processes that save, `train --out` twice, a calibration over a save.

`python -m benchmarks.chaos.writers save FOLDER SEED TIMES` saves one bundle so often, for the attacks below.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from serving.conftest import log, make

from benchmarks.chaos import ROOT
from benchmarks.chaos.outcome import Outcome
from fieldwise import AFM, Bundle
from fieldwise.errors import FieldwiseError

SAVERS = 4
SETTINGS = AFM(embedding_dim=4, attention_dim=3)
FITS = ("--set", "training.epochs=1", "--set", "data.rows=3000", "--threads", "1", "--no-cache", "--quiet")


def saves(folder: Path, count: int) -> Outcome:
    """So many saves by four processes into one place, and loads beside them, four for each save."""
    place = folder / "saved"
    make(SETTINGS).save(place)
    one = Outcome(name="concurrent saves and loads", tried=SAVERS * -(-count // SAVERS))
    command = [sys.executable, "-m", "benchmarks.chaos.writers", "save", str(place)]
    children = [
        subprocess.Popen([*command, str(number), str(-(-count // SAVERS))], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for number in range(SAVERS)
    ]
    loads = 0
    while any(child.poll() is None for child in children) or loads < 4 * count:
        try:
            Bundle.load(place)
        except FieldwiseError as e:
            one.broken.append(f"a reader beside writers: {e}")
        loads += 1
    ends = Counter(child.wait() for child in children)
    one.broken += [f"a writer ended with {status}" for status in ends if status]
    one.figures |= {"loads": loads}
    return one


def save(place: Path, seed: int, times: int) -> None:
    bundle = make(SETTINGS, seed=seed)
    for _ in range(times):
        bundle.save(place)
        time.sleep(0.01)


def trainings(folder: Path, rounds: int) -> Outcome:
    """`train --out` twice at once, with two seeds: both end well, and a whole bundle of one of them is there."""
    one, left = Outcome(name="train --out twice at once", tried=rounds), Counter[str]()
    for _ in range(rounds):
        place = folder / "trained"
        ends = together([["train", "simulated/fm", "--seed", seed, "--out", str(place), *FITS] for seed in ("1", "2")])
        one.broken += [said for status, said in ends if status]
        try:
            left[str(Bundle.load(place).about.get("seed"))] += 1
        except FieldwiseError as e:
            one.broken.append(str(e))
    one.figures |= {"seed_left": dict(left)}
    return one


def calibrations(folder: Path, rounds: int) -> Outcome:
    """`calibrate` while another bundle is saved: it says that it was replaced, or one came after the other whole."""
    one, ends_by = Outcome(name="calibrate against a save", tried=rounds), Counter[str]()
    rows = folder / "rows.parquet"
    log(400).with_columns(click=(log(400)["price"] > 0.5).cast(int)).write_parquet(rows)
    first, second = make(SETTINGS), make(SETTINGS, seed=7)
    for number in range(rounds):
        place = folder / "calibrated"
        first.save(place)
        command = [
            sys.executable,
            "-m",
            "fieldwise",
            "calibrate",
            str(place),
            "--method",
            "isotonic",
            "--data",
            str(rows),
        ]
        child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(0.3 + 2.5 * number / rounds)
        second.save(place)
        said = child.communicate(timeout=120)[0]
        after = Bundle.load(place)
        if child.returncode and "was replaced by another process" in said:
            ends_by["refused"] += 1
        elif child.returncode:
            one.broken.append(said[-500:])
        else:
            ends_by["calibrated"] += 1
        if after.digest != second.digest and not same_weights(after, second):
            one.broken.append("the bundle saved meanwhile was replaced by a calibration of the old one")
    one.figures |= dict(ends_by)
    return one


def same_weights(one: Bundle, other: Bundle) -> bool:
    """Whether two bundles have the same weights."""
    a, b = one.network.state_dict(), other.network.state_dict()
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def together(commands: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Exit statuses and outputs of commands of fieldwise that start at once."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "fieldwise", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for words in commands
    ]
    said = [child.communicate(timeout=300)[0] for child in children]
    return [(child.returncode, text[-500:]) for child, text in zip(children, said, strict=True)]


if __name__ == "__main__":
    save(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

"""Several writers of one bundle: processes that save, and `train --out` twice.

`python -m benchmarks.chaos.writers save FOLDER SEED TIMES` saves one bundle so often, for the
attack below.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.conftest import make

from benchmarks.chaos import ROOT
from benchmarks.chaos.outcome import Outcome
from fieldwise import AFM, Bundle
from fieldwise.errors import FieldwiseError

SAVERS = 4
SETTINGS = AFM(embedding_dim=4, attention_dim=3)
SEEDS = ("1", "2")
REFUSALS = (
    "only one training at a time can use",
    "holds a bundle already, which training would replace",
)
FITS = ("--set", "training.epochs=1", "--set", "data.rows=3000", "--quiet")


def saves(folder: Path, count: int) -> Outcome:
    """So many saves by four processes into one place, and loads beside them, four for each save."""
    place = folder / "saved"
    make(SETTINGS).save(place, overwrite=True)
    one = Outcome(name="concurrent saves and loads", tried=SAVERS * -(-count // SAVERS))
    command = [sys.executable, "-m", "benchmarks.chaos.writers", "save", str(place)]
    children = [
        subprocess.Popen(
            [*command, str(number), str(-(-count // SAVERS))],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
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
        bundle.save(place, overwrite=True)
        time.sleep(0.01)


def trainings(folder: Path, rounds: int, seconds: float) -> Outcome:
    """`train --out` twice at once, with two seeds, each time into a new folder, so often or for so long.

    At least one ends well, the other well or with a sentence; the bundle is to the bit that of a
    seed whose training ended well, as it was trained alone before.
    """
    one = Outcome(name="train --out twice at once")
    left = Counter[str]()
    end = time.monotonic() + seconds
    alone = {seed: folder / f"alone{seed}" for seed in SEEDS}
    for seed, place in alone.items():
        ((status, said),) = together([seed], place)
        if status:
            one.broken.append(said)
            return one
    expected = {seed: Bundle.load(place) for seed, place in alone.items()}
    while one.tried < rounds and (not one.tried or time.monotonic() < end):
        place = folder / f"trained{one.tried}"
        one.tried += 1
        ends = together(SEEDS, place)
        try:
            seeds = [
                seed
                for seed, bundle in expected.items()
                if same_weights(Bundle.load(place), bundle)
            ]
        except FieldwiseError as e:
            one.broken.append(str(e))
            continue
        one.broken += training_faults(dict(zip(SEEDS, ends, strict=True)), seeds)
        left[", ".join(seeds) or "neither"] += 1
    one.figures |= {"seed_left": dict(left)}
    return one


def training_faults(ends: Mapping[str, tuple[int, str]], left: Sequence[str]) -> list[str]:
    """What is wrong after two trainings into one folder.

    Args:
        ends: exit status and output by seed.
        left: the seeds whose bundle is there.
    """
    won = [seed for seed, (status, _) in ends.items() if not status]
    faults = [
        text
        for status, text in ends.values()
        if status and not any(known in text for known in REFUSALS)
    ]
    if not won:
        faults.append("no training ended well")
    if not set(left) & set(won):
        there = ", ".join(left) or "neither seed"
        faults.append(
            f"the bundle is that of {there}, and the training that ended well had {', '.join(won)}"
        )
    return faults


def same_weights(one: Bundle, other: Bundle) -> bool:
    """Whether two bundles have the same weights."""
    a = one.network.state_dict()
    b = other.network.state_dict()
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def together(seeds: Sequence[str], place: Path) -> list[tuple[int, str]]:
    """Exit statuses and outputs of small trainings into one folder that start at once."""
    command = [
        sys.executable,
        "-m",
        "fieldwise",
        "train",
        "simulated/fm",
        "--out",
        str(place),
        *FITS,
        "--set",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    children = [subprocess.Popen([*command, f"seed={seed}"], text=True, **pipes) for seed in seeds]
    said = [child.communicate(timeout=300)[0] for child in children]
    return [(child.returncode, text[-500:]) for child, text in zip(children, said, strict=True)]


if __name__ == "__main__":
    save(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

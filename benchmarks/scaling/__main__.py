"""What training costs past the machines at hand: calibrated here, compared with runs here, then computed.

python -m benchmarks.scaling predict                            # from constants.json, in a second
python -m benchmarks.scaling predict --rows 1e9 --ids 1e9 --batch 65536 --gigabits 100 --each 8
python -m benchmarks.scaling calibrate                          # writes constants.json; on a quiet machine
python -m benchmarks.scaling check --processes 1 2 4            # predictions against runs
"""

import argparse
import json
import math
from collections.abc import Sequence

from benchmarks.scaling.model import SAVED, Constants, Job, Network, costs, exchanges, shape_of
from fieldwise.cli.processes import most_processes
from fieldwise.models import AFM, FM, AutoIntPlus, IntTower

MODELS = {
    "fm": FM(embedding_dim=16),
    "afm": AFM(embedding_dim=16),
    "autoint+": AutoIntPlus(embedding_dim=16),
    "inttower": IntTower(embedding_dim=16),
}
CHECKED = {"fm-sharded": "fm", "fm-replicated": "fm", "afm-sharded": "afm", "autoint+-sharded": "autoint+"} | {
    "inttower-sharded": "inttower"
}
PARTS = ("step", "exchange", "ids", "waits", "disk")  # of a calibration
RANKS = (8, 16, 32, 64, 128, 256, 512)
MOST_IDS = 2**31 - 1
WORDS = {"compute": "arithmetic", "ids": "sorting ids", "sent": "bytes sent", "waited": "messages", "read": "reading"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if wrong := _wrong(asked):
        parser.error(wrong)
    {"predict": predict, "calibrate": calibrate, "check": check}[asked.what](asked)


def predict(asked: argparse.Namespace) -> None:
    """Print an epoch's costs by number of processes."""
    known = Constants.saved()
    network = Network(gigabits=asked.gigabits, message=asked.message, each=asked.each, disk=asked.disk)
    for name in asked.models:
        print(f"\n{name}: {asked.rows:,.0f} rows, {asked.ids:,.0f} ids, batches of {asked.batch:,}, {network}\n")
        print(
            "| processes | step, ms | arithmetic | sorting ids | bytes sent | messages | MB a step | epoch, h |", end=""
        )
        print(" limit | GB held | checkpoint, s | collecting, s |")
        print("|---:" * 8 + "|---" + "|---:" * 3 + "|")
        for processes in asked.processes or [size for size in RANKS if size <= asked.batch] or [1]:
            job = Job(
                shape=shape_of(MODELS[name]), ids=int(asked.ids), batch=asked.batch, processes=processes,
                skew=asked.skew, rows=int(asked.rows),
            )  # fmt: skip
            cost = costs(job, name, known, network)
            sent = sum(one.sent(processes) for one in exchanges(job))
            parts = " | ".join(f"{1e3 * x:.1f}" for x in (cost.compute, cost.ids, cost.sent, cost.waited))
            print(
                f"| {processes} | {1e3 * cost.step:.0f} | {parts} | {sent / 1e6:.2f} | {cost.epoch / 3600:.2f} | "
                f"{WORDS[cost.narrowest]} | {job.held_bytes / 1e9:.2f} | {cost.checkpoint:.0f} | {cost.collected:.0f} |"
            )
        print(f"\npreparation by one machine {cost.prepared / 3600:.1f} h; reading an epoch's rows {cost.read:.0f} s")
        print(f"checkpoint {job.checkpoint_bytes / 1e9:.1f} GB; encoded rows {job.rows * job.row_bytes / 1e9:.0f} GB")


def calibrate(asked: argparse.Namespace) -> None:
    """Measure constants, and write them."""
    from benchmarks.scaling.measure import calibrated

    found = calibrated(tuple(asked.parts), asked.prepared)
    SAVED.write_text(json.dumps(found, indent=2) + "\n")
    print(SAVED.read_text())


def check(asked: argparse.Namespace) -> None:
    """Print predictions beside runs: medians of rounds, in each of which a case runs with every number of processes."""
    from benchmarks.scaling.measure import EVERY, job_of, median, repeated

    known = Constants.saved()
    print("| case | batch | processes | ms a step | predicted | error | MB given | predicted |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in asked.cases:
        found = repeated([(name, processes, None) for processes in asked.processes or (1, 2, 4)], asked.rounds)
        for (_, processes, _), runs in found.items():
            job, seconds = job_of(name, processes), [1e3 * run["seconds"] for run in runs]
            expected, middle = 1e3 * costs(job, CHECKED[name], known).step, 1e3 * median(runs, "seconds")
            timed = f"{middle:.1f} ({min(seconds):.1f} to {max(seconds):.1f}) | {expected:.1f}"
            timed += f" | {expected / middle - 1:+.0%}"
            given = f"{median(runs, 'bytes') / 1e6:.3f} | {sum(one.given for one in exchanges(job)) / 1e6:.3f}"
            print(f"| {name} | {EVERY[name].batch:,} | {processes} | {timed} | {given} |", flush=True)


def _wrong(asked: argparse.Namespace) -> str | None:
    """A sentence about arguments with which nothing can be computed or run; None if there are none."""
    least = {
        "rows": 1,
        "ids": 1,
        "batch": 1,
        "skew": 0,
        "gigabits": 1e-9,
        "message": 0,
        "each": 1,
        "disk": 1,
        "rounds": 1,
    }
    for name, low in least.items():
        if not (math.isfinite(value := getattr(asked, name)) and value >= low):
            return f"--{name} must be a number of at least {low:g}, found {value:g}"
    if asked.ids > MOST_IDS:
        return f"--ids may be at most {MOST_IDS:,}, since ids are 32-bit numbers, found {asked.ids:,.0f}"
    most = asked.batch if asked.what == "predict" else most_processes()
    for size in asked.processes or ():
        if not 1 <= size <= most:
            why = "a row of the batch for each" if asked.what == "predict" else "this machine would run no more"
            return f"--processes must be from 1 to {most:,}, {why}, found {size:,}"
    return None


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("what", choices=["predict", "calibrate", "check"])
    found.add_argument("--models", nargs="+", choices=MODELS, default=["fm", "autoint+"])
    found.add_argument("--processes", nargs="+", type=int)
    found.add_argument("--rows", type=float, default=1e9)
    found.add_argument("--ids", type=float, default=1e9, help="rows of the embedding table")
    found.add_argument("--batch", type=int, default=65_536)
    found.add_argument("--skew", type=float, default=1.05, help="ids of rank k have frequency k^-skew")
    found.add_argument("--gigabits", type=float, default=10.0, help="a second, of each machine")
    found.add_argument("--message", type=float, default=50e-6, help="seconds of a message between machines")
    found.add_argument("--each", type=int, default=8, help="processes of a machine, a core for each")
    found.add_argument("--disk", type=float, default=1e9, help="bytes a second of each machine")
    found.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="calibrate: only these")
    found.add_argument("--prepared", type=float, help="calibrate: rows a second, as `benchmarks.large run` prints")
    found.add_argument("--cases", nargs="+", choices=CHECKED, default=list(CHECKED), help="check: only these")
    found.add_argument("--rounds", type=int, default=3, help="check: runs of each, of which medians are taken")
    return found


if __name__ == "__main__":
    main()

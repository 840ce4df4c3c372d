"""`run`: train on a log with the command line, and measure its memory and the seconds of its phases."""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.large.log import about
from benchmarks.large.process import Watched, environment_with, fieldwise, watched
from benchmarks.large.recipe import write_recipe
from benchmarks.large.results import store

__all__ = ["run", "train"]

STATES = {"adam": 2.0, "adagrad": 1.0, "rowwise_adagrad": 1.0, "sgd": 0.0}  # numbers per parameter, at most


def run(options: argparse.Namespace) -> int:
    """The command."""
    log = about(options.data)
    done, found = train(options, log, show=True)
    record = found.pop("record")
    if options.rows_check:
        counted = sum(record["counts"][f"{part}_rows"] for part in ("train", "valid", "test"))
        if counted != log["rows"]:
            sys.exit(f"the log has {log['rows']:,} rows, and {counted:,} were prepared")
    store(options.json, "run", options.words, found | {"log": log})
    show(found, log, done)
    return 0


def train(options: argparse.Namespace, log: Mapping[str, Any], *, show: bool = False) -> tuple[Watched, dict[str, Any]]:
    """One training with an empty cache and its measures."""
    work: Path = options.work.absolute() / "run"
    shutil.rmtree(work, ignore_errors=True)
    training = ({} if options.epochs is None else {"epochs": options.epochs}) | pairs(options.set)
    recipe = write_recipe(
        work / "recipe.toml", log, options.model, memory=options.memory, training=training, stated=False
    )
    words = ["train", recipe, "--out", work / "bundle", "--threads", options.threads, "--json"]
    words += ["--progress", "json"] if reports_progress() else []
    words += [] if options.cache else ["--no-cache"]
    with space_taken(work) as taken:
        done = watched(fieldwise(*words), env=environment_with(work), show=show).checked()
    record = json.loads(done.out)
    found = measures(done, record, {"most, of the file system": max(taken), **disk(work)})
    history = json.loads((work / "bundle" / "bundle.json").read_text("utf-8"))["about"]["history"]
    needed = record["seconds_preparing"] + history[-1]["seconds"]
    found["seconds"] |= {"epochs with evaluations": history[-1]["seconds"], "preparation and epochs": round(needed, 2)}
    found["all to preparation and epochs"] = round(done.seconds / needed, 3)
    if not options.keep:
        shutil.rmtree(work)
    return done, found


def measures(done: Watched, record: Mapping[str, Any], disk_bytes: Mapping[str, int]) -> dict[str, Any]:
    """Seconds and bytes of a training, by phase."""
    rows = {part: record["counts"][f"{part}_rows"] for part in ("train", "valid", "test")}
    prepared, ends = marks(done)
    parameters = 4 * record["parameters"]
    optimizer = int(STATES[record["training"]["optimizer"]] * parameters)
    epoch = record["seconds_per_epoch"]
    trained = ends[-1] if ends else prepared
    return {
        "seconds": {
            "all": round(done.seconds, 2),
            "to the first epoch's end": round(ends[0], 2) if ends else None,
            "preparation": record["seconds_preparing"],
            "epoch": None if epoch is None else round(epoch, 2),
            "training and evaluation": record["seconds"],
            "after the last epoch": round(done.seconds - trained, 2),
            "processor": round(done.cpu, 2),
        },
        "rows a second": {
            "preparation": round(sum(rows.values()) / record["seconds_preparing"]),
            "epoch": None if epoch is None else round(rows["train"] / epoch),
        },
        "bytes": {
            "peak anonymous": done.memory.peak(),
            "peak anonymous in preparation": done.memory.peak(stop=prepared),
            "peak anonymous in training": done.memory.peak(prepared, trained),
            "peak anonymous afterwards": done.memory.peak(trained),
            "peak mapped files": max((one.file for one in done.memory.samples), default=0),
            "peak shared": max((one.shared for one in done.memory.samples), default=0),
            "parameters": parameters,
            "optimizer": optimizer,
            "disk": dict(disk_bytes),
        },
        "auc": {part: record[part].get("auc") for part in ("valid", "test")},
        "record": record,
    }


def marks(done: Watched) -> tuple[float, list[float]]:
    """When preparation had ended, and when each evaluation in training had, in seconds since the start."""
    prepared = next((at for at, line in done.lines if " train, " in line and line.endswith(" test rows")), 0.0)
    return prepared, [at for at, line in done.lines if ": train loss " in line or "evaluation" in _report(line)]


def _report(line: str) -> dict[str, Any]:
    """What a line of `--progress json` says; nothing for other lines."""
    try:
        found = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def show(found: Mapping[str, Any], log: Mapping[str, Any], done: Watched) -> None:
    """The measures, on standard output."""
    seconds, rates, sizes = found["seconds"], found["rows a second"], found["bytes"]
    print(f"{log['rows']:,} rows in {log['files']} files, {log['bytes'] / 1e6:,.0f} MB")
    for name, value in seconds.items():
        rate = f", {rates[name]:,} rows/s" if rates.get(name) else ""
        print(f"  {name:32} {'-' if value is None else f'{value:,.1f} s'}{rate}")
    for name, value in sizes.items():
        if name != "disk":
            print(f"  {name:32} {value / 1e6:,.0f} MB")
    net = sizes["peak anonymous"] - sizes["parameters"] - sizes["optimizer"]
    print(f"  {'peak beside these two':32} {net / 1e6:,.0f} MB, of {len(done.memory.samples)} samples")
    print(f"  {'all, in preparations and epochs':32} {found['all to preparation and epochs']:.3f} times")
    for name, value in sizes["disk"].items():
        print(f"  {f'disk: {name}':32} {value / 1e6:,.0f} MB")
    print(f"  AUC: validation {found['auc']['valid']:.4f}, test {found['auc']['test']:.4f}")


@contextlib.contextmanager
def space_taken(folder: Path) -> Iterator[list[int]]:
    """By how many bytes the free space of a folder's file system has fallen, each second; other programs count too."""
    before, taken, end = shutil.disk_usage(folder).free, [0], threading.Event()

    def look() -> None:
        while not end.wait(1):
            taken.append(before - shutil.disk_usage(folder).free)

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield taken
    finally:
        end.set()
        watch.join()


def disk(work: Path) -> dict[str, int]:
    """Bytes of files in each folder of the work folder."""
    folders = [path for path in work.iterdir() if path.is_dir()]
    return {path.name: sum(one.stat().st_size for one in path.rglob("*") if one.is_file()) for path in folders}


def pairs(words: list[str] | None) -> dict[str, Any]:
    """`KEY=VALUE` of `training`, with values as in JSON, else as text."""
    found = {}
    for word in words or ():
        key, _, value = word.partition("=")
        try:
            found[key.removeprefix("training.")] = json.loads(value)
        except ValueError:
            found[key.removeprefix("training.")] = value
    return found


def reports_progress() -> bool:
    """Whether the program reports its progress as lines of JSON."""
    told = subprocess.run(fieldwise("train", "--help"), capture_output=True, text=True, check=True).stdout
    return "--progress" in told

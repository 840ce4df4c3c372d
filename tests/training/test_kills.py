"""`kill -9` at random moments, also within the write of a checkpoint and twice in a row: the result stays the same."""

import json
import subprocess
import sys

import pytest

# A process that has loaded PyTorch forks a child for each attempt: it starts in milliseconds.
SCRIPT = """
import hashlib, json, os, random, resource, signal, sys, time, warnings
from pathlib import Path
import numpy as np
import torch
import torch._dynamo  # the first optimizer loads it, which would take each child seconds
from fieldwise.data.encode.encoder import Encoder
from fieldwise.models import FM, AutoInt, IntTower
from fieldwise.models.build import build_network
from fieldwise.training.checkpoint import CheckpointFolder, Checkpoints
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings
from fieldwise import Categorical, Label, Schema, simulate

torch.set_num_threads(1)
case, kills, epochs, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
MODELS = {
    "fm": (FM(embedding_dim=8), {"optimizer": "adagrad", "embedding_update": "lazy", "learning_rate": 0.1}),
    "autoint": (AutoInt(embedding_dim=8, attention_dropout=0.2), {"average": 0.9, "learning_rate": 0.01}),
    "inttower": (IntTower(embedding_dim=8, hidden=(16, 8), dropout=0.2), {"learning_rate": 0.01}),
}
model, changed = MODELS[case]
changed |= {"batch_size": 32, "epochs": epochs, "evaluations_per_epoch": 3, "patience": 99, "monitor": "logloss"}
settings = TrainingSettings(**changed)
log = simulate(1500, users=60, items=40, seed=2)
roles = Categorical("user_id", role="user"), Categorical("item_id", role="item")
schema = Schema(fields=roles, label=Label("liked"))
encoder = Encoder.fit(log[:1200], schema)
y = log["liked"].to_numpy().astype(np.float32)
train, valid = encoder.transform(log[:1200], y=y[:1200]), encoder.transform(log[1200:], y=y[1200:])


def trained(place):
    kept = None
    if place is not None:
        place = CheckpointFolder(folder=place)
        kept = Checkpoints(unfinished=place, name="first", minutes=1e-9, about=lambda: {"rows": "these"})
    network = build_network(model, encoder.layout, 1, labels=1)
    result = Training(
        network=network, train=train, valid=valid, settings=settings, objective=Objective(), seed=1, checkpoints=kept
    ).run()
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return {"weights": digest.hexdigest(), "metrics": result.best.metrics, "epochs": result.epochs}


def child(place, out, limit=None):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = trained(place)
        sentences = [str(one.message) for one in told]
        os.write(out, (json.dumps({**found, "warnings": sentences}) + "\\n").encode())
        code = 0
    finally:
        os._exit(code)


def result(place, limit=None):
    reading, writing = os.pipe()
    pid = child(place, writing, limit)
    os.close(writing)
    with os.fdopen(reading) as file:
        line = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(line)


expected = result(None)
began = time.perf_counter()
assert result(folder / "timed") == expected
whole = time.perf_counter() - began
draws, killed, resumed, ended = random.Random(case), 0, 0, []
while killed < kills:
    place = folder / str(len(ended))  # a new one, also where the run ended before it was killed
    draws_late = draws.random() < 0.8  # after the first checkpoint, however busy the machine is
    for _ in range(draws.choice([1, 2])):  # twice in a row, sometimes
        pid = child(place, os.open(os.devnull, os.O_WRONLY))
        until = time.perf_counter() + 60
        while draws_late and not CheckpointFolder(folder=place).exists() and time.perf_counter() < until:
            time.sleep(0.005)
        time.sleep(draws.uniform(0.1, 0.9) * whole * (0.5 if draws_late else 1))
        os.kill(pid, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    resumed += CheckpointFolder(folder=place).exists()
    ended.append(result(place))
limited = result(folder / "limited", limit=2000) if kills else None
print(json.dumps({"expected": expected, "ended": ended, "resumed": resumed, "limited": limited}))
"""


def check(case, kills, epochs, folder):
    arguments = [sys.executable, "-c", SCRIPT, case, str(kills), str(epochs), str(folder)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ended"]
    assert result["resumed"] > 0, "some kills left a checkpoint"
    assert [one for one in result["ended"] if one != result["expected"]] == []
    limited = result["limited"]  # a file may not grow beyond 2,000 bytes: as on a full disk
    assert (
        "a checkpoint could not be written, and training goes on without it"
        in limited.pop("warnings")[0]
    )
    assert limited == {k: v for k, v in result["expected"].items() if k != "warnings"}


@pytest.mark.slow
# a second or two each
@pytest.mark.parametrize(("case", "epochs"), [("fm", 20), ("autoint", 10), ("inttower", 4)])
def test_fifty_kills(case, epochs, tmp_path):
    check(case, 50, epochs, tmp_path)

"""The benchmark of a GPU: its contenders run on the device, and without a GPU it says one sentence."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import cases
from benchmarks.__main__ import main
from benchmarks.case import Settings
from benchmarks.worker import Process


@pytest.mark.parametrize("case", cases.GPU_CASES)
def test_every_contender_of_this_environment_runs_on_the_device(case, name, tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "GPU", name)
    contenders = cases.GPU_CASES[case](Settings(folder=tmp_path, size="tiny", threads=1)).contenders
    assert len({one.name for one in contenders}) == len(contenders)
    for contender in contenders:
        options = json.loads(json.dumps({"threads": 1, **contender.options}))
        assert options["device"] == name
        if contender.peers or (options.get("training", {}).get("compile") and name == "second"):
            continue
        if contender.make == "ours:epoch":
            assert options["training"]["device"] == name
        process = Process()
        made = process.answer({"do": "make", "make": contender.make, "options": options})
        assert "facts" in made, made
        reply = process.answer({"do": "turn"})
        assert "measures" in reply, (contender.name, reply)
        measures = reply["measures"]
        assert all(math.isfinite(v) and v > 0 for v in measures.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_sentence():
    with pytest.raises(SystemExit, match="the cases of a GPU need one that PyTorch can use"):
        main(["run", "gpu"])

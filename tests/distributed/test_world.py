"""The process group of a training: its environment, its errors, and the order of its processes."""

import socket
import threading
import types

import pytest
import torch

from fieldwise import ConfigError, TrainingSettings
from fieldwise.data.shuffled_rows import BatchShard
from fieldwise.distributed.environment import DistributedEnvironment
from fieldwise.distributed.process_group import ProcessGroup, process_group
from fieldwise.errors import LostProcessError
from fieldwise.training.gradient_sync import broadcast_parameters

MET = {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_an_error_of_leaving_does_not_replace_that_of_the_training(monkeypatch):
    def fails():
        raise RuntimeError("gloo: the other process is gone")

    for name, value in (MET | {"RANK": "0", "WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("fieldwise.distributed.process_group._init_process_group", lambda _: None)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", fails)
    with pytest.raises(ConfigError, match="the first"), process_group():
        raise ConfigError("the first")
    with pytest.raises(LostProcessError, match="the other process is gone"), process_group():
        pass


def test_two_processes_with_one_gpu_are_named(monkeypatch):
    monkeypatch.setattr(
        "fieldwise.training.gradient_sync.device_of", lambda _: torch.device("cuda", 0)
    )
    facts = types.SimpleNamespace(uuid="f00")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    monkeypatch.setattr(ProcessGroup, "all_gather_object", lambda _, gpu: [gpu, "another", gpu])
    group = ProcessGroup(rank=0, size=3, local_rank=0)
    sentence = "each of the 3 processes needs a GPU of its own, but processes 0 and 2 would share one, which NCCL does"
    with pytest.raises(ConfigError, match=sentence):
        broadcast_parameters(torch.nn.Linear(2, 1), group, TrainingSettings(device="cuda"))
    with pytest.raises(
        ConfigError, match=r"takes a GPU of its own, found training.device = 'cuda:1'"
    ):
        broadcast_parameters(torch.nn.Linear(2, 1), group, TrainingSettings(device="cuda:1"))


def test_the_first_process_of_each_machine_goes_before_the_others_there(monkeypatch):
    store, order = torch.distributed.HashStore(), []
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    worlds = [
        ProcessGroup(rank=rank, size=4, local_rank=local, machine=machine)
        for rank, (machine, local) in enumerate([("a", 0), ("a", 1), ("b", 0), ("b", 1)])
    ]

    def through(group: ProcessGroup) -> None:
        with group.first("preparation", on_machine=True):
            order.append(group.rank)

    threads = [threading.Thread(target=through, args=(worlds[rank],)) for rank in (1, 3)]
    for thread in threads:
        thread.start()
    through(worlds[2])
    threads[1].join(300)
    assert order == [2, 3], "process 1 waits for its own machine's first one"
    through(worlds[0])
    threads[0].join(300)
    assert order == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            "WORLD_SIZE = 2 says .* which need RANK and LOCAL_RANK .*'LOCAL_RANK'",
        ),
        ({"WORLD_SIZE": "2", "RANK": "3", **MET}, "RANK = 3 must be from 0 to WORLD_SIZE - 1"),
        (
            {"WORLD_SIZE": "two", "RANK": "0", **MET},
            "WORLD_SIZE = two says .* 'two'.: start them with torchrun",
        ),
    ],
)
def test_a_wrong_environment_is_one_sentence(environment, sentence):
    with pytest.raises(ConfigError, match=sentence) as e:
        DistributedEnvironment.read(environment)
    assert "\n" not in str(e.value)
    assert DistributedEnvironment.read({"WORLD_SIZE": "1", "RANK": "0", **MET}) is None


def test_a_port_in_use_is_one_sentence(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for name, value in (MET | {"MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2"}).items():
            monkeypatch.setenv(name, value)
        with (
            pytest.raises(
                ConfigError,
                match=r"could not meet at 127.0.0.1:\d+ \(.*in use.*choose another port",
            ),
            process_group(),
        ):
            pass


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [0, 1, 4, 7])
def test_parts_are_all_rows_once_in_order(size, rows):
    parts = [BatchShard(rank=rank, size=size) for rank in range(size)]
    assert [row for part in parts for row in range(*part.of(rows))] == list(range(rows))

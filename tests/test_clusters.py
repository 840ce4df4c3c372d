"""The files of examples/clusters: scripts for Slurm with stand-ins for its commands, the pods' command line here."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fieldwise import Bundle

HERE = Path(__file__).resolve().parents[1] / "examples" / "clusters"
PAGE = HERE.parents[1] / "docs" / "how-to" / "clusters.md"
STAND_INS = {
    "scontrol": 'test "$*" = "show hostnames n[1-2]" && printf "n1\\nn2\\n"',
    "srun": 'shift; exec "$@"',
    "torchrun": 'printf \'%s\\n\' "$@" "threads $OMP_NUM_THREADS"',
    "fieldwise": "printf '%s\\n' \"$@\"",
}
SLURM = {
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_ID": "4077",
    "SLURM_CPUS_PER_TASK": "8",
}
RECIPE = 'extends = "simulated/fm"\n[data]\nrows = 6000\n[training]\nepochs = 2\n'


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A folder of commands that come first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path / "cache"))

    def put(**texts: str) -> None:
        for name, text in texts.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)

    return put


def sbatch(script: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = ["bash", str(HERE / script), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **SLURM, **environment}
    )


@pytest.mark.parametrize(
    ("environment", "per_node", "threads"),
    [({}, "2", "4"), ({"SLURM_GPUS_ON_NODE": "4", "PER_NODE": "9"}, "4", "2")],
)
def test_slurm_starts_torchrun_on_each_machine(commands, environment, per_node, threads):
    commands(**STAND_INS)
    done = sbatch(
        "slurm/train.sbatch", "my recipe.toml", "runs/a", "--set", "seed=3", **environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "--nnodes", "2", "--nproc-per-node", per_node, "--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29577",
        "--rdzv-id", "4077", "--max-restarts", "0", "-m", "fieldwise", "train", "my recipe.toml", "--out", "runs/a",
        "--set", "seed=3", f"threads {threads}",
    ]  # fmt: skip


def test_slurm_says_how_it_is_called_and_runs_commands_in_an_array(commands):
    commands(**STAND_INS | {"srun": 'exec "$@"'})
    done = sbatch("slurm/train.sbatch")
    assert (done.returncode, done.stderr.partition(" OUT")[0]) == (
        2,
        "usage: sbatch train.sbatch RECIPE",
    )
    done = sbatch("slurm/compare.sbatch", "compare", "a.toml", "b.toml")
    assert done.stdout.splitlines() == ["compare", "a.toml", "b.toml", "--quiet"], done.stderr


def test_scripts_are_whole_and_the_page_names_all_files():
    named = {path.relative_to(HERE).as_posix() for path in HERE.rglob("*") if path.is_file()}
    text = PAGE.read_text()
    assert {name for name in named if f"`{name}`" not in text} == set()
    for path in HERE.rglob("*.sbatch"):
        assert (
            subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True).stderr == ""
        )


def documents(name: str):
    yaml = pytest.importorskip("yaml")
    return {
        one["kind"]: one for one in yaml.safe_load_all((HERE / "kubernetes" / name).read_text())
    }


def test_pods_find_the_first_one_by_the_service():
    result = documents("train.yaml")
    service, job = result["Service"], result["Job"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert environment["FIRST"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(environment["MACHINES"])


@pytest.mark.slow
def test_two_pods_train_the_bundle_of_processes_of_one_machine(commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands(torchrun=f'exec "{sys.executable}" -m torch.distributed.run "$@"')
    Path("mine.toml").write_text(RECIPE)
    (container,) = documents("train.yaml")["Job"]["spec"]["template"]["spec"]["containers"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [*container["command"], container["args"][0].replace(":29500", f":{port}")]
    environment = {one["name"]: one["value"] for one in container["env"]} | {
        "FIRST": "127.0.0.1", "PER_MACHINE": "1", "OMP_NUM_THREADS": "1", "RECIPE": "mine.toml", "OUT": "pods",
        "FIELDWISE_CACHE": str(tmp_path / "cache"),
    }  # fmt: skip
    environment = {**os.environ, **environment}
    pods = [
        subprocess.Popen(line, env={**environment, "JOB_COMPLETION_INDEX": index}) for index in "10"
    ]
    assert [pod.wait(300) for pod in pods] == [0, 0]
    one = [
        sys.executable,
        "-m",
        "fieldwise",
        "train",
        "mine.toml",
        "--out",
        "here",
        "--processes",
        "2",
        "--quiet",
    ]
    subprocess.run(one, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert Bundle.load(Path("pods")).digest == Bundle.load(Path("here")).digest

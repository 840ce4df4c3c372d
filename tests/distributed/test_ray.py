"""Work on a Ray cluster, here one of this machine: equal to the bit to that of one process."""

import hashlib
import sys
import types
from pathlib import Path

import polars as pl
import pytest
from ray_cluster import cluster

from fieldwise import simulate
from fieldwise.cli import run
from fieldwise.data.read.mapped_rows import RowsWriter
from fieldwise.data.read.table_writer import TableWriter

__all__ = ["cluster"]

pytestmark = pytest.mark.filterwarnings(
    "ignore:::ray", "ignore::ResourceWarning", "ignore::FutureWarning"
)
RECIPE = """
[data]
path = "log"
[split]
kind = "time"
[schema]
user = "user_id"
item = "item_id"
time = "timestamp"
label = { column = "liked" }
fields = [
    { kind = "categorical", name = "user_id", role = "user" },
    { kind = "categorical", name = "item_id", role = "item", min_count = 2 },
    { kind = "numeric", name = "timestamp", transform = "standard" },
]
[model]
name = "fm"
embedding_dim = 4
[training]
epochs = 1
"""


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def write_log(frame: pl.DataFrame | None = None) -> None:
    rows = simulate(9_000, users=200, items=90) if frame is None else frame
    Path("log").mkdir()
    for k, chunk in enumerate(rows.iter_slices(3_000)):
        chunk.write_parquet(f"log/{k}.parquet")
    Path("mine.toml").write_text(RECIPE)


def entry(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> dict[str, str]:
    """The digests of the encoded rows and the encoder that `prepare` leaves in a cache of its own."""
    monkeypatch.setenv("FIELDWISE_CACHE", str(Path(name).absolute()))
    assert run(["prepare", "mine.toml", "--quiet", *arguments]) == 0
    (folder,) = (path.parent for path in Path(name).glob("prepared/*/entry.json"))
    rows = (path for part in ("train", "valid", "test") for path in (folder / part).iterdir())
    wanted = [folder / "encoder.json", *rows]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in wanted
    }


@pytest.mark.slow
def test_rows_prepared_in_a_cluster_are_those_of_one_machine(cluster, monkeypatch):
    write_log()
    monkeypatch.setattr("fieldwise.runs.large_table.CHUNK_BYTES_FOR_A_MACHINE", 50_000)
    monkeypatch.setattr(RowsWriter.__init__, "__kwdefaults__", {"gather": 50_000})
    here = entry(monkeypatch, "here")
    assert len([name for name in here if name.endswith(".npy")]) >= 9
    assert entry(monkeypatch, "there", "--engine", "ray") == here


@pytest.mark.slow
def test_an_error_of_a_machine_is_the_sentence_of_one_process(cluster, monkeypatch, capsys):
    rows = simulate(9_000, users=200, items=90)
    write_log(rows.with_columns(item_id=pl.lit(None, pl.Int64)))
    monkeypatch.setenv("FIELDWISE_CACHE", str(Path("here").absolute()))
    assert run(["prepare", "mine.toml", "--quiet"]) == 2
    here = capsys.readouterr().err
    assert "a field needs values to learn from" in here
    monkeypatch.setenv("FIELDWISE_CACHE", str(Path("there").absolute()))
    assert run(["prepare", "mine.toml", "--quiet", "--engine", "ray"]) == 2
    assert capsys.readouterr().err == here


@pytest.mark.slow
def test_predictions_of_a_cluster_are_those_of_one_process(cluster, monkeypatch, capsys):
    write_log()
    assert run(["train", "mine.toml", "--quiet", "--out", "bundle"]) == 0
    monkeypatch.setattr("fieldwise.bundle.score_file.SLICE_ROWS", 300)
    add, beside = TableWriter.add, []

    def counted(self, frame):
        beside.append(len(list(Path().glob(".fieldwise-*/rows-*"))))
        add(self, frame)

    monkeypatch.setattr(TableWriter, "add", counted)
    given = ["predict", "bundle", "--data", "log", "--logit", "--out"]
    assert run([*given, "here.csv"]) == 0
    capsys.readouterr()
    assert run([*given, "there.csv", "--engine", "ray"]) == 0
    assert "9,000 predictions written to there.csv" in capsys.readouterr().err
    assert Path("there.csv").read_bytes() == Path("here.csv").read_bytes()
    assert not list(Path().glob(".fieldwise-*"))
    assert len(beside) == 2 * 30
    assert 0 < max(beside) <= 2 * 2 * 2, "two slices a core, with their scores"


@pytest.fixture
def stub(monkeypatch):
    """Ray's module where Ray is not installed: a cluster is never reached."""
    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", ray)
    return ray


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("engine", "address", "sentence"),
    [
        ("spark", "", "--engine must be local or ray, found 'spark'"),
        ("ray", "127.0.0.1:1", "there is no Ray cluster at 127.0.0.1:1 (ConnectionRefusedError: "),
        ("ray", "ray://10.0.0.1:10001", "there is no Ray cluster at ray://10.0.0.1:10001 ("),
        ("ray", "head", "there is no Ray cluster at head (ValueError: "),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_sentence(
    engine, address, sentence, monkeypatch, capsys
):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert run(["prepare", "simulated/fm", "--engine", engine]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [Exception, RuntimeError])
def test_a_ray_that_does_not_start_is_one_sentence(stub, capsys, error):
    def init(**_):
        raise error(
            "The current node timed out during startup.\nThis happens when a process is killed."
        )

    stub.init = init
    assert run(["prepare", "simulated/fm", "--engine", "ray"]) == 2
    said = capsys.readouterr().err
    assert (
        f"Ray could not start a cluster on this machine ({error.__name__}: The current node timed out"
        in said
    )
    assert len(said.splitlines()) == 1


def test_without_ray_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(["prepare", "simulated/fm", "--engine", "ray"]) == 2
    said = "this command needs ray, which is not installed: pip install 'fieldwise[ray]'"
    assert capsys.readouterr().err == f"fieldwise: {said}\n"

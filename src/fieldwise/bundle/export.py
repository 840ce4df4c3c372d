"""Export of a bundle's network for other runtimes: ONNX, or a library compiled ahead of time (AOTInductor).

The batch size is dynamic. The input is the encoder's output (`fieldwise.layout.Batch`), the output
is the logit. The folder has everything that a program without fieldwise needs to run it, and an
example:

    model.onnx or model.pt2   the network
    samples.npz               the bundle's sample rows, encoded, and their logits
    encoder.json, schema.toml the schema, and the ids of values
    vectors.safetensors       the vectors by id, if a field has any
    example.py                runs the network on the samples and compares
    encode.py, layout.json, labels.json   ONNX: from raw rows to predictions, with the calibrations
    export.json               the bundle's digest, and size and SHA-256 of every file
"""

import ast
import inspect
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.bundle import standalone
from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest, to_plain
from fieldwise.data.encode import portable
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.kinds import kind_of
from fieldwise.data.prepare.prepared import VECTORS
from fieldwise.data.table import EncodedTable
from fieldwise.errors import BundleError, ConfigError, DataError, MissingExtraError, first_line
from fieldwise.evaluation.binary import sigmoid
from fieldwise.evaluation.calibration import isotonic_logit, platt_logit
from fieldwise.layout import Batch
from fieldwise.models.serialise import model_name
from fieldwise.models.trees import trees_of
from fieldwise.ops import use_ops
from fieldwise.storage.arrays import write_matrices
from fieldwise.storage.artifact import ArtifactKind, seal
from fieldwise.storage.files import new_file
from fieldwise.storage.folders import whole_folder
from fieldwise.version import __version__

__all__ = ["Target", "export_bundle"]

Target = Literal["onnx", "aoti"]
EXPORTERS = ("torch", "torch.__trace", "torch.onnx", "onnxscript")  # names of their loggers
FILES = {"onnx": "model.onnx", "aoti": "model.pt2"}
PREDICTION_FUNCTIONS = (sigmoid, platt_logit, isotonic_logit)
"""Lead from logits to predictions; their source is part of `encode.py`."""
EXPORT = ArtifactKind(
    name="export",
    manifest="export.json",
    format=1,
    remedy="export the bundle again",
    origin="give a folder of `fieldwise export`",
)
TOLERANCE = 1e-5  # for a logit, relative above 1
MOST_ROWS = 1_000_000
MOST_VALUES = 100_000_000

EXAMPLE = {
    "onnx": """\
# Run with only NumPy and ONNX Runtime: pip install numpy onnxruntime
import numpy as np
import onnxruntime

samples = dict(np.load("samples.npz"))
expected = samples.pop("logit")
session = onnxruntime.InferenceSession("model.onnx")
names = [given.name for given in session.get_inputs()]
(logit,) = session.run(None, {name: samples[name] for name in names})
print(f"{len(logit)} rows, largest difference {np.abs(logit - expected).max():.1e}")
""",
    "aoti": """\
# Run with only NumPy and PyTorch, on the same type of processor that compiled it.
import numpy as np
import torch

samples = {name: torch.from_numpy(array) for name, array in np.load("samples.npz").items()}
expected = samples.pop("logit")
network = torch._inductor.aoti_load_package("model.pt2")
order = ["ids", "values", "bag_ids", "bag_segments", "bag_weights"]
logit = network(*(samples[name] for name in order))
print(f"{len(logit)} rows, largest difference {(logit - expected).abs().max():.1e}")
""",
}


def export_bundle(bundle: Bundle, folder: Path, target: Target = "onnx") -> float:
    """Export a bundle's network for another runtime, run it there, and compare.

    Args:
        bundle: a bundle with at least two sample rows.
        folder: a new folder, or one with an export.
        target: `onnx`, or `aoti`: a library for this type of processor, which needs a C++ compiler.

    Returns:
        The largest difference between its logits of the sample rows and the network's, relative
        above 1.

    Errors:
        ConfigError: an unknown target; `aoti` without a C++ compiler.
        BundleError: `aoti` of a bundle with a calibration, which is not part of its network; a
            folder with other files; trees.
        MissingExtraError: the exporter is not installed.
        DataError: too few sample rows; logits that differ; a folder that is not writable.
    """
    if target not in get_args(Target):
        raise ConfigError(
            f"a network is exported to {' or '.join(FILES)}, found {target!r}: {nearest(target, FILES)}"
        )
    if any(trees_of(bundle.network)):
        raise BundleError(
            f"only networks are exported, found trees ({model_name(bundle.settings)}): score with `fieldwise serve` or "
            "`predict`, or take the library's own model, `bundle.network.model()`"
        )
    if bundle.calibration and target != "onnx":
        raise BundleError(
            "a compiled network returns logits without this bundle's calibration: "
            "export a copy without it (`fieldwise evaluate BUNDLE --calibrate none --out COPY`)"
        )
    if bundle.samples.height < 2:
        raise DataError(f"an export needs at least 2 sample rows, found {bundle.samples.height}")
    EXPORT.check_folder(folder)
    bundle = bundle.on_cpu()
    table = bundle.encoder.transform(bundle.samples)
    scales = torch.tensor([label.scale or 1.0 for label in bundle.schema.labels])
    network = _Flat(bundle.network, scales if bundle.schema.more_labels else scales[0]).eval()
    expected = bundle.score_table(table) * network.scale.double().numpy()
    with whole_folder(folder) as new:
        with _quiet(), use_ops("plain"), torch.no_grad():
            run = _MAKERS[target](network, table, new / FILES[target])
        differences = []
        for rows in (slice(0, 1), slice(1, None), slice(None)):
            result = run(table.batch(rows)[0])
            expected_rows = expected[rows]
            differences.append(
                np.max(np.abs(result - expected_rows) / np.maximum(1.0, np.abs(expected_rows)))
            )
        difference = float(np.max(differences))  # NaN if one is
        if not difference <= TOLERANCE:
            raise DataError(
                f"an exported network must have the same logits within {TOLERANCE:g}, found a difference of "
                f"{difference:.1e}: please report this bundle's settings"
            )
        arrays = {"logit": expected.astype(np.float32), **_arrays(table.batch(slice(None))[0])}
        np.savez(new / "samples.npz", allow_pickle=False, **arrays)
        (new / "schema.toml").write_text(bundle.schema.to_toml(), "utf-8")
        (new / "example.py").write_text(EXAMPLE[target], "utf-8")
        write_encoder(bundle.encoder, new, program=target == "onnx")
        if target == "onnx":
            _write_labels(bundle, new)
        seal(EXPORT, new, target=target, model=bundle.digest, fieldwise=__version__)
    return difference


def _write_labels(bundle: Bundle, folder: Path) -> None:
    """Write what leads from logits to predictions."""
    labels = []
    for label in bundle.schema.labels:
        calibration = to_plain(bundle.calibration.get(label.name))
        labels.append(
            {
                "name": label.name,
                "task": label.task,
                "range": label.range,
                "calibration": calibration,
            }
        )
    (folder / "labels.json").write_text(json.dumps(labels), "utf-8")


def write_encoder(encoder: Encoder, folder: Path, *, program: bool = True) -> None:
    """Write an encoder, and the `program` that leads from raw rows to the network's inputs."""
    (folder / "encoder.json").write_text(encoder.to_json(), "utf-8")
    if encoder.matrices:
        with new_file(folder / VECTORS) as file:
            write_matrices(file, encoder.matrices)
    if not program:
        return
    (folder / "layout.json").write_text(json.dumps(to_plain(encoder.layout)), "utf-8")
    (folder / "encode.py").write_text(_encoder_source(encoder), "utf-8")


def _encoder_source(encoder: Encoder) -> str:
    """The program `encode.py`: `standalone.py` with the source of what it takes from fieldwise.

    That is `portable.py`, the cell functions of the encoder's kinds, and `PREDICTION_FUNCTIONS`.
    """
    imports: set[str] = set()
    definitions = []
    for module in (portable, standalone):
        source = inspect.getsource(module)
        _, *nodes = ast.parse(source).body
        is_import = [isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes]
        first_definition = is_import.index(False)
        imports.update(map(ast.unparse, nodes[:first_definition]))
        lines = source.splitlines()
        definitions.append("\n".join(lines[nodes[first_definition].lineno - 1 :]))
    shared, program = definitions

    kinds = {f.kind: kind_of(f) for f in encoder.fields}
    functions = list[Callable[..., Any]](PREDICTION_FUNCTIONS)
    for kind in kinds.values():
        functions += [*kind.helpers, kind.cell]
    sources = [inspect.getsource(function).strip() for function in dict.fromkeys(functions)]
    cells = ", ".join(f'"{name}": {kind.cell.__name__}' for name, kind in kinds.items())
    program = program.replace("CELLS: dict[str, Any] = {}", f"CELLS = {{{cells}}}")
    header = "\n".join(sorted(line for line in imports if not line.startswith("from fieldwise")))
    return "\n\n\n".join([f'"""{standalone.__doc__}"""\n\n{header}', shared, *sources, program, ""])


_Run = Callable[[Batch], np.ndarray]


def _arrays(batch: Batch) -> dict[str, np.ndarray]:
    return {
        name: tensor.contiguous().numpy() for name, tensor in zip(Batch._fields, batch, strict=True)
    }


class _Flat(nn.Module):
    """A network with a batch's tensors as separate inputs, which returns logits, or numbers in a regression's unit.

    Args:
        network: returns scores [B], or [B, T] for several labels.
        scale: scale of the label, [], or of each label, [T]; 1 for a binary one.
    """

    def __init__(self, network: nn.Module, scale: Tensor) -> None:
        super().__init__()
        self.network = network
        self.scale = nn.Buffer(scale)
        self.scaled = bool((scale != 1).any())

    def forward(
        self,
        ids: Tensor,
        values: Tensor,
        bag_ids: Tensor,
        bag_segments: Tensor,
        bag_weights: Tensor,
    ) -> Tensor:
        logit: Tensor = self.network(Batch(ids, values, bag_ids, bag_segments, bag_weights))
        return logit * self.scale if self.scaled else logit


def _program(network: nn.Module, table: EncodedTable) -> torch.export.ExportedProgram:
    """The network as a graph of PyTorch's own operations, for any number of rows."""
    rows = torch.export.Dim("rows", max=MOST_ROWS)
    values = torch.export.Dim("values", max=MOST_VALUES)
    bag = {0: values} if table.layout.positions(kind="bag") else {}
    shapes = {0: rows}, {0: rows}, bag, bag, bag
    return torch.export.export(network, tuple(table.batch(slice(None))[0]), dynamic_shapes=shapes)


@contextmanager
def _quiet() -> Iterator[None]:
    """A context in which the exporters neither warn nor log; other loggers, of a server say, go on."""
    levels = {logger: logger.level for logger in map(logging.getLogger, EXPORTERS)}
    for logger, level in levels.items():
        logger.setLevel(max(level, logging.ERROR))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _onnx(network: nn.Module, table: EncodedTable, path: Path) -> _Run:
    try:
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 (the exporter needs it)
    except ImportError as e:
        raise MissingExtraError(
            f"an export to ONNX needs {e.name}: pip install 'fieldwise[onnx]'"
        ) from None
    program = torch.onnx.export(
        _program(network, table),
        dynamo=True,
        verbose=False,
        input_names=list(Batch._fields),
        output_names=["logit"],
    )
    assert program is not None, "dynamo returns one"
    program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(batch: Batch) -> np.ndarray:
        arrays = _arrays(batch)
        return np.asarray(session.run(None, {name: arrays[name] for name in names})[0])

    return run


def _aoti(network: nn.Module, table: EncodedTable, path: Path) -> _Run:
    from torch._inductor import aoti_compile_and_package, aoti_load_package
    from torch._inductor.exc import InductorError

    try:
        aoti_compile_and_package(_program(network, table), package_path=str(path))
    except InductorError as e:
        reason = first_line(e)
        raise ConfigError(
            f"a compiled library needs a working C++ compiler: {reason}; install GCC or Clang, or export to onnx"
        ) from None
    compiled = aoti_load_package(str(path))
    return lambda batch: compiled(*batch).numpy()


_MAKERS: dict[str, Callable[[nn.Module, EncodedTable, Path], _Run]] = {"onnx": _onnx, "aoti": _aoti}

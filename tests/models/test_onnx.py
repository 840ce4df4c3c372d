"""Every model through torch.export, ONNX and ONNX Runtime with a dynamic batch: the same logits."""

import io
import logging
import warnings

import numpy as np
import pytest
import torch
from parity import lab
from parity.reference import REFERENCES, hardest, main_cases

from fieldwise import Batch

FIRST = {name: next(iter(reference.CASES)) for name, reference in REFERENCES.items()}
QUICK = ("inttower",)  # a conversion takes seconds: those of all models and layouts are slow tests


def export(network, layout, batch):
    """The network as PyTorch's exported program, with any number of rows and of values in bags."""
    rows, values = (
        torch.export.Dim("rows", min=0, max=10_000),
        torch.export.Dim("values", min=0, max=100_000),
    )
    bag = {0: values} if layout.positions(kind="bag") else {}
    return torch.export.export(
        network, (batch,), dynamic_shapes=(Batch({0: rows}, {0: rows}, bag, bag, bag),)
    )


def onnx(program):
    """The bytes of the program as an ONNX model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=list(Batch._fields),
            output_names=["logit"],
        )
    content = io.BytesIO()
    program.save(content)
    return content.getvalue()


def rows_of(layout, n):
    batch = lab.random_batch(layout, n, seed=n)
    return batch._replace(values=batch.values.float(), bag_weights=batch.bag_weights.float())


def randomized(name, case, layout):
    torch.manual_seed(1)
    network = REFERENCES[name].CASES[case].build(layout).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
    return network


def places():
    """A model's first case on every layout, and its others on the hardest one; all but those of `QUICK` are slow."""
    for name in REFERENCES:
        for case, layout in main_cases(name):
            quick = name in QUICK and case == FIRST[name] and layout == hardest(name)
            marks = () if quick else pytest.mark.slow
            yield pytest.param(name, case, layout, marks=marks, id=f"{name}-{case}-{layout}")


@pytest.mark.parametrize(("name", "case", "layout_name"), list(places()))
def test_onnx_runtime_gives_the_same_logits(name, case, layout_name, caplog):
    runtime = pytest.importorskip(
        "onnxruntime", reason="ONNX Runtime is absent: pip install 'fieldwise[onnx]'"
    )
    caplog.set_level(logging.ERROR)
    layout = lab.LAYOUTS[layout_name]
    network = randomized(name, case, layout)
    exported = export(network, layout, rows_of(layout, 6))
    program = exported.module()
    for n in (0, 1, 9):
        torch.testing.assert_close(
            program(rows_of(layout, n)), network(rows_of(layout, n)), atol=1e-6, rtol=1e-6
        )
    session = runtime.InferenceSession(onnx(exported), providers=["CPUExecutionProvider"])
    read = {i.name for i in session.get_inputs()}
    for n in (1, 9):
        batch = rows_of(layout, n)
        result = session.run(None, {k: v.numpy() for k, v in batch._asdict().items() if k in read})[
            0
        ]
        expected = network(batch).detach().numpy()
        assert result.shape == expected.shape == (n,)
        np.testing.assert_allclose(result, expected, atol=1e-5, rtol=1e-5)

"""Every model through ONNX and ONNX Runtime with a dynamic batch: the same logits."""

import io
import logging
import warnings

import numpy as np
import pytest
import torch
from parity.reference import REFERENCES, layouts_of

from fieldwise.layout import Batch

FIRST = {name: next(iter(reference.CASES)) for name, reference in REFERENCES.items()}


def hardest(name):
    layouts = list(layouts_of(REFERENCES[name]))
    return "mixed" if "mixed" in layouts else layouts[-1]


def export(network, layout, batch):
    rows, values = torch.export.Dim("rows", min=0, max=10_000), torch.export.Dim("values", min=0, max=100_000)
    bag = {0: values} if layout.positions(kind="bag") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.onnx.export(
            network,
            (batch,),
            dynamic_shapes=(Batch({0: rows}, {0: rows}, bag, bag, bag),),
            dynamo=True,
            verbose=False,
            input_names=list(Batch._fields),
            output_names=["logit"],
        )
    content = io.BytesIO()
    program.save(content)
    return content.getvalue()


def places():
    """A model's first case on every layout, and its others on the hardest one; all but the first there are slow."""
    for name, reference in REFERENCES.items():
        for case in reference.CASES:
            for layout in layouts_of(reference) if case == FIRST[name] else [hardest(name)]:
                fast = case == FIRST[name] and layout == hardest(name)
                marks = () if fast else pytest.mark.slow
                yield pytest.param(name, case, layout, marks=marks, id=f"{name}-{case}-{layout}")


@pytest.mark.parametrize(("name", "case", "layout_name"), list(places()))
def test_onnx_runtime_gives_the_same_logits(lab, name, case, layout_name, caplog):
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is absent: pip install 'fieldwise[onnx]'")
    caplog.set_level(logging.ERROR)
    layout = lab.layouts[layout_name]
    torch.manual_seed(1)
    network = REFERENCES[name].CASES[case].build(layout).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn_like(p) * 0.3)

    def rows(n):
        batch = lab.batch(layout, n, seed=n)
        return batch._replace(values=batch.values.float(), bag_weights=batch.bag_weights.float())

    session = runtime.InferenceSession(export(network, layout, rows(6)), providers=["CPUExecutionProvider"])
    read = {i.name for i in session.get_inputs()}
    for n in (1, 9):
        batch = rows(n)
        found = session.run(None, {k: v.numpy() for k, v in batch._asdict().items() if k in read})[0]
        expected = network(batch).detach().numpy()
        assert found.shape == expected.shape == (n,)
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)

"""`make conformance`: compares every model with published parameter counts, its NumPy reference and the contract.

Writes docs/models/conformance.md (or prints it, with `--print`): all of its figures are measured.
"""

import argparse
import contextlib
import io
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from parity import lab  # noqa: E402
from parity.published import PUBLISHED  # noqa: E402
from parity.reference import REFERENCES, layouts_of  # noqa: E402

from fieldwise.layout import Layout  # noqa: E402
from fieldwise.models import NETWORKS, parameter_count  # noqa: E402
from fieldwise.storage.files import write_atomically  # noqa: E402

PAGE = ROOT / "docs" / "models" / "conformance.md"
SUITES = ("tests/models/test_contract.py", "tests/models/test_onnx.py")
HEAD = """# Conformance

Written by `make conformance`; do not edit. Of each model:

- **parity**: the largest difference |a - b| / max(1, |b|) between its logits a and those b of its independent NumPy
  version in float64 (`tests/parity/reference/`), over all its cases (defaults, variants, options) and all kinds of
  layouts; the next column has the number of such pairs.
- **published counts**: numbers of parameters at published settings: ours, and those in the published run logs (minus
  parameters that have no effect there); settings and sources are in `tests/parity/published.py`.
- **contract**: tests of `tests/models/test_contract.py` and `test_onnx.py` (without the slow ones) that passed, of all.

| model | parity | pairs | published counts, ours = published | contract |
|---|---:|---:|---|---:|
"""


def parity(name: str) -> tuple[float, int]:
    """The largest relative difference, and the number of (case, layout) pairs compared."""
    reference = REFERENCES[name]
    worst = 0.0
    pairs = 0
    for settings in reference.CASES.values():
        for layout in layouts_of(reference).values():
            network = lab.randomized(settings.build(layout))
            batch = lab.random_batch(layout, 5)
            with torch.no_grad():
                ours = network(batch).numpy()
            expected = reference.logit(settings, layout, batch, lab.weights(network))
            worst = max(
                worst, float(np.max(np.abs(ours - expected) / np.maximum(1.0, np.abs(expected))))
            )
            pairs += 1
    return worst, pairs


def counts(name: str) -> str:
    """The published parameter counts of a model, each with ours."""
    results = []
    for (model, data), published in PUBLISHED.items():
        if model == name:
            with torch.device("meta"):  # only counts, without memory
                ours = parameter_count(published.settings.build(Layout.of_sizes(published.sizes)))
            less = f" - {published.redundant}" if published.redundant else ""
            sign = "=" if ours == published.count - published.redundant else "≠"
            results.append(f"{data}: {ours:,} {sign} {published.count:,}{less}")
    return "; ".join(results) or "none known"


class Recorder:
    """A plugin of pytest that notes, by model, whether each test or subtest of it passed."""

    def __init__(self) -> None:
        self.passed: dict[str, list[bool]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a report: that of a subtest names its model, that of a test has it in its identifier."""
        context = getattr(report, "context", None)
        model = (
            model_of(report.nodeid)
            if context is None
            else context.kwargs.get("name", "").strip("'")
        )
        if model in NETWORKS and report.when == "call" and not report.skipped:
            self.passed[model].append(report.passed)


def contract() -> dict[str, list[bool]]:
    """Whether each test of the contract passed, by model."""
    recorder = Recorder()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        pytest.main(["-q", *(str(ROOT / suite) for suite in SUITES)], plugins=[recorder])
    if set(recorder.passed) != set(NETWORKS):
        sys.exit(f"the contract did not run for every model: {said.getvalue()}")
    return recorder.passed


def model_of(test: str) -> str | None:
    """The model that a test's identifier names: `test_x[afm-mixed]`, `test_x[1-afm-mixed]`."""
    words = re.split(r"[\[\]-]", test)[1:]
    return next((word for word in words if word in NETWORKS), None)


def main() -> None:
    """Measure, run the contract, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page, write nothing")
    arguments = parser.parse_args()
    results = contract()
    rows = []
    for name in NETWORKS:
        worst, pairs = parity(name)
        passed = results[name]
        rows.append(
            f"| `{name}` | {worst:.0e} | {pairs} | {counts(name)} | {sum(passed)} of {len(passed)} |"
        )
    page = HEAD + "\n".join(rows) + "\n"
    if arguments.print:
        print(page, end="")
    else:
        write_atomically(PAGE, page.encode())
    failed = sum(not ok for passed in results.values() for ok in passed)
    sys.exit(f"{failed} tests of the contract failed" if failed else 0)


if __name__ == "__main__":
    main()

"""Attacks on the server and on artifacts, repeated with a seed: `python -m benchmarks.chaos`.

What is sent and damaged is what the tests send and damage: this package imports it from `tests`.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

"""The report's maps of attention: none of uniform attention, and shades on an absolute scale."""

import re

import numpy as np
import pytest
from explain.conftest import SCHEMA, log
from random_bundle import random_bundle

from fieldwise import AFM, AutoInt
from fieldwise.report.explanation import explanation_section
from fieldwise.report.page import Figure


def blocks(settings, std):
    """The explanation of a network whose weights have this standard deviation."""
    bundle = random_bundle(settings, SCHEMA, log(), samples=log().head(7), std=std, seed=0)
    return explanation_section(bundle, log(), "click", rows=20, seed=0).blocks


@pytest.mark.parametrize(
    "settings", [AutoInt(embedding_dim=4, layers=2), AFM(embedding_dim=4)], ids=["autoint", "afm"]
)
def test_uniform_attention_is_a_sentence_and_no_figure(settings):
    result = blocks(settings, 0.02)
    assert not [one for one in result if isinstance(one, Figure) and "Attention" in one.title]
    (said,) = [one for one in result if isinstance(one, str) and "attention is uniform" in one]
    equal = {"AutoInt": 1 / 6, "AFM": 1 / 15}[type(settings).__name__]
    assert f"within 10 % of the equal ones, {equal:.4f} (" in said


def test_shades_are_of_three_times_the_equal_weight_or_the_largest():
    result = blocks(AutoInt(embedding_dim=4, layers=2), 0.4)
    figures = [one for one in result if isinstance(one, Figure) and "Attention" in one.title]
    tiles = re.findall(
        r'fill-opacity="([\d.]+)"><title>[^<]*: ([\d.]+)</title>',
        "".join(str(one.drawing) for one in figures),
    )
    assert len(tiles) == 36 * len(figures) > 0
    opacity, weight = np.array(tiles, dtype=float).T
    assert opacity == pytest.approx(0.05 + 0.95 * weight / max(0.5, weight.max()), abs=0.02)


def test_directions_share_one_scale():
    results = {
        one.title: one for one in blocks(AFM(embedding_dim=4), 0.5) if isinstance(one, Figure)
    }
    shown = [results[f"Direction of {name}"] for name in ("genres", "price", "hour")]
    assert "Attention of pairs, mean" in results
    every = [float(row[1].removesuffix(" %")) for one in shown for row in one.table.rows]
    assert len(shown[1].table.rows) == 7  # of as many sample rows
    for one in shown:
        ticks = re.findall(r">([\d.]+) %</text>", str(one.drawing))
        assert ticks == re.findall(r">([\d.]+) %</text>", str(shown[0].drawing))
        assert min(every) - 12 < float(ticks[0]) < float(ticks[-1]) < max(every) + 12

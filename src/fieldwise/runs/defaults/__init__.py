"""Defaults by the data: settings that were not given, as numbers that follow from the training rows.

`resolve` fills in what a model's and a training run's settings leave open, by the rules of `rules.py`,
each with its reason. Whatever is given stays as it is. docs/defaults.md has the rules and the measurements behind them.
"""

from fieldwise.runs.defaults.facts import Facts
from fieldwise.runs.defaults.resolve import Chosen, Resolved, resolve, scaled_labels, sentence_of
from fieldwise.runs.defaults.rules import RULES

__all__ = ["RULES", "Chosen", "Facts", "Resolved", "resolve", "scaled_labels", "sentence_of"]

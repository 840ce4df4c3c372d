"""Defaults chosen from the training rows for settings that were not given.

`resolve` fills in missing settings of a model and its training by the rules in `rules.py`, each with its reason. Given
settings are not changed. See docs/defaults.md for the rules and the measurements behind them.
"""

from fieldwise.runs.defaults.facts import Facts
from fieldwise.runs.defaults.resolve import Chosen, Resolved, limit_reached, resolve, scaled_labels, sentence_of
from fieldwise.runs.defaults.rules import RULES

__all__ = ["RULES", "Chosen", "Facts", "Resolved", "limit_reached", "resolve", "scaled_labels", "sentence_of"]

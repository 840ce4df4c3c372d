"""Why a row has its score, and whether the reason given is the reason.

explanation   contributions of fields, by exact terms, integrated gradients or occlusion; one row in plain values
terms         LR, FM, AFM, AutoInt and IntTower taken apart into terms that add up to the logit
summary       a set of rows: means, spreads, strongest pairs
faithfulness  deletion and insertion curves against random orders
"""

from fieldwise.explain.explanation import Explanation, Subject, explain
from fieldwise.explain.faithfulness import Curves, faithfulness
from fieldwise.explain.summary import planted_pairs_found, strongest_pairs, summary
from fieldwise.explain.terms import Terms, terms_of

__all__ = [
    "Curves",
    "Explanation",
    "Subject",
    "Terms",
    "explain",
    "faithfulness",
    "planted_pairs_found",
    "strongest_pairs",
    "summary",
    "terms_of",
]

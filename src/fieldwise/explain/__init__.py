"""Explanations of scores, and tests of their faithfulness.

explanation    contributions of fields by terms, integrated gradients or occlusion, of each row
sentence       a prediction with its main reasons
summary        means over many rows
effects        the mean prediction by value of each field
subject        the rows, their network and background rows
terms          decomposition of LR, FM, AFM, AutoInt and IntTower into sorts of terms
attribution    integrated gradients and occlusion, of any network
attention      when attention weights count as uniform
why_not        why an item is not in a list
faithfulness   deletion and insertion curves compared with random orders
"""

from fieldwise.explain.effects import effects
from fieldwise.explain.explanation import Explanation, explain
from fieldwise.explain.faithfulness import Curves, faithfulness
from fieldwise.explain.subject import Subject
from fieldwise.explain.summary import planted_pairs_found, strongest_pairs, summary
from fieldwise.explain.terms import Terms, terms_of
from fieldwise.explain.why_not import WhyNot, why_not

__all__ = [
    "Curves",
    "Explanation",
    "Subject",
    "Terms",
    "WhyNot",
    "effects",
    "explain",
    "faithfulness",
    "planted_pairs_found",
    "strongest_pairs",
    "summary",
    "terms_of",
    "why_not",
]

"""Logistic regression, weight by weight."""

from parity.reference.common import first_order

from fieldwise import LR

CASES = {"plain": LR()}


def logit(settings, layout, batch, w):
    return first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])

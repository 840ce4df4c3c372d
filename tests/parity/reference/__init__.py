"""Every model once more, in NumPy float64, written from its equations and not from fieldwise's code.

A module a model (`autoint+` is `autoint_plus`), each with

    CASES               settings by a short word: the first is the contract suite's, the others are
    variants and options logit(settings, layout, batch, w)
                        [B] in evaluation mode; w holds the network's state by name, as NumPy arrays
    permuted(settings, layout, order, w)
                        what of the state changes where the k-th field is the former field order[k]:
                        name -> array; left out where no parameter depends on the order of fields
    LAYOUTS             names of the laboratory's layouts that the model can be built on; all of
    them where left out NEEDS               "pairs", "towers" or another word for what a layout of
    one field lacks; left out where one is
                        enough
    ORDER_MATTERS       why no state of the network makes up for another order of the fields, for a
    model of which
                        that is true; `permuted` then has to hold for states that are alike in that
                        respect, made by
    order_free(settings, w)
                        what of the state to change: name -> array
"""

from importlib import import_module
from importlib.util import find_spec

from parity.lab import LAYOUTS

from fieldwise.models import MODELS


def module_of(name):
    return f"parity.reference.{name.replace('+', '_plus')}"


REFERENCES = {name: import_module(module_of(name)) for name in MODELS if find_spec(module_of(name))}


def layouts_of(reference):
    """The layouts a model is tested on, by name."""
    return {name: LAYOUTS[name] for name in getattr(reference, "LAYOUTS", LAYOUTS)}


FIRST = {name: next(iter(reference.CASES.values())) for name, reference in REFERENCES.items()}


def hardest(name):
    """The name of the layout with most kinds of fields that a model can be built on."""
    layouts = list(layouts_of(REFERENCES[name]))
    return "mixed" if "mixed" in layouts else layouts[-1]


def main_cases(name):
    """(case, layout name): a model's first case on every layout of its own, the others on the hardest one."""
    reference = REFERENCES[name]
    first, *others = reference.CASES
    return [
        *((first, layout) for layout in layouts_of(reference)),
        *((case, hardest(name)) for case in others),
    ]

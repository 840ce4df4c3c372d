"""The kinds of field: how a column is counted, fitted and encoded, by kind, one in a file of this folder.

A file registers its kind by `register`; `kind_of(field)` is what the encoder, a server's single
rows, stored files and an exported `encode.py` ask.
"""

import importlib
import pkgutil

from fieldwise.data.encode.kinds.base import (
    KINDS,
    Cells,
    Counted,
    Fitted,
    Kind,
    count_column,
    fit_counted,
    kind_of,
    register,
)

__all__ = [
    "KINDS",
    "Cells",
    "Counted",
    "Fitted",
    "Kind",
    "count_column",
    "fit_counted",
    "kind_of",
    "register",
]

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

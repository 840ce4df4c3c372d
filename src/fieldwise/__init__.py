"""fieldwise: recommenders built on attention over feature fields.

Importing it does nothing else; PyTorch is loaded with the first name that needs it.
"""

from fieldwise.schema import Bag, Categorical, Label, Numeric, Schema, Sequence

__version__ = "0.1.0"
__all__ = ["Bag", "Categorical", "Label", "Numeric", "Schema", "Sequence", "__version__"]

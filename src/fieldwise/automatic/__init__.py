"""From a table to the best model within some minutes.

The function is `fieldwise.auto`; this room has another name, since importing a module `fieldwise.auto` would hide it.
"""

from fieldwise.automatic.result import AutoResult
from fieldwise.automatic.run import AutoSettings, auto, run_auto

__all__ = ["AutoResult", "AutoSettings", "auto", "run_auto"]

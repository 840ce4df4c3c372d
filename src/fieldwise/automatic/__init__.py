"""From a table to the best model within some minutes.

The function is `fieldwise.auto`; this room has another name, since importing a module `fieldwise.auto` would hide it.
"""

from fieldwise.automatic.result import AutoResult
from fieldwise.automatic.run import auto, run_auto
from fieldwise.automatic.settings import AutoSettings

__all__ = ["AutoResult", "AutoSettings", "auto", "run_auto"]

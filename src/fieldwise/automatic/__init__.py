"""Find the best model for a table within a time budget.

The function is `fieldwise.auto`. The package has another name, because importing a module `fieldwise.auto` would hide
the function.
"""

from fieldwise.automatic.result import AutoResult
from fieldwise.automatic.run import auto, run_auto
from fieldwise.automatic.settings import AutoSettings

__all__ = ["AutoResult", "AutoSettings", "auto", "run_auto"]

"""Whatever may be raised by what one request, row or file brings: also panics of Polars, which are no `Exception`."""

from polars.exceptions import PanicException

__all__ = ["FAULTS"]

FAULTS = (Exception, PanicException)

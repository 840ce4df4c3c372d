"""The exceptions that one request, row or file may raise, including panics of Polars, which are not `Exception`."""

from polars.exceptions import PanicException

__all__ = ["FAULTS"]

FAULTS = (Exception, PanicException)

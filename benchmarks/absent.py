"""The error of a contender that cannot be measured."""

__all__ = ["NotAvailableError"]


class NotAvailableError(Exception):
    """This contender cannot be measured here, for the given reason; the case continues without it."""

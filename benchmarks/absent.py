"""What a contender raises where it cannot take part."""

__all__ = ["NotAvailableError"]


class NotAvailableError(Exception):
    """This contender cannot take part here, for the reason given; the case goes on without it."""

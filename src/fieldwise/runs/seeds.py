"""Seeds of random numbers."""

from fieldwise.errors import ConfigError


def check_seed(seed: int, what: str = "seed") -> None:
    """Check that a seed is valid for NumPy and PyTorch: 0 to 2**32 - 1."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"{what} must lie between 0 and {2**32 - 1}, found {seed}")

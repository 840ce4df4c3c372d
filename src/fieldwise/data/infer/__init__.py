"""A schema guessed from a table."""

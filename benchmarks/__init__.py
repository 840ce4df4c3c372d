"""Measurements, never assertions: `make bench`."""

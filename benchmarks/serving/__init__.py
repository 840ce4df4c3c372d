"""Load tests of the server, against a reference server of the same cascade: `python -m benchmarks.serving`."""

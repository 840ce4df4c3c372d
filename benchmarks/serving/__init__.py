"""The server under load, beside the same cascade written plainly: `python -m benchmarks.serving`."""

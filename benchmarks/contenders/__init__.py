"""What is measured: one module a library. Those of peers run in their own environment, without fieldwise."""

"""A model of what training costs: bytes and seconds by model, rows, ids and processes, past the machines at hand."""

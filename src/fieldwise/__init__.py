"""fieldwise: recommenders built on attention over feature fields."""

"""A simulated log of a film service with known true probabilities."""

"""A simulated log of a film service, of which the true probabilities are known."""

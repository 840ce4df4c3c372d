"""Training: settings, penalty, loop and what a person sees of it."""

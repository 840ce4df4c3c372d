"""Training: settings, optimizers, L2 penalty, training loop and progress display."""

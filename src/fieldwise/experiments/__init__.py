"""Many runs: recorded, compared, tuned."""

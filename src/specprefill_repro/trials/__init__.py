"""Trials: one arm on one prompt in one clean process; and the store that keeps their records."""

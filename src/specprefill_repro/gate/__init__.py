"""The checks that must pass before any number of a model pair counts."""

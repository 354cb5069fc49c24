"""Model weights: where they come from, and the proof that they are what they should be."""

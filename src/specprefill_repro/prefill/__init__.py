"""Prefilling with MLX: dense, speculative, and with randomly chosen chunks."""

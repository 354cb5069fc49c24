"""Claims, and what the estimates say about each. Imports neither mlx nor mlx_lm."""

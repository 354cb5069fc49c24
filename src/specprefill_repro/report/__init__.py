"""The report: one HTML file that a reader can check, and its machine-readable twins. Imports neither mlx nor mlx_lm."""

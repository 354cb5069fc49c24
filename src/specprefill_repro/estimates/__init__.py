"""From records to numbers with intervals. Imports neither mlx nor mlx_lm, so that anybody can recompute them."""

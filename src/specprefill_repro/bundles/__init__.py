"""Bundles: one report with all that it rests on, in one file that anybody can check."""

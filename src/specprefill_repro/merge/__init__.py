"""Merge: one page over the reports of many machines."""

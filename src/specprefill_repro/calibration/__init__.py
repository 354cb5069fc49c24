"""Holds the whole method against machines whose truth is known, and says how often it errs."""

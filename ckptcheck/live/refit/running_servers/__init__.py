"""Compares servers that are already running (`refit --attach`)."""

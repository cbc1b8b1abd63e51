"""Compares servers that are already running (`attach`)."""

"""Runs every check that a job can have before it starts, the cheapest first, within a deadline."""

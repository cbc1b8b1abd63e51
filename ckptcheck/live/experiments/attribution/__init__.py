"""Finds out why trainer and engine differ, by experiments, cheapest first, each of which removes one possible cause."""

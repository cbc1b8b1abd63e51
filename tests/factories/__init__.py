"""Builds the evidence that tests look at."""

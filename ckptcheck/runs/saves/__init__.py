"""Compares the saves of one training run with each other: what should move from save to save, and what should agree."""

"""Compares two sets of weights: matches their tensors, finds where they differ, and names the cause."""

"""Compares the stored tensors with those that the model has, and names each difference by its cause."""

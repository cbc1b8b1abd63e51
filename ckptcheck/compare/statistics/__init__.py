"""Compares samples of weights, plain or dequantized, with those of the sibling layers."""

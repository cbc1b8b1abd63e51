"""Quantized weights: how each stored format is read, dequantized, and compared with the dense weight."""

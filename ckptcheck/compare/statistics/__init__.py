"""Compares samples of quantized weights, dequantized, with what trained weights look like and with their siblings."""

"""The pictures of a scan: bytes of the files, values by layer, norms, quantization, rows of the vocabulary."""

"""How a checkpoint is quantized: what its configs declare, and what its tensors show."""

"""NeMo-RL's table of lengths, data, decoding and batches, measured on real engines and trainers."""

"""Compares what the modules of a model put out on two sides: where they part, and how the outputs are related there."""

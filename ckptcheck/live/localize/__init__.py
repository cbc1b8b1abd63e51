"""Finds the first module whose output differs between two sides: compares the activations of one prompt, point by point."""

"""Where two sides first compute something else: activations of one prompt, point by point."""

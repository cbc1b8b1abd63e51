"""The read model: what a checkpoint says about itself, read without torch and without trusting it."""

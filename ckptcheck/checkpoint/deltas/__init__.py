"""Reads deltas, the files that say what an update changed in a checkpoint, and applies a chain of them to its base."""

"""Composes configurations as Hydra 1.3 does: defaults lists, groups, packages and overrides. It instantiates nothing."""

"""Faults of the machine while a command runs."""

"""Follows a Python script without running it: its values, expressions, calls and statements."""

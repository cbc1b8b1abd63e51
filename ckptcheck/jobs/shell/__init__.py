"""Reads shell scripts without running them: words, expansions, and conditions that the script itself decides."""

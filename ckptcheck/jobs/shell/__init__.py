"""Reads shell scripts: words, expansions and conditions, as far as the script itself decides them. Nothing is run."""

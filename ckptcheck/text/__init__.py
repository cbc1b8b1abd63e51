"""Wording of numbers and lists, and files written whole."""

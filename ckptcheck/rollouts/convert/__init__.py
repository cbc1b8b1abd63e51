"""Converts the files in which frameworks and engines store rollouts."""

from ckptcheck.rollouts.convert.detect import convert, files, list_formats

__all__ = ["convert", "files", "list_formats"]

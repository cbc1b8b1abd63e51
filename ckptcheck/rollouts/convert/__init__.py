"""Converts the files in which frameworks and engines store rollouts."""

from ckptcheck.rollouts.convert.detect import KINDS, convert, files

__all__ = ["KINDS", "convert", "files"]

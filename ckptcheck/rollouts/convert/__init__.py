"""Takes over the files in which frameworks and engines keep rollouts."""

from ckptcheck.rollouts.convert.detect import KINDS, convert, files

__all__ = ["KINDS", "convert", "files"]

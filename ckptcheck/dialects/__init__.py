"""What each consumer makes of a checkpoint's ignore and target lists: the same list means different things to each."""

from ckptcheck.dialects.base import Module, Verdict
from ckptcheck.dialects.judgement import DIALECTS, Judgement, judge_all

__all__ = ["DIALECTS", "Judgement", "Module", "Verdict", "judge_all"]

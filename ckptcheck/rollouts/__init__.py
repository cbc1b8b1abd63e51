"""Rollouts as evidence: tokens, and the logprobs that an engine, a trainer and a reference model gave them."""

from ckptcheck.rollouts.build import Rollout, build_rollouts
from ckptcheck.rollouts.files import read_rollouts, write_rollouts
from ckptcheck.rollouts.lines import read_lines, write_lines
from ckptcheck.rollouts.metadata import Metadata, OmittedSequence, SamplingInfo, ScorerInfo
from ckptcheck.rollouts.rollouts import Rollouts

__all__ = [
    "Metadata",
    "OmittedSequence",
    "Rollout",
    "Rollouts",
    "SamplingInfo",
    "ScorerInfo",
    "build_rollouts",
    "read_lines",
    "read_rollouts",
    "write_lines",
    "write_rollouts",
]

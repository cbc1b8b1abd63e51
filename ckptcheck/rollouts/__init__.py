"""Rollouts as evidence: tokens, and the logprobs that an engine, a trainer and a reference model gave them."""

from ckptcheck.rollouts.build import Rollout, gathered
from ckptcheck.rollouts.files import read, write
from ckptcheck.rollouts.lines import read_lines, write_lines
from ckptcheck.rollouts.metadata import LeftOut, Metadata, Sampling, Side
from ckptcheck.rollouts.rollouts import Rollouts

__all__ = [
    "LeftOut",
    "Metadata",
    "Rollout",
    "Rollouts",
    "Sampling",
    "Side",
    "gathered",
    "read",
    "read_lines",
    "write",
    "write_lines",
]

"""How far two sets of logprobs of the same tokens are apart, by the definitions that trainers log. numpy only."""

from ckptcheck.metrics.floor import Floor
from ckptcheck.metrics.gap import Gap, Place, gap, mean_of_directions

__all__ = ["Floor", "Gap", "Place", "gap", "mean_of_directions"]

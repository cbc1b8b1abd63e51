"""Finds value projections that belong to the output projection of another layer.

Value channel j goes with column j of the output projection, and training changes the norms of both together (see
`exchanged_projections`). Heads differ as wholes, and alike in all layers, so their means are taken out: what is left of two layers
has nothing to do with each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.channel_profiles import clip_profile, correlate_profiles, take_profile
from ckptcheck.values.detectors.exchanged_projections import Block, find_head_width, iter_blocks, measure_partner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

AGREES, HARDLY_AGREES = 0.35, 0.2
"""Correlation of both values with the other layer's outputs, at least, and of both with their own, at most."""
MIN_LAYERS = 4


@dataclass(frozen=True)
class ExchangedValues:
    """Value or output projections of two layers that hold each other's weights."""

    values: tuple[str, str]
    outputs: tuple[str, str]
    crossed: float
    """The lower correlation of one layer's values with the other's outputs."""
    own: float
    """The higher correlation of a layer's values with its own outputs."""


def find_exchanged_values(ckpt: Checkpoint) -> list[ExchangedValues]:
    """Return the pairs of layers whose value, or output, projections hold each other's weights.

    It rests on the samples of the value pass, and reads what `find_exchanged_projections` reads. Raises Skip if a file shrank since
    its values were read, OSError if reading fails.
    """
    kinds: dict[tuple[str, str, str], list[Block]] = {}
    for stack in ckpt.layout.stacks.values():
        for block in iter_blocks(ckpt, stack):
            if block.query is not None:
                kinds.setdefault(block.kind, []).append(block)
    found = []
    for blocks in kinds.values():
        if len(blocks) < MIN_LAYERS:
            continue
        values = [_centre_heads(ckpt, block, ckpt.values.samples[block.second.name].rows) for block in blocks]
        outputs = [_centre_heads(ckpt, block, measure_partner(ckpt, block)) for block in blocks]
        own = [correlate_profiles(*pair) for pair in zip(values, outputs, strict=True)]
        doubtful = [place for place in range(len(blocks)) if own[place] <= HARDLY_AGREES]
        for first, second in combinations(doubtful, 2):
            crossed = min(
                correlate_profiles(values[first], outputs[second]), correlate_profiles(values[second], outputs[first])
            )
            if crossed >= AGREES:
                pair = blocks[first], blocks[second]
                found.append(
                    ExchangedValues(
                        (pair[0].second.name, pair[1].second.name),
                        (pair[0].last.name, pair[1].last.name),
                        crossed,
                        max(own[first], own[second]),
                    )
                )
    return found


def _centre_heads(ckpt: Checkpoint, block: Block, squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the profile of the sampled channels of the values, less the mean of each head."""
    import numpy as np

    profile = take_profile(squares)
    head = choose_channels(block.first.shape[0]) // find_head_width(ckpt, block)
    _, place = np.unique(head, return_inverse=True)
    return clip_profile(profile - (np.bincount(place, profile) / np.bincount(place))[place])

"""Finds value projections that belong to the output projection of another layer.

Value channel j goes with column j of the output projection, and training changes the norms of both together (see
`exchanged_projections`). Heads differ from each other in the same way in all layers, so the mean of each head is
subtracted: the remainders of two layers are unrelated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.channel_profiles import clip_profile, take_profile
from ckptcheck.values.detectors.exchanged_projections import Block, find_head_width, iter_blocks, measure_partner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

AGREES, HARDLY_AGREES = 0.35, 0.2
"""Lower bound for the correlation of both values with the other layer's outputs, and upper bound for the correlation
with their own."""
MIN_LAYERS, MAX_LAYERS = 4, 1024
"""Layers that are compared with each other: fewer do not show what is usual, and more make the table of all pairs
large."""


class ExchangedValues(msgspec.Struct, frozen=True):
    """Value or output projections of two layers that hold each other's weights."""

    values: tuple[str, str]
    outputs: tuple[str, str]
    crossed: float
    """The lower correlation of one layer's values with the other's outputs."""
    own: float
    """The higher correlation of a layer's values with its own outputs."""


def find_exchanged_values(ckpt: Checkpoint) -> list[ExchangedValues]:
    """Return the pairs of layers whose value, or output, projections hold each other's weights.

    It uses the samples of the value pass, and reads the same as `find_exchanged_projections`. Raises Skip if a file
    shrank since its values were read, OSError if reading fails.
    """
    import numpy as np

    kinds: dict[tuple[str | int, ...], list[Block]] = {}
    for stack in ckpt.layout.stacks.values():
        for block in iter_blocks(ckpt, stack):
            if block.query is not None:
                kinds.setdefault((*block.kind, block.first.shape[0]), []).append(block)
    found = []
    for blocks in kinds.values():
        if not MIN_LAYERS <= len(blocks) <= MAX_LAYERS:
            continue
        values = [_centre_heads(ckpt, block, ckpt.values.samples[block.second.name].rows) for block in blocks]
        outputs = [_centre_heads(ckpt, block, measure_partner(ckpt, block)) for block in blocks]
        correlations = _scale_profiles(values) @ _scale_profiles(outputs).T
        own = correlations.diagonal()
        crossed = np.minimum(correlations, correlations.T)
        doubtful = own <= HARDLY_AGREES
        exchanged = np.triu(crossed >= AGREES, 1) & doubtful[:, None] & doubtful
        for first, second in np.argwhere(exchanged).tolist():
            pair = blocks[first], blocks[second]
            found.append(
                ExchangedValues(
                    (pair[0].second.name, pair[1].second.name),
                    (pair[0].last.name, pair[1].last.name),
                    float(crossed[first, second]),
                    float(max(own[first], own[second])),
                )
            )
    return found


def _scale_profiles(profiles: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return [profile, channel], each profile with length one: their products are correlations. Zeros stay zeros."""
    import numpy as np

    stacked = np.stack(profiles)
    stacked -= stacked.mean(axis=1, keepdims=True)
    lengths = np.sqrt(np.einsum("pc,pc->p", stacked, stacked))
    scaled: NDArray[np.float64] = stacked / np.where(lengths, lengths, 1.0)[:, None]
    return scaled


def _centre_heads(ckpt: Checkpoint, block: Block, squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the profile of the sampled channels of the values, less the mean of each head."""
    import numpy as np

    profile = take_profile(squares)
    head = choose_channels(block.first.shape[0]) // find_head_width(ckpt, block)
    _, place = np.unique(head, return_inverse=True)
    return clip_profile(profile - (np.bincount(place, profile) / np.bincount(place))[place])

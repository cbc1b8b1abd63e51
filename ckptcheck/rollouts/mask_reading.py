"""Holds the response mask to what the engine drew: where it begins and ends, and whether it is inverted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts

NEARLY_ALL = 0.9
LEAST_EDGES = 4
"""Fewest stretches of the mask whose edge is off by the same number of tokens."""
EARLY = 0.75
"""Share of the stretches that begin before what the engine drew. It is exactly sure of some first tokens as well."""
WIDEST_EDGE = 16
"""Most tokens by which an edge is off: more are a turn that was left out on purpose."""


@dataclass(frozen=True)
class MaskReading:
    """What the response mask covers and leaves out. Both int64, ascending."""

    prompt_tokens: NDArray[np.int64]
    """Indices of the tokens of prompts under the mask."""
    drawn_outside: NDArray[np.int64]
    """Indices of the tokens after their prompt, outside of the mask, with a logprob of the engine, in sequences that train."""


def read_mask(rollouts: Rollouts) -> MaskReading:
    """Read the recorded response mask, which the rollouts have."""
    import numpy as np

    in_prompts, outside = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for block in rollouts.blocks():
        mask, after = block.response_mask, block.after_prompt
        differing = np.flatnonzero(mask != after)
        if not len(differing):
            continue
        in_prompts.append(differing[mask[differing]] + block.token_slice.start)
        left_out = differing[after[differing]]
        if "engine_logprobs" not in rollouts or not len(left_out):
            continue
        logprobs = block.column("engine_logprobs")[left_out]
        trained = np.bincount(block.owners[mask] - block.first, minlength=block.last - block.first) > 0
        drawn = np.isfinite(logprobs) & (logprobs != 0) & trained[block.owners[left_out] - block.first]
        outside.append(left_out[drawn] + block.token_slice.start)
    return MaskReading(np.concatenate(in_prompts), np.concatenate(outside))


@dataclass(frozen=True)
class MaskFault:
    """How the mask lies to the tokens that the engine drew."""

    kind: str
    """`inverted`, `late`, `early` or `short`."""
    tokens: int
    """Of an inverted mask, the tokens that were drawn and are left out; else by how many tokens each edge is off."""
    edges: int
    """Number of stretches of the mask that are off; of an inverted mask, the tokens under it that were never drawn."""
    stretches: int
    """Number of stretches of the mask."""
    first: int
    """Index of the first token that was drawn and is left out."""
    token: int | None = None
    """The id that is left out each time; None: several."""


def find_mask_fault(rollouts: Rollouts, reading: MaskReading, undrawn: NDArray[np.int64]) -> MaskFault | None:
    """Return how the mask is wrong as a whole; None where it is right, or only covers tokens that were never drawn.

    undrawn: indices of the tokens under the mask that the engine never drew, those of prompts included.
    """
    import numpy as np

    drawn = reading.drawn_outside
    if not len(drawn):
        return None
    mask = np.asarray(rollouts.columns["response_mask"]) != 0
    left_out = sum(int((block.after_prompt & ~block.response_mask).sum()) for block in rollouts.blocks())
    # an engine is exactly sure of some of the tokens that it draws
    if len(undrawn) >= NEARLY_ALL * np.count_nonzero(mask) and 2 * len(drawn) >= left_out:
        return MaskFault("inverted", len(drawn), len(undrawn), 0, int(drawn[0]))
    is_first = np.zeros(len(mask) + 1, bool)
    is_first[rollouts.starts] = True
    is_begin = mask & ~(np.concatenate([[False], mask[:-1]]) & ~is_first[:-1])
    begins, ends = (
        np.flatnonzero(is_begin),
        np.flatnonzero(mask & ~(np.concatenate([mask[1:], [False]]) & ~is_first[1:])) + 1,
    )
    owners = np.searchsorted(rollouts.starts, drawn, "right") - 1
    # between which stretches each token lies, and how far from them; beyond WIDEST_EDGE where there is none in its sequence
    after = np.searchsorted(begins, drawn, "right")
    beyond = np.concatenate([begins, [len(mask) + WIDEST_EDGE]])[after]
    to_next = np.where(beyond < rollouts.starts[owners + 1], beyond - drawn, WIDEST_EDGE + 1)
    last = np.concatenate([[-WIDEST_EDGE - 1], ends])[after]
    from_last = np.where(last > rollouts.starts[owners], drawn - last + 1, WIDEST_EDGE + 1)
    gaps = np.flatnonzero(np.diff(after, prepend=-1))
    sizes = np.diff(gaps, append=len(drawn))
    for kind, distances in (("late", to_next), ("short", from_last)):
        farthest = np.maximum.reduceat(distances, gaps)
        # single tokens that are left out of a stretch lie at both edges
        inner = np.maximum.reduceat(np.maximum(to_next, from_last), gaps) <= sizes
        near = farthest[~inner & (farthest <= WIDEST_EDGE)]
        if len(near) < max(LEAST_EDGES, len(begins) / 2) or len(near) < NEARLY_ALL * len(gaps):
            continue
        width = int(near.max())
        same = np.flatnonzero(~inner & (farthest == width))
        if 2 * len(same) < len(near):
            continue
        first = drawn[gaps[same]]
        ids = np.unique(rollouts.tokens[first])
        if kind == "short" and np.count_nonzero(rollouts.columns["engine_logprobs"][begins] == 0) >= EARLY * len(
            begins
        ):
            kind = "early"
        token = int(ids[0]) if len(ids) == 1 and width == 1 else None
        return MaskFault(kind, width, len(near), len(begins), int(first[0]), token)
    return None

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
    """Indices of the tokens outside of the mask, in sequences that train, with a logprob of the engine: those after their prompt,
    and those at the end of a prompt whose beginning has none."""


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
    outside.append(_find_drawn_before(rollouts))
    return MaskReading(np.concatenate(in_prompts), np.sort(np.concatenate(outside)))


def _find_drawn_before(rollouts: Rollouts) -> NDArray[np.int64]:
    """Return the indices of the last tokens of prompts that have a logprob of the engine, where their first ones have none.

    A converter of a format that names no prompt takes the tokens before the mask for it.
    """
    import numpy as np

    found = [np.zeros(0, np.int64)]
    engine = rollouts.columns.get("engine_logprobs")
    numbers = np.flatnonzero(rollouts.prompt_lengths >= 3)
    if engine is None or not len(numbers):
        return found[0]
    starts, ends = rollouts.starts[numbers], rollouts.starts[numbers] + rollouts.prompt_lengths[numbers]
    is_mixed = (engine[ends - 1] != 0) & np.isfinite(engine[ends - 1]) & (engine[starts + 1] == 0)
    if np.count_nonzero(is_mixed) < max(LEAST_EDGES, len(numbers) / 2):
        return found[0]
    mask = np.asarray(rollouts.columns["response_mask"]) != 0
    trains = np.diff(np.concatenate([[0], np.cumsum(mask)])[rollouts.starts]) > 0
    is_mixed &= trains[numbers]
    for distance in range(1, WIDEST_EDGE + 2):
        places = (ends - distance)[is_mixed & (ends - distance > starts)]
        found.append(places[(engine[places] != 0) & np.isfinite(engine[places]) & ~mask[places]])
    return np.concatenate(found)


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
        if kind == "short":
            # a framework that keeps the mask of the response alone cannot say that it begins in the prompt
            owners = np.searchsorted(rollouts.starts, begins, "right") - 1
            free = begins[begins != rollouts.starts[owners] + rollouts.prompt_lengths[owners]]
            if len(free) and np.count_nonzero(rollouts.columns["engine_logprobs"][free] == 0) >= EARLY * len(free):
                kind = "early"
        token = int(ids[0]) if len(ids) == 1 and width == 1 else None
        return MaskFault(kind, width, len(near), len(begins), int(first[0]), token)
    return None

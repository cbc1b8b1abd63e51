"""Which tokens were scored, given which tokens: the slips of harnesses and templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptcheck.attribution.rung import Experiment
from ckptcheck.attribution.state import State
from ckptcheck.attribution.world import Unable, World

if TYPE_CHECKING:
    from numpy.typing import NDArray


def unscored(world: World, state: State) -> Iterator[Experiment]:
    """Leave out tokens for which a side has exactly 0: nobody drew them, as the answers of tools."""
    import numpy as np

    empty = state.mask & ((state.q == 0) | (state.p == 0)) & (state.q != state.p)
    rest = state.mask & ~empty
    if not empty.any() or not rest.any():
        return
    sides = [side for side, values in (("engine", state.q), ("trainer", state.p)) if np.any(values[empty] == 0)]
    yield Experiment(
        f"without {int(empty.sum()):,} tokens whose logprob is exactly 0",
        f"the {' and the '.join(sides)} did not score them, and the response mask counts them",
        "mask tokens that the engine did not draw: prompts, answers of tools, padding",
        replace(state, mask=rest),
        rest=True,
    )


def moved(world: World, state: State) -> Iterator[Experiment]:
    """Move the trainer's logprobs by a token, within each sequence."""
    import numpy as np

    for by in (-1, 1):
        p = np.full_like(state.p, np.nan)
        inside = np.zeros_like(state.mask)
        for number in range(world.rollouts.number):
            where = world.rollouts.sequence(number)
            here = slice(where.start + max(0, -by) + 1, where.stop - max(0, by))
            if here.stop > here.start:
                p[here] = state.p[here.start + by : here.stop + by]
                inside[here] = True
        mask = state.mask & inside & np.roll(state.mask, -by)
        if mask.any():
            yield Experiment(
                f"with the trainer's logprobs moved by {by:+d}",
                "logprobs of one side belong to the next token"
                if by > 0
                else "logprobs of one side belong to the token before",
                "logits at position i are of token i + 1: see where they are gathered",
                replace(state, p=p, mask=mask),
            )


def first(world: World, state: State) -> Iterator[Experiment]:
    """Drop the first token of each sequence, double it, or put back what may have been dropped."""
    rollouts = world.rollouts
    firsts = {int(rollouts.tokens[rollouts.sequence(number).start]) for number in range(rollouts.number)}
    same = firsts.pop() if len(firsts) == 1 else None
    tries: list[tuple[str, str, dict[str, Any]]] = []
    if same is not None:
        tries.append(("without the first token", "the engine was not given the first token (BOS)", {"drop": 1}))
        tries.append(("with the first token twice", "the engine was given BOS twice", {"prepend": (same,)}))
    if (bos := world.bos) is not None and bos != same:
        tries.append(
            (
                "with BOS before it",
                "the engine puts BOS before the prompt, and the trainer's has none",
                {"prepend": (bos,)},
            )
        )
    for words, cause, edit in tries:
        change = replace(state.trainer, **edit)
        yield Experiment(
            words,
            cause,
            "render and tokenise the prompt once, and hand ids to both sides",
            _scored(world, state, change),
        )


def context(world: World, state: State) -> Iterator[Experiment]:
    """Let the trainer see no more tokens than an engine that cuts off the beginning."""
    import numpy as np

    lengths = np.diff(world.rollouts.starts)
    most = int(lengths.max()) if len(lengths) else 0
    known = world.rollouts.metadata.max_model_len
    for limit in sorted({known} if known and known < most else _powers(most)):
        change = replace(state.trainer, context=limit)
        yield Experiment(
            f"with the last {limit} tokens only",
            "the engine does not see what lies further back: a context cut off, or a sliding window",
            "see max_model_len, truncate_prompt_tokens and sliding_window on the engine's side",
            _scored(world, state, change),
            fitted=limit != known,
        )


def _powers(most: int) -> set[int]:
    return {1 << power for power in range(4, 18) if 1 << power < most}


def _scored(world: World, state: State, change: Any) -> State:
    import numpy as np

    p: NDArray[Any] = world.trainer(change)
    mask = state.mask & np.isfinite(p)
    if not mask.any():
        raise Unable("no token would be left")
    return replace(state, p=p, mask=mask, trainer=change)

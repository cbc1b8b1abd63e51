"""Changes which tokens are scored and from which context: here are the usual faults of harnesses and chat templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.backend import Backend
from ckptcheck.live.experiments.attribution.experiment import SearchState, Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray


def unscored(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Leave out tokens for which a side has a logprob of exactly 0: no model drew them (outputs of tools, for example)."""
    import numpy as np

    is_zero = state.mask & ((state.q == 0) | (state.p == 0)) & (state.q != state.p)
    remaining = state.mask & ~is_zero
    if not is_zero.any() or not remaining.any():
        return
    sides = [side for side, values in (("engine", state.q), ("trainer", state.p)) if np.any(values[is_zero] == 0)]
    yield Trial(
        f"without {int(is_zero.sum()):,} tokens whose logprob is exactly 0",
        f"the {' and the '.join(sides)} did not score them, and the response mask counts them",
        "mask tokens that the engine did not draw: prompts, answers of tools, padding",
        replace(state, mask=remaining),
        only_drops_tokens=True,
    )


def moved(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Shift the trainer's logprobs by a token, within each sequence."""
    import numpy as np

    for shift in (-1, 1):
        p = np.full_like(state.p, np.nan)
        inside = np.zeros_like(state.mask)
        for number in range(backend.rollouts.sequence_count):
            span = backend.rollouts.sequence(number)
            target = slice(span.start + max(0, -shift) + 1, span.stop - max(0, shift))
            if target.stop > target.start:
                p[target] = state.p[target.start + shift : target.stop + shift]
                inside[target] = True
        mask = state.mask & inside & np.roll(state.mask, -shift)
        if mask.any():
            yield Trial(
                f"with the trainer's logprobs moved by {shift:+d}",
                "one side assigns the next token's logprobs"
                if shift > 0
                else "one side assigns the previous token's logprobs",
                "logits at position i are of token i + 1: see where they are gathered",
                replace(state, p=p, mask=mask),
            )


def first(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Drop the first token of each sequence, double it, or prepend the BOS that a side may have dropped."""
    rollouts = backend.rollouts
    first_tokens = {int(rollouts.tokens[rollouts.sequence(number).start]) for number in range(rollouts.sequence_count)}
    shared_token = first_tokens.pop() if len(first_tokens) == 1 else None
    changes: list[tuple[str, str, dict[str, Any]]] = []
    if shared_token is not None:
        changes.append(("without the first token", "the engine was not given the first token (BOS)", {"drop": 1}))
        changes.append(("with the first token twice", "the engine was given BOS twice", {"prepend": (shared_token,)}))
    if (bos := backend.bos) is not None and bos != shared_token:
        changes.append(
            (
                "with BOS before it",
                "the engine puts BOS before the prompt, and the trainer's has none",
                {"prepend": (bos,)},
            )
        )
    for description, cause, edit in changes:
        change = replace(state.trainer, **edit)
        yield Trial(
            description,
            cause,
            "render and tokenise the prompt once, and hand ids to both sides",
            _score_changed(backend, state, change),
        )


def context(backend: Backend, state: SearchState) -> Iterator[Trial]:
    """Limit the trainer's context, as an engine does that cuts off the beginning."""
    import numpy as np

    lengths = np.diff(backend.rollouts.starts)
    longest = int(lengths.max()) if len(lengths) else 0
    max_model_len = backend.rollouts.metadata.max_model_len
    for limit in sorted(
        {max_model_len} if max_model_len and max_model_len < longest else _powers_of_two_below(longest)
    ):
        change = replace(state.trainer, context=limit)
        yield Trial(
            f"with the last {limit} tokens only",
            "the engine does not see what lies further back: a context cut off, or a sliding window",
            "see max_model_len, truncate_prompt_tokens and sliding_window on the engine's side",
            _score_changed(backend, state, change),
            is_fitted=limit != max_model_len,
        )


def _powers_of_two_below(limit: int) -> set[int]:
    """Return the powers of two from 16 to 2**17 that are below the limit."""
    return {1 << power for power in range(4, 18) if 1 << power < limit}


def _score_changed(backend: Backend, state: SearchState, change: Any) -> SearchState:
    """Return the state with the trainer's logprobs under a `TrainerChange`. Raises Skip if no token remains."""
    import numpy as np

    p: NDArray[Any] = backend.trainer(change)
    mask = state.mask & np.isfinite(p)
    if not mask.any():
        raise Skip("no token would be left")
    return replace(state, p=p, mask=mask, trainer=change)

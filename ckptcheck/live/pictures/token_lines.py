"""Draws differences of logprobs token by token, one line for each scoring of the sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckptcheck.linter.pictures import Curves, Series, keep_finite

MOST_TOKENS = 600
"""Tokens that are drawn: the first ones."""


def subtract_logprobs(ones: Iterable[Sequence[float]], others: Iterable[Sequence[float]]) -> list[float]:
    """Return the first less the second, for each token of all sequences, one sequence after the other."""
    return [
        mine - theirs
        for one, other in zip(ones, others, strict=False)
        for mine, theirs in zip(one, other, strict=False)
    ]


def draw_token_lines(
    title: str, caption: str, lines: Mapping[str, Sequence[float]], codes: tuple[str, ...]
) -> Curves | None:
    """Draw name → differences in nats; None without a token. A missing or infinite difference is a gap in the line.

    codes: rules whose findings the lines show.
    """
    longest = min(max(map(len, lines.values()), default=0), MOST_TOKENS)
    if not longest:
        return None
    series = tuple(
        Series(
            name,
            tuple(keep_finite(values[at]) if at < len(values) else None for at in range(longest)),
        )
        for name, values in lines.items()
    )
    return Curves(title, caption, tuple(range(1, longest + 1)), series, "token", "nats", codes=codes)

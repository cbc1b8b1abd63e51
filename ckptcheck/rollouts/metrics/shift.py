"""Finds sequences whose logprobs agree better when one side is shifted, which is a harness's most common mistake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts

SMALL = 0.05
"""Nats: a sequence with a smaller gap is not looked at."""
LEAST = 32
"""Pairs below which a shift fits by chance."""
NEAR = 0.1
"""Nats within which two logprobs agree."""
REMOVED = 0.75
"""Share of the gap, and of the tokens that are not near, that a shift has to remove."""
SAMPLE = 256
"""Most sequences that are looked at, spread over the file."""


@dataclass(frozen=True)
class Shift:
    """A sequence, or several short ones, whose engine's logprobs at i are those of the trainer at i + tokens."""

    sequences: tuple[int, ...]
    begin: int
    """The first position that is shifted; 0: the whole sequence."""
    tokens: int
    pairs: int
    shifted: float
    """Mean |Δ| of the pairs with the shift, in nats."""
    unshifted: float
    """Mean |Δ| of the same tokens of the engine without it."""


@dataclass(frozen=True)
class LackingLists:
    """Sequences whose list of the engine's logprobs has entries for the tokens under the response mask alone."""

    sequences: tuple[int, ...]
    from_prompt: bool
    """Whether the list begins where the sequence does, or at its second token, and not where the response does."""
    tried: int
    """Number of sequences with a gap and LEAST tokens that were tried."""
    pairs: int
    fitting: float
    """Mean |Δ| of the pairs if the list is laid over the tokens under the mask alone, in nats."""
    recorded: float
    """Mean |Δ| of the same tokens as they stand."""


@dataclass(frozen=True)
class ShiftSearch:
    """What a search for shifts found."""

    suspicious: tuple[int, ...]
    """Numbers of the sequences with a gap above SMALL."""
    tried: int
    """How many of them were looked at."""
    shifts: tuple[Shift, ...]


def find_shifts(rollouts: Rollouts, gaps: NDArray[np.float64], known: NDArray[np.bool_] | None = None) -> ShiftSearch:
    """Look for a shift in every sequence with a gap above SMALL.

    gaps: mean |Δ| of each sequence, NaN where nothing was compared. known: tokens that are left out, as their cause is known.
    Short sequences are put together, and tried with a shift by one token.
    """
    import numpy as np

    suspicious = np.flatnonzero(gaps > SMALL)
    sampled = _sample(suspicious)
    shifts: list[Shift] = []
    short: dict[int, list[tuple[NDArray[Any], NDArray[Any]]]] = {-1: [], 1: []}
    short_sequences = []
    for sequence, mask, *sides in _read_sequences(rollouts, sampled):
        usable = mask & np.isfinite(sides[0]) & np.isfinite(sides[1])
        if known is not None:
            usable = usable & ~known[rollouts.sequence(sequence)]
        engine, trainer = (np.where(usable, values, np.nan) for values in sides)
        if np.count_nonzero(np.isfinite(engine)) > LEAST:  # a shift by one leaves a pair less
            found = _search(engine, trainer)
            if found is not None:
                begin, tokens, pairs, shifted, unshifted = found
                shifts.append(Shift((sequence,), begin, tokens, pairs, shifted, unshifted))
        else:
            short_sequences.append(sequence)
            for tokens, parts in short.items():
                parts.append(_align(engine, trainer, tokens))
    for tokens, parts in short.items():
        if parts and (fitting := _judge(*(np.concatenate(side) for side in zip(*parts, strict=True)))) is not None:
            shifts.append(Shift(tuple(short_sequences), 0, tokens, *fitting))
    return ShiftSearch(tuple(suspicious.tolist()), len(sampled), tuple(shifts))


def find_lacking_lists(rollouts: Rollouts, gaps: NDArray[np.float64]) -> LackingLists | None:
    """Find sequences in which each turn is shifted by the tokens before it that are not under the response mask; None without one.

    gaps: mean |Δ| of each sequence, NaN where nothing was compared.
    """
    import numpy as np

    tried = 0
    found: dict[bool, list[tuple[int, NDArray[Any], NDArray[Any]]]] = {False: [], True: []}
    for sequence, mask, engine, trainer in _read_sequences(rollouts, _sample(np.flatnonzero(gaps > SMALL))):
        prompt = int(rollouts.prompt_lengths[sequence])
        places = np.flatnonzero(mask[prompt:]) + prompt
        if len(places) < LEAST:
            continue
        tried += 1
        for begin in (prompt, 0, 1):
            if begin + len(places) == len(mask):
                continue  # as the list stands
            dense = np.full(len(places), np.nan)
            laid = engine[begin : begin + len(places)]
            dense[: len(laid)] = laid
            with np.errstate(invalid="ignore"):
                fitting, recorded = np.abs(dense - trainer[places]), np.abs(engine[places] - trainer[places])
            both = np.isfinite(fitting) & np.isfinite(recorded)
            if _judge(fitting[both], recorded[both]) is not None:
                found[begin < prompt].append((sequence, fitting[both], recorded[both]))
                break
    from_prompt = len(found[True]) > len(found[False])
    if not found[from_prompt]:
        return None
    sequences, *sides = zip(*found[from_prompt], strict=True)
    fitting, recorded = (np.concatenate(side) for side in sides)
    means = float(fitting.mean()), float(recorded.mean())
    return LackingLists(sequences, from_prompt, tried, len(fitting), *means)


def _sample(sequences: NDArray[np.int64]) -> list[int]:
    import numpy as np

    places = np.linspace(0, len(sequences) - 1, min(SAMPLE, len(sequences))).astype(int)
    sampled: list[int] = sequences[places].tolist()
    return sampled


def _read_sequences(
    rollouts: Rollouts, sequences: list[int]
) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield number, mask of the compared tokens, and engine's and trainer's logprobs of some sequences. sequences: ascending."""
    import numpy as np

    wanted = iter(sequences)
    sequence = next(wanted, None)
    for block in rollouts.blocks():
        while sequence is not None and sequence < block.last:
            inside = rollouts.sequence(sequence)
            mask = block.mask[inside.start - block.token_slice.start : inside.stop - block.token_slice.start]
            engine, trainer = (
                rollouts.columns[f"{side}_logprobs"][inside].astype(np.float64) for side in ("engine", "trainer")
            )
            yield sequence, mask, engine, trainer
            sequence = next(wanted, None)


def _search(engine: NDArray[Any], trainer: NDArray[Any]) -> tuple[int, int, int, float, float] | None:
    """Return (first position, tokens, pairs, gap, gap without it) of the shift that explains a sequence, or its tail."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        off = np.flatnonzero(np.abs(engine - trainer) > NEAR)
    for begin in dict.fromkeys((0, int(off[0]) if len(off) else 0)):
        q, p = engine[begin:], trainer[begin:]
        for tokens in dict.fromkeys((-1, 1, _guess_shift(q, p))):
            found = _judge(*_align(q, p, tokens)) if tokens else None
            if found is not None and 4 * found[0] >= np.count_nonzero(np.isfinite(q)):
                return begin, tokens, *found
    return None


def _guess_shift(engine: NDArray[Any], trainer: NDArray[Any]) -> int:
    """Return the shift at which the two sides correlate best. Roots keep single unlikely tokens from deciding."""
    import numpy as np

    size = 1 << (2 * len(engine) - 1).bit_length()
    spectra = []
    for values in (engine, trainer):
        root = np.sqrt(np.abs(values))
        spectra.append(np.fft.rfft(np.nan_to_num(root - np.nanmean(root)), size))
    correlation = np.fft.irfft(spectra[0].conj() * spectra[1], size)
    correlation[0] = -np.inf
    best = int(correlation.argmax())
    return best if best < size // 2 else best - size


def _align(engine: NDArray[Any], trainer: NDArray[Any], tokens: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return |Δ| with and without the shift, of the tokens of the engine that have a partner in both."""
    import numpy as np

    low, high = max(0, -tokens), min(len(engine), len(engine) - tokens)
    if low >= high:
        return np.zeros(0), np.zeros(0)
    shifted = np.abs(engine[low:high] - trainer[low + tokens : high + tokens])
    unshifted = np.abs(engine[low:high] - trainer[low:high])
    both = np.isfinite(shifted) & np.isfinite(unshifted)
    return shifted[both], unshifted[both]


def _judge(shifted: NDArray[Any], unshifted: NDArray[Any]) -> tuple[int, float, float] | None:
    """Return (pairs, gap, gap without the shift) where the shift removes most of it; None else.

    The number of tokens counts as well as the mean, which one unlikely token can decide.
    """
    import numpy as np

    if len(shifted) < LEAST:
        return None
    means = float(shifted.mean()), float(unshifted.mean())
    off = np.count_nonzero(shifted > NEAR), np.count_nonzero(unshifted > NEAR)
    left = 1 - REMOVED
    return (len(shifted), *means) if means[0] < left * means[1] and off[0] <= left * off[1] and off[1] else None

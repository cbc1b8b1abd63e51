"""Finds what nearly all tokens, or sequences, that two sides do not agree on have in common, and few others do.

A trait is a fact that a file records of a token or a sequence: its place, its id, its weight version, its experts, its prompt. The
bad ones propose the traits (the most frequent id, the smallest range of places that holds nearly all of them), and only those are
counted over all tokens. A trait counts where its number of bad ones has a probability below CHANCE under independence, by
Chernoff's bound exp(-n KL(share of bad ones ‖ share of all)) times the number of traits of its kind (Bonferroni).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil, inf, log
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts

LEAST = 8
"""Fewest bad tokens that are searched for a trait."""
LEVELS = (0.5, 1.0, 2.0)
"""|Δ| in nats above which tokens are bad. Many tokens of a noisy engine are above the lowest one, and have nothing in common."""
NEARLY_ALL = 0.9
FEW = 0.2
"""Largest share of the others that may have the trait, and of all tokens that may be bad."""
HIT = 0.25
"""Least share of the tokens with the trait that are bad, where nothing else says that the gap is too large."""
CHANCE = 1e-6
CHANCE_OF_SEQUENCES = 1e-3
"""The same where the sequences are a finding already, and the trait only says where to look."""
NEAREST = 64
"""Most tokens of "the first" and "the last" ones."""
SAMPLE = 4096
"""Tokens that are tried before all are counted."""
MOST_EXPERTS = 1 << 12
"""Most experts of a layer. A damaged record names any number."""
BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Sizes of blocks of caches and chunks of prefills: vLLM's block_size is 16 by default, its chunks are powers of two."""
STRIDES = range(2, 17)
"""Numbers of engines or ranks to which sequences are dealt in turn."""


class Places:
    """Facts on some tokens. Each is an array of one number a token."""

    def __init__(self, rollouts: Rollouts, indices: NDArray[np.int64], turns: NDArray[np.int64]) -> None:
        self.rollouts, self.indices, self._turns = rollouts, indices, turns

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """Number of the sequence."""
        import numpy as np

        return np.asarray(np.searchsorted(self.rollouts.starts, self.indices, "right") - 1)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Position in the sequence, from 0."""
        return self.indices - self.rollouts.starts[self.owners]

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Place in the response, from 0."""
        return self.positions - self.rollouts.prompt_lengths[self.owners]

    @cached_property
    def from_end(self) -> NDArray[np.int64]:
        """Place before the end of the sequence; 0: its last token."""
        return self.rollouts.starts[self.owners + 1] - 1 - self.indices

    @cached_property
    def in_turn(self) -> NDArray[np.int64]:
        """Place in the stretch of the response mask, of those that follow an earlier stretch; NEAREST in the first."""
        import numpy as np

        begins = self._turns[np.maximum(np.searchsorted(self._turns, self.indices, "right") - 1, 0)]
        first = self._turns[
            np.minimum(np.searchsorted(self._turns, self.rollouts.starts[self.owners]), len(self._turns) - 1)
        ]
        return np.where(begins > first, self.indices - begins, NEAREST)

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        """Token id."""
        return self.rollouts.tokens[self.indices]

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """Number of the span of its weight version; -1: none."""
        import numpy as np

        spans = self.rollouts.columns["version_spans"]
        found = np.searchsorted(spans[:, 0], self.indices, "right") - 1
        return np.where((found >= 0) & (self.indices < spans[np.maximum(found, 0), 1]), found, -1)

    @cached_property
    def versions(self) -> NDArray[np.int64]:
        """Number of its weight version; -1: not known."""
        import numpy as np

        return np.where(self.spans >= 0, self.rollouts.columns["version_spans"][self.spans, 2], -1)

    @cached_property
    def since_version(self) -> NDArray[np.int64]:
        """Place after a change of the weight version within its sequence; a large number before any."""
        import numpy as np

        begins = self.rollouts.columns["version_spans"][:, 0]
        owners = np.searchsorted(self.rollouts.starts, begins, "right") - 1
        is_change = np.concatenate([[False], owners[1:] == owners[:-1]])
        return np.where((self.spans >= 0) & is_change[self.spans], self.indices - begins[self.spans], NEAREST)

    def routing(self, column: str) -> NDArray[Any]:
        """Return the experts of each token, [tokens, layers, k]."""
        return self.rollouts.columns[column][self.indices]


@dataclass(frozen=True)
class Trait:
    """Something that tokens or sequences may have in common."""

    phrase: str
    """What they are, after "are"."""
    hint: str
    test: Callable[[Any], NDArray[np.bool_]]
    """Of `Places`, or of the numbers of sequences → whether each has it."""
    family: int
    """Number of traits of this kind that could have been found."""
    spread: bool = False
    """Whether neighbours in one sequence have it independently of each other."""


@dataclass(frozen=True)
class CommonTrait:
    """A trait with its counts."""

    trait: Trait
    bad: int
    """Number of bad ones that have it."""
    all_bad: int
    others: int
    """Number of the others that have it."""
    all_others: int
    level: float = 0.0
    """Of tokens: |Δ| in nats above which they are bad."""

    @property
    def hit(self) -> float:
        """Share of those with the trait that are bad."""
        return self.bad / (self.bad + self.others)


def find_token_trait(
    rollouts: Rollouts, far: NDArray[np.int64], compared: Callable[[], Iterator[NDArray[np.int64]]]
) -> CommonTrait | None:
    """Return the trait that sets the bad tokens apart best, at the level of |Δ| where it does; None without one.

    far: indices of the tokens on which the sides are more than the lowest of LEVELS apart, ascending. compared: yields the indices
    of all tokens that count, these among them.
    """
    import numpy as np

    if len(far) < LEAST:
        return None
    engine, trainer = (rollouts.columns[f"{side}_logprobs"][far].astype(np.float64) for side in ("engine", "trainer"))
    gap, turns = np.abs(engine - trainer), list_turns(rollouts)
    proposed: list[tuple[Trait, float, int, int, int]] = []
    for level in LEVELS:
        bad = Places(rollouts, far[gap > level], turns)
        if (number := len(bad.indices)) < LEAST:
            break
        sequences = len(np.unique(bad.owners))
        proposed += [
            (trait, level, held, number, number if trait.spread and sequences > 1 else sequences)
            for trait in _propose(bad)
            if (held := int(trait.test(bad).sum())) >= NEARLY_ALL * number
        ]
    sample = np.linspace(0, len(rollouts.tokens) - 1, SAMPLE).astype(np.int64)
    drawn = Places(rollouts, sample[Places(rollouts, sample, turns).places >= 0], turns)
    # what most tokens share is counted no further
    proposed = [each for each in proposed if 2 * int(each[0].test(drawn).sum()) <= max(1, len(drawn.indices))]
    if not proposed:
        return None
    totals, number = [0] * len(proposed), 0
    for indices in compared():
        each = Places(rollouts, indices, turns)
        number += len(indices)
        for place, (trait, *_) in enumerate(proposed):
            totals[place] += int(trait.test(each).sum())
    found = [
        (_score(independent, held / bad, total / number, len(LEVELS) * trait.family), -level, -total,
         CommonTrait(trait, held, bad, total - held, number - bad, level))
        for (trait, level, held, bad, independent), total in zip(proposed, totals, strict=True)
        if bad <= FEW * number
    ]  # fmt: skip
    score, *_, best = max(found, key=lambda each: each[:3], default=(0.0, None))
    return best if best is not None and score > -log(CHANCE) and best.others <= FEW * best.all_others else None


def find_sequence_trait(rollouts: Rollouts, bad: NDArray[np.int64], judged: NDArray[np.int64]) -> CommonTrait | None:
    """Return the trait that sets the bad sequences apart best; None without one. bad, judged: their numbers, ascending."""
    if len(bad) < 3 or 2 * len(bad) > len(judged):
        return None
    found = []
    for trait in _propose_of_sequences(rollouts, bad, judged):
        held, total = int(trait.test(bad).sum()), int(trait.test(judged).sum())
        common = CommonTrait(trait, held, len(bad), total - held, len(judged) - len(bad))
        score = _score(len(bad), held / len(bad), total / len(judged), trait.family)
        if held >= NEARLY_ALL * len(bad) and common.others <= FEW * common.all_others:
            found.append((score, -total, common))
    score, _, best = max(found, key=lambda each: each[:2], default=(0.0, 0, None))
    return best if score > -log(CHANCE_OF_SEQUENCES) else None


def find_common_begin(rollouts: Rollouts, far: NDArray[np.int64], bad: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return (sequence, position) where the gap of the first bad sequence begins, if that of nearly all begins within a response.

    far: indices of all far tokens, ascending. Were they spread evenly over such a response, so long a beginning without one had a
    probability below e^-7.
    """
    found = []
    for sequence in bad.tolist():
        begin, end = int(rollouts.starts[sequence]), int(rollouts.starts[sequence + 1])
        low, high = far.searchsorted((begin, end))
        first = int(far[low]) if high > low else end
        before, after = first - begin - int(rollouts.prompt_lengths[sequence]), end - first
        if high - low >= LEAST and before * (high - low) > 7 * after:
            found.append((sequence, first - begin))
    return found[0] if found and len(found) >= NEARLY_ALL * len(bad) else None


def _score(number: int, held: float, share: float, family: int) -> float:
    """Return -ln of the bound of the probability that so large a share of so many has the trait by chance."""
    divergence = (held * log(held / share) if held else 0.0) + (
        (1 - held) * log((1 - held) / (1 - share)) if held < 1 and share < 1 else 0.0
    )
    return number * divergence - log(max(1, family)) if held > share else -inf


def list_turns(rollouts: Rollouts) -> NDArray[np.int64]:
    """Return the index at which each stretch of the response mask begins; of no mask, where each response does."""
    import numpy as np

    begins = [np.zeros(0, np.int64)]
    for block in rollouts.blocks():
        mask = block.response_mask
        before = np.concatenate([[False], mask[:-1]]) & (block.positions > 0)
        begins.append(np.flatnonzero(mask & ~before) + block.token_slice.start)
    return np.concatenate(begins)


def _propose(bad: Places) -> Iterator[Trait]:
    """Yield the traits that the bad tokens may have in common, those with the tightest bounds."""
    import numpy as np

    rollouts = bad.rollouts
    has_versions = bool(len(rollouts.columns.get("version_spans", ())))
    for what, feature, hint in (
        ("of a response", "places", "compare the end of the prompt on both sides: template, tokens, the engine's prefix cache"),
        ("after a stretch outside of the response mask", "in_turn",
         "compare the text between two turns on both sides, and what the engine keeps in its cache from turn to turn"),
        ("after a change of the weight version", "since_version",
         "drop the engine's caches with each update, or draw such responses again"),
    ):  # fmt: skip
        if feature == "since_version" and not has_versions:
            continue
        for size in _bounds(getattr(bad, feature)):
            if 0 < size < NEAREST:
                yield Trait(_first(size, what), hint, _below(feature, size), NEAREST)
    for size in _bounds(bad.from_end):
        if 0 < size < NEAREST:
            phrase = "the last token of a response" if size == 1 else f"among the last {size} tokens of a response"
            hint = "look at what ends a response on either side: stop tokens, limits of length, processors of logits"
            yield Trait(phrase, hint, _below("from_end", size), NEAREST)
    positions = np.sort(bad.positions)
    for first in {int(positions[0]), int(positions[len(positions) - ceil(NEARLY_ALL * len(positions))])}:
        hint = (
            "look at what changes at this length: rotary scaling, a window of attention, the longest length of a side"
        )
        yield Trait(
            f"at position {first:,} or later",
            hint,
            partial(_is_behind, first),
            int(positions[-1]) + 1,
        )
    for size in BLOCKS:
        rest = int(np.bincount(bad.positions % size).argmax())
        hint = f"look at what the engine does every {size} tokens: blocks of its cache, chunks of a prefill"
        yield Trait(
            f"at a position that is {rest} modulo {size}", hint,
            partial(_has_rest, size, rest), sum(BLOCKS), spread=True,
        )  # fmt: skip
    ids, counts = np.unique(bad.tokens, return_counts=True)
    token = int(ids[counts.argmax()])
    hint = "compare this token's row of the embedding and of the output head, and what either side does with single ids"
    yield Trait(f"token {token}", hint, lambda each: each.tokens == token, int(rollouts.tokens.max()) + 1, spread=True)
    if has_versions:
        versions = bad.versions
        index = int(np.bincount(versions + 1).argmax()) - 1
        if index >= 0:
            hint = "judge --history RECORD shows what was sent as this version"
            names = rollouts.metadata.versions
            yield Trait(f"of weight version {names[index]}", hint, lambda each: each.versions == index, len(names))
    for column in ("engine_routing", "trainer_routing"):
        if column in rollouts:
            yield from _propose_experts(bad, column)


def _propose_experts(bad: Places, column: str) -> Iterator[Trait]:
    """Yield the expert of a layer that most of the bad tokens share, of each side."""
    import numpy as np

    rows = bad.routing(column)
    if not rows.size or rows.min() < -1:
        return
    experts = int(rows.max()) + 1
    if not 1 <= experts <= MOST_EXPERTS:
        return
    layers = rows.shape[1]
    counts = np.stack([np.bincount(rows[:, layer].ravel() + 1, minlength=experts + 1)[1:] for layer in range(layers)])
    layer, expert = (int(number) for number in np.unravel_index(int(counts.argmax()), counts.shape))
    side = column.removesuffix("_routing")
    hint = f"compare expert {expert} of layer {layer} in the engine and the trainer: ckptcheck refit"
    yield Trait(
        f"routed to expert {expert} of layer {layer} by the {side}", hint,
        lambda each: (each.routing(column)[:, layer] == expert).any(-1), layers * experts, spread=True,
    )  # fmt: skip


def _propose_of_sequences(rollouts: Rollouts, bad: NDArray[np.int64], judged: NDArray[np.int64]) -> Iterator[Trait]:
    """Yield the traits that the bad sequences may have in common."""
    import numpy as np

    lengths = np.diff(rollouts.starts)
    for values, phrase, hint in (
        (
            lengths,
            "{:,} tokens or longer",
            "look at what changes at this length: rotary scaling, windows, the longest length",
        ),
        (
            np.asarray(rollouts.prompt_lengths),
            "with a prompt of {:,} tokens or more",
            "score such a prompt alone, by engine and trainer",
        ),
    ):
        least = int(np.sort(values[bad])[len(bad) - ceil(NEARLY_ALL * len(bad))])
        yield Trait(phrase.format(least), hint, partial(_is_at_least, values, least), len(judged))
    if "finish" in rollouts:
        finish = np.asarray(rollouts.columns["finish"]).astype(np.int64)
        reason = int(np.bincount(finish[bad] + 1).argmax()) - 1
        if reason >= 0:
            names = rollouts.metadata.finish_reasons
            hint = "look at what the engine does with such requests: it may answer them again from an older state"
            yield Trait(f"finished by {names[reason]}", hint, lambda each: finish[each] == reason, len(names))
    if "version_spans" in rollouts and len(rollouts.columns["version_spans"]):
        spans = rollouts.columns["version_spans"]
        owners = np.searchsorted(rollouts.starts, spans[:, 0], "right") - 1
        parts = np.bincount(owners, minlength=len(lengths))
        hint = "drop the engine's caches with each update, or draw such responses again"
        yield Trait("drawn by several weight versions", hint, lambda each: parts[each] > 1, 1)
        first = np.full(len(lengths), -1, np.int64)
        first[owners[::-1]] = spans[::-1, 2]
        index = int(np.bincount(first[bad] + 1).argmax()) - 1
        if index >= 0:
            names = rollouts.metadata.versions
            hint = "judge --history RECORD shows what was sent as this version"
            yield Trait(f"begun by weight version {names[index]}", hint, lambda each: first[each] == index, len(names))
    ((usual, number),) = Counter(_read_prompt(rollouts, sequence) for sequence in bad.tolist()).most_common(1)
    if len(usual) and number >= NEARLY_ALL * len(bad):
        alike = judged[4 * rollouts.prompt_lengths[judged].astype(np.int64) == len(usual)]
        same = np.zeros(len(lengths), bool)
        same[[number for number in alike.tolist() if _read_prompt(rollouts, number) == usual]] = True
        hint = "score this prompt alone, by engine and trainer"
        yield Trait("responses to one prompt", hint, lambda each: same[each], len(judged))
    low, high = int(bad[0]), int(bad[-1])
    hint = "find the engine, the worker or the batch that these came from"
    yield Trait(f"sequences {low} to {high}", hint, lambda each: (each >= low) & (each <= high), len(judged) ** 2)
    for stride in STRIDES:
        rest = int(np.bincount(bad % stride).argmax())
        yield Trait(
            f"every {stride}th sequence from {rest} on", "find the engine or the rank that every such sequence came from",
            partial(_is_of_stride, stride, rest), sum(STRIDES),
        )  # fmt: skip


def _read_prompt(rollouts: Rollouts, sequence: int) -> bytes:
    """Return the ids of a prompt, 4 bytes each."""
    import numpy as np

    begin = int(rollouts.starts[sequence])
    return np.asarray(rollouts.tokens[begin : begin + int(rollouts.prompt_lengths[sequence])], np.int32).tobytes()


def _bounds(values: NDArray[np.int64]) -> set[int]:
    """Return the sizes of the smallest ranges from 0 on that hold nearly all values, and all of them."""
    ordered = sorted(values.tolist())
    return {ordered[ceil(NEARLY_ALL * len(ordered)) - 1] + 1, ordered[-1] + 1}


def _below(feature: str, size: int) -> Callable[[Places], NDArray[np.bool_]]:
    return lambda each: getattr(each, feature) < size


def _is_behind(first: int, each: Places) -> Any:
    return each.positions >= first


def _has_rest(size: int, rest: int, each: Places) -> Any:
    return each.positions % size == rest


def _is_at_least(values: NDArray[Any], least: int, each: NDArray[np.int64]) -> Any:
    return values[each] >= least


def _is_of_stride(stride: int, rest: int, each: NDArray[np.int64]) -> Any:
    return each % stride == rest


def _first(size: int, what: str) -> str:
    return f"the first token {what}" if size == 1 else f"among the first {size} tokens {what}"

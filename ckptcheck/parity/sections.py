"""What ``parity judge`` tells beside its findings: the gap in numbers, along the response, and where it is largest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ckptcheck.phrase import count
from ckptcheck.report import Section

if TYPE_CHECKING:
    from ckptcheck.metrics.distribution import Exact, Temperature
    from ckptcheck.metrics.floor import Floor
    from ckptcheck.metrics.gap import Gap
    from ckptcheck.parity.gates import Gates

SHOWN = 5
"""Worst tokens that are listed."""

LIMITS: dict[str, Callable[[Gates], float | None]] = {
    "mult_prob_error": lambda gates: gates.mult_prob_error,
    "k3": lambda gates: gates.kl,
    "abs_sequence_mean": lambda gates: gates.abs_mean,
    "prob_diff_mean": lambda gates: gates.prob_diff,
}


TITLES = {"pearson": "pearson of probabilities"}


def sections(
    gap: Gap,
    gates: Gates,
    floor: Floor | None,
    decode: Callable[[int], str] | None,
    exact: Exact | None = None,
    temperature: Temperature | None = None,
) -> Iterator[Section]:
    """Give the tables. exact, temperature: of whole distributions, where they are recorded."""
    numbers = gap.numbers()
    rows = [
        (
            TITLES.get(name, name),
            value,
            limit(gates) if (limit := LIMITS.get(name)) else None,
            _times(floor, name, value),
        )
        for name, value in numbers.items()
        if name not in ("tokens", "sequences", "broken")
    ]
    rows.append(("ratio deviation × 10⁴", gap.deviation, None, None))
    drop = 3 if floor is None else 4
    yield Section("gap", ("metric", "value", "limit", "× floor")[:drop], tuple(row[:drop] for row in rows))
    if exact is not None:
        whole = [("KL(engine ‖ trainer)", exact.engine_trainer), ("KL(trainer ‖ engine)", exact.trainer_engine)]
        if temperature is not None:
            whole.append(("temperature that fits best", temperature.temperature))
        yield Section(f"whole distributions of {count(exact.positions, 'token')}", ("", "value"), tuple(whole))
    profile = tuple((place, tokens, apart, signed) for place, tokens, apart, signed in gap.profile)
    yield Section("along the response", ("from token", "tokens", "mean |Δ|", "mean Δ"), profile)
    if gap.abs_max > 0:
        columns = ("sequence", "position", "token", *(("text",) if decode else ()), "engine", "trainer", "|Δ|")
        worst = tuple(
            (str(place.sequence), str(place.position), str(place.token), *((decode(place.token),) if decode else ()),
             place.engine, place.trainer, place.apart)
            for place in gap.worst[:SHOWN]
        )  # fmt: skip
        how = () if decode else ("--tokenizer DIR (a checkpoint) decodes them",)
        yield Section("worst tokens", columns, worst, how)


def _times(floor: Floor | None, name: str, value: float | int | None) -> float | None:
    return None if floor is None or value is None or name not in floor.metrics else floor.multiple(name, value)

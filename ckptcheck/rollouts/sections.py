"""The tables of ``parity judge``: the gap in numbers, along the response, and at the worst tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp
from typing import TYPE_CHECKING

from ckptcheck.linter.report import Section
from ckptcheck.rollouts.metrics.framework_metrics import BY_SOURCE
from ckptcheck.rollouts.metrics.importance_weights import (
    LARGEST_LOG,
    SMALL,
    Correction,
    Weights,
    compute_log_ratios,
    exponentiate,
)
from ckptcheck.rollouts.metrics.version_gaps import EDGE, VersionGaps, median
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from ckptcheck.rollouts.metrics.distribution import ExactKL, Temperature
    from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics
    from ckptcheck.rollouts.metrics.noise_floor import NoiseFloor
    from ckptcheck.rollouts.thresholds import Thresholds

SHOWN = 5
"""Number of worst tokens in the table."""
MOST_VERSIONS = 12
"""Weight versions whose gaps are printed."""

LIMITS: dict[str, Callable[[Thresholds], float | None]] = {
    "mult_prob_error": lambda gates: gates.mult_prob_error,
    "k3": lambda gates: gates.kl,
    "abs_sequence_mean": lambda gates: gates.abs_mean,
    "prob_diff_mean": lambda gates: gates.prob_diff,
}


TOLD = ("clipped", "abs_mean", "abs_max", "pearson of probabilities")
"""Metrics without a limit that a report shows at once."""
TITLES = {"pearson": "pearson of probabilities"}


def build_sections(
    gap: LogprobMetrics,
    gates: Thresholds,
    floor: NoiseFloor | None,
    decode: Callable[[int], str] | None,
    exact: ExactKL | None = None,
    temperature: Temperature | None = None,
    source: str = "",
    correction: Correction | None = None,
    weights: Weights | None = None,
) -> Iterator[Section]:
    """Yield the tables.

    source: what the file was converted from. decode: token id → text, None without a tokenizer.
    exact, temperature: computed from whole distributions; None where these are not recorded.
    correction, weights: of the job's loss; None where they are not known.
    """
    numbers = gap.numbers()
    rows = [
        (
            TITLES.get(name, name),
            value,
            limit(gates) if (limit := LIMITS.get(name)) else None,
            _floor_multiple(floor, name, value),
        )
        for name, value in numbers.items()
        if name not in ("tokens", "sequences", "broken")
    ]
    rows.append(("ratio deviation × 10⁴", gap.deviation, None, None))
    bounds = f"clipped: the ratio is below {1 - gap.clip.low:g} or above {1 + gap.clip.high:g}"
    columns = ("metric", "value", "limit", "× floor")[: 3 if floor is None else 4]
    shown = tuple(row[: len(columns)] for row in rows)
    told = tuple(row for row in shown if row[2] is not None or row[0] in TOLD)
    more = f"-v lists {len(shown) - len(told)} more"
    yield Section("gap", columns, shown, (bounds,), shorter=Section("gap", columns, told, (bounds, more)))
    framework = BY_SOURCE.get(source)
    if framework is not None:
        own_rows = tuple(framework.numbers(gap, correction, weights).items())
        yield Section(
            f"as {framework.framework} logs it", ("metric", "value"), own_rows, (f"as of {framework.version}",)
        )
    if gap.sampled_by == "engine":
        yield _build_weights_section(gap, weights)
    if exact is not None:
        kl_rows = [("KL(engine ‖ trainer)", exact.engine_trainer), ("KL(trainer ‖ engine)", exact.trainer_engine)]
        kl_rows += [("entropy of the engine", exact.engine_entropy), ("entropy of the trainer", exact.trainer_entropy)]
        if temperature is not None:
            kl_rows.append(("temperature that fits best", temperature.temperature))
        yield Section(f"whole distributions of {count(exact.positions, 'token')}", ("", "value"), tuple(kl_rows))
    profile = tuple((place, tokens, abs_mean, signed_mean) for place, tokens, abs_mean, signed_mean in gap.profile)
    yield Section("along the response", ("from token", "tokens", "mean |Δ|", "mean Δ"), profile)
    if gap.abs_max > 0:
        places = ("sequence", "position", "token", *(("text",) if decode else ()), "engine", "trainer", "|Δ|")
        worst = tuple(
            (str(place.sequence), str(place.position), str(place.token), *((decode(place.token),) if decode else ()),
             place.engine, place.trainer, place.abs_diff)
            for place in gap.worst[:SHOWN]
        )  # fmt: skip
        notes = () if decode else ("--tokenizer DIR (a checkpoint) decodes them",)
        yield Section("worst tokens", places, worst, notes)


def build_versions_section(gaps: VersionGaps, own: str | None) -> Section:
    """Return the gap by weight version. own: that of the trainer's weights; None: not known."""
    rows = tuple(
        (
            f"{version}, the trainer's" if version == own else version,
            each.number,
            each.tokens,
            each.abs_mean,
            each.signed_mean,
            median(each.first),
            median(each.last),
        )
        for version, each in gaps.by_version.items()
    )
    columns = ("version", "segments", "tokens", "mean |Δ|", "mean Δ", f"first {EDGE}", f"last {EDGE}")
    brief = () if len(rows) <= MOST_VERSIONS else (f"{count(len(rows), 'version')}; -v lists them",)
    note = "first and last: |Δ| of the tokens after a segment begins, and before it ends, in its median"
    return Section("gap by weight version", columns, rows, (note,), brief)


def _build_weights_section(gap: LogprobMetrics, job: Weights | None) -> Section:
    """Return the importance weights of the file under each formula, and those of the job's loss where they are known."""
    logs = compute_log_ratios(gap)
    tokens = Weights(
        gap.tokens, exp(min(gap.moments.log_min, LARGEST_LOG)), gap.ratio, exp(min(gap.moments.log_max, LARGEST_LOG))
    )
    named = {
        "token, e^l": tokens,
        "sequence, e^(sum of l)": Weights.of(exponentiate(logs["sequence"])),
        "sequence, e^(mean of l)": Weights.of(exponentiate(logs["geometric"])),
    }
    if job is not None:
        named["in the job's loss"] = job
    rows = tuple((name, each.number, each.least, each.mean, each.greatest, each.small) for name, each in named.items())
    return Section(
        "importance weights", ("of a", "number", "least", "mean", "greatest", f"below {SMALL:g}"), rows, (FORMULAS,)
    )


FORMULAS = "of a sequence, TRL, verl, NeMo-RL, SkyRL, ROLL and slime's mis.py take the sum; AReaL, ms-swift and geometric the mean"
"""Which frameworks have which formula, as importance_weights.py lists them."""


def _floor_multiple(floor: NoiseFloor | None, name: str, value: float | int | None) -> float | None:
    return None if floor is None or value is None or name not in floor.metrics else floor.multiple(name, value)

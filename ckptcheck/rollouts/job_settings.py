"""What the configuration of a job says of its rollouts."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.rollouts.metadata import SamplingInfo, ScorerInfo
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from ckptcheck.jobs.job import Job

SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""Fields of `SamplingInfo` that a job has under the same names, in the section `rollout`."""
LEAST_LAG = 1
"""Versions that tokens may always be older: frameworks do not agree whether the first update is number 0 or 1."""


def complete_from_job(rollouts: Rollouts, job: Job | None) -> Rollouts:
    """Return rollouts whose metadata have what the file leaves open and the job says; what the file records stays."""
    if job is None:
        return rollouts
    metadata = rollouts.metadata
    said = {name: job.number(f"rollout.{name}") for name in SAMPLING}
    top_k = job.number("rollout.top_k")
    sampling = {name: getattr(metadata.sampling, name) for name in SamplingInfo.__struct_fields__}
    # -1 and 0 are off.
    every = said | {"top_k": None if top_k is None else max(0, int(top_k))}
    sampling |= {name: value for name, value in every.items() if sampling[name] is None}
    divisor = 1.0 if job.flag("trainer.plain_logprobs") else job.number("trainer.temperature")
    trainer = metadata.trainer or ScorerInfo()
    if trainer.temperature is None and divisor is not None:
        trainer = msgspec.structs.replace(trainer, temperature=float(divisor))
    kind = job.text("engine.logprobs")
    return rollouts.with_columns(
        msgspec.structs.replace(
            metadata,
            sampling=SamplingInfo(**sampling),
            trainer=trainer if "trainer_logprobs" in rollouts.columns else metadata.trainer,
            logprobs=kind if metadata.logprobs == "unknown" and kind in ("raw", "processed") else metadata.logprobs,
        )
    )


def find_allowed_lag(job: Job | None) -> int:
    """Return how many versions tokens may be older than the trainer's weights, by the job; `LEAST_LAG` where it does not say."""
    if job is None:
        return LEAST_LAG
    if job.flag("algorithm.unbounded_lag"):
        return 1 << 62
    return max(LEAST_LAG, ceil(job.number("algorithm.lag") or 0))

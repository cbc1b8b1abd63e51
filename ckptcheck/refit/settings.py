"""What a trial is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckptcheck.refit.timeouts import Timeouts


@dataclass(frozen=True)
class Settings:
    """steps: how often the trainer steps and is synced again. bucket_bytes: of the first sync; the second uses `other_bytes`.

    perturb: scale of noise in place of an optimizer step. weights, logprobs: which checks to make. timeouts: of each phase.
    decode: tokens that are decoded greedily. pause: what the engine does with a request that runs when a sync comes; "": none runs.
    sleep_level: 2 where the engine drops its weights when it sleeps, and the sync comes before it has its cache again.
    """

    steps: int = 1
    bucket_bytes: int = 64 << 20
    other_bytes: int = 7 << 20
    transport: str = "reload"
    perturb: float | None = None
    weights: bool = True
    logprobs: bool = True
    timeouts: Timeouts = field(default_factory=Timeouts)
    decode: int = 16
    pause: str = ""
    sleep_level: int = 1

"""The settings of a trial."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckptcheck.live.refit.timeouts import Timeouts


@dataclass(frozen=True)
class TrialSettings:
    """What a trial does."""

    steps: int = 1
    """How often the trainer steps and syncs again."""
    bucket_bytes: int = 64 << 20
    """Bucket size of the first sync."""
    second_bucket_bytes: int = 7 << 20
    """The other bucket size, for one of the two syncs after each step."""
    transport: str = "reload"
    perturb: float | None = None
    """Scale of noise in place of an optimizer step."""
    weights: bool = True
    """Whether to compare weights."""
    logprobs: bool = True
    """Whether to compare logprobs."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    send_draft: bool = False
    """Whether to send what the engine drafts with, and to move it in each step."""
    decode: int = 16
    """Number of tokens to decode greedily; 0 leaves out all scoring by decoding."""
    pause: str = ""
    """What the engine does with a request that runs during a sync; "" if none runs."""
    sleep_level: int = 1
    """2 if the engine drops its weights when it sleeps, and syncs before it has its cache again."""
    clears_cache: bool = False
    """Whether the engine's prefix cache is reset after each sync, as the job does."""

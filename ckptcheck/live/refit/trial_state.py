"""The one state of a trial: its settings, its phases, what it was given to work with, and what it has observed so far."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.draft import DraftWeights
from ckptcheck.live.refit.expert_slots import Slots
from ckptcheck.live.refit.observations import Key, Observations
from ckptcheck.live.refit.scoring_inputs import ScoringInputs
from ckptcheck.live.runtime.engines.base import Engine, HostScalars, TensorDigests, WeightPart, same_number
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
from ckptcheck.text.formatting import format_duration

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

SPEED = 50e6
"""Bytes per second of a slow disk or network; each phase gets the time for the weights at that speed in addition."""
DEFAULTS = {"start": 900.0, "score": 600.0, "step": 600.0, "sync": 300.0}
"""An engine's first start on a cold disk takes a minute before it reads a weight; graphs are captured by the first score."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds for each kind of phase. None stands for `DEFAULTS` plus the time for the weights at `SPEED`."""

    start: float | None = None
    """Until a trainer or an engine has loaded."""
    score: float | None = None
    """Logprobs and tokens of both sides, one after the other."""
    step: float | None = None
    """An optimizer step."""
    sync: float | None = None
    """Digests, export, update, digests."""

    def seconds(self, kind: str, nbytes: int) -> float:
        """Return the time limit of a phase. kind: one of the fields; nbytes: of the weights."""
        limit: float | None = getattr(self, kind)
        return limit if limit is not None else DEFAULTS[kind] + nbytes / SPEED


def parse_timeouts(texts: Sequence[str | float]) -> Timeouts:
    """Parse ``PHASE=SECONDS``, or ``SECONDS`` for every phase; later texts win. Raises CkptcheckError for anything else."""
    kinds = [field.name for field in fields(Timeouts)]
    timeouts = Timeouts()
    for text in texts:
        name, equals, number = str(text).rpartition("=")
        try:
            seconds = float(number)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf") or (equals and name not in kinds):
            raise CkptcheckError(
                f"--set timeout={text} is neither SECONDS nor PHASE=SECONDS", f"the phases are {', '.join(kinds)}"
            )
        timeouts = replace(timeouts, **dict.fromkeys([name] if name else kinds, seconds))
    return timeouts


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
    clears_cache: bool | None = None
    """Whether the engine's prefix cache is reset after each sync, as the job does."""


Log = Callable[[str], None]
FollowPhase = Callable[[str, float], AbstractContextManager[None]]
"""Announces a phase and shows its time while it runs: name, seconds after which it is given up (see `Observer.phase`)."""
MAX_LOG_LINES = 12
"""Number of the last lines of a dead process's log that the user sees."""


class TrialPhases:
    """The phases of one trial, one after the other: each is announced, has its time, and is named where it fails."""

    def __init__(self, timeouts: Timeouts, nbytes: int, log: Log, follow: FollowPhase | None = None) -> None:
        """Name what the phases need.

        Args:
            timeouts: of each kind of phase.
            nbytes: of the weights.
            log: gets messages, and without `follow` a line for each phase.
            follow: shows the time of each phase.

        """
        self._timeouts, self._nbytes, self.log, self._follow = timeouts, nbytes, log, follow
        self.current = ""
        """The phase that runs, or ran last."""
        self._kind, self._seconds = "", 0.0

    @contextmanager
    def run(self, kind: str, phase: str) -> Iterator[None]:
        """Run a phase within the time that phases of its kind have."""
        self.current, self._kind = phase, kind
        self._seconds = self._timeouts.seconds(kind, self._nbytes)
        if self._follow is None:
            self.log(phase)
        with self._follow(phase, self._seconds) if self._follow else nullcontext(), time_budget(self._seconds):
            yield

    def count_rounds(self, number: int) -> Iterator[int]:
        """Yield 1, 2, … and say after each round but the last how long the rounds took, and how long the rest will take."""
        start_time = monotonic()
        for done in range(1, number + 1):
            yield done
            if done < number:
                seconds = monotonic() - start_time
                self.log(
                    f"step {done} of {number} is done after {format_duration(seconds)}, about"
                    f" {format_duration(seconds / done * (number - done))} left"
                )

    @contextmanager
    def keep_evidence(self, failed_phases: dict[str, str], *, has_evidence: Callable[[], bool]) -> Iterator[None]:
        """Note what ends the trial within, under the phase that ran: the evidence so far is kept.

        A process that dies, hangs or refuses ends it, and an interruption. Raises a refusal where there is no evidence yet.
        """
        try:
            yield
        except (CkptcheckError, OSError, KeyboardInterrupt) as error:
            is_refusal = isinstance(error, CkptcheckError) and not isinstance(error, (WorkerDied, RemoteError))
            if is_refusal and not has_evidence():
                raise
            failed_phases[self.current] = self._format_error(error)
        # a fault of our own, or a worker that answers something unexpected
        except Exception as error:
            self.log(traceback.format_exc().rstrip())
            failed_phases[self.current] = f"{type(error).__name__}: {error}"

    def _format_error(self, error: BaseException) -> str:
        """Return in one line what ended the trial; the user also gets the last lines of a dead process's log."""
        if not isinstance(error, CkptcheckError):
            return str(error) or "interrupted"
        for line in error.log_tail[-MAX_LOG_LINES:] if isinstance(error, WorkerDied) else ():
            self.log(f"  | {line}")
        text = error.message + (f"; {error.hint}" if error.hint else "")
        if isinstance(error, WorkerTimeout):
            text += f"; the phase had {self._seconds:,.0f} s (--set timeout={self._kind}=SECONDS)"
        return text


StartEngine = Callable[[Path], Engine]
"""Starts an engine cold from a checkpoint, each time in a process of its own. Raises what the engine's worker raises."""


@dataclass
class TrialState:
    """All that the parts of one trial share. Whatever a part finds, it notes in `observed`."""

    settings: TrialSettings
    phases: TrialPhases
    observed: Observations
    inputs: ScoringInputs
    """What both sides score."""
    start_engine: StartEngine
    folder: Path
    """For the checkpoints that the trial writes, ``step0`` first."""
    source: Checkpoint | None = None
    """What the trainer loaded, None if its export cannot be compared with it."""
    draft: DraftWeights | None = None
    """The draft model's weights that the trainer does not hold; None without a draft model."""
    image: tuple[int, ...] = ()
    """Tokens of an image and of the text after it; () for a model that takes none."""
    cold_slots: Slots = field(default_factory=dict)
    """What lay in the slots for experts after the first cold load."""
    weight_parts: Sequence[WeightPart] = ()
    """The weight and the part of it that each parameter of the engine holds, as far as the cold load shows it."""
    cold_acceptance: float | None = None
    """The acceptance length of the last cold load; None without a draft model."""
    scratch: frozenset[Key] = frozenset()
    """Derived tensors that a forward pass changes: they are no weights."""
    moving_scalars: frozenset[Key] = frozenset()
    """Numbers on the host that a forward pass changes."""

    def digest_tensors(self, engine: Engine) -> TensorDigests:
        """Digest the tensors of an engine; scratch memory is left out as soon as it is known."""
        return {key: entry for key, entry in engine.digest_tensors().items() if key not in self.scratch}

    def read_scalars(self, engine: Engine) -> HostScalars:
        """Read the numbers of an engine that has computed something: some are made by the first forward pass."""
        return {key: value for key, value in engine.read_scalars().items() if key not in self.moving_scalars}

    def find_scratch(self, engine: Engine) -> None:
        """Find the tensors and numbers that a forward pass changes, and leave them out of the cold load from now on.

        Only derived tensors can be scratch: a parameter or a buffer that a forward pass changes is a fault.
        """
        sequence, observed = self.inputs.sequences[0], self.observed
        engine.score([sequence], decode=1)
        manifest, scalars = engine.digest_tensors(), engine.read_scalars()
        # another length, so that a number of the request changes too
        engine.score([sequence[: len(sequence) // 2 + 1]], decode=1)
        self.moving_scalars = find_moving(scalars, engine.read_scalars())
        observed.cold_scalars = self.read_scalars(engine)
        cold = observed.cold_manifest
        self.scratch = frozenset(
            key
            for key, entry in manifest.items()
            if entry.kind == "derived" and key in cold and cold[key].digest != entry.digest
        )
        observed.cold_manifest = {key: entry for key, entry in cold.items() if key not in self.scratch}


def find_moving(before: HostScalars, after: HostScalars) -> frozenset[Key]:
    """Return what differs between two readings with only a forward pass between them."""
    return frozenset(
        key for key in before.keys() | after.keys() if key not in before or not same_number(before[key], after.get(key))
    )

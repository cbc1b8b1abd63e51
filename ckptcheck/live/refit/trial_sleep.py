"""Has the engine of a trial sleep while the trainer steps, and compares what it holds before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckptcheck.live.refit.engine_state import EngineState
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.sleep_cycle import REST, WEIGHTS, SleepCheck, find_sleeping_engine, no_op_reason
from ckptcheck.live.refit.trial_phases import TrialPhases
from ckptcheck.live.runtime.engines.base import Engine


class TrialSleep:
    """The sleep of the engine of one trial. level: 2 if it drops its weights, and syncs before it has its cache again."""

    def __init__(self, level: int, observations: TrialObservations, phases: TrialPhases, state: EngineState) -> None:
        self._level, self._observations, self._phases, self._state = level, observations, phases, state

    @contextmanager
    def asleep(self, engine: Engine) -> Iterator[Callable[[], None]]:
        """Let the engine sleep, if it can, while others need the device; yields the function that wakes it for a sync.

        The first sleep compares what the engine holds before and after. At level 2 the engine gets the memory of its weights
        back when it wakes, and that of its cache after the sync.
        """
        sleeper, level = find_sleeping_engine(engine), self._level
        if isinstance(sleeper, str):
            self._observations.sleep_skipped = sleeper
            yield lambda: None
            return
        with self._phases.run("sync", "sleep"):
            is_first = self._observations.sleep_check is None
            before = self._state.digest_tensors(engine) if is_first else {}
            scalars_before = self._state.read_scalars(engine) if is_first else {}
            memory = sleeper.used_memory()
            sleeper.sleep(level)
            freed = memory - sleeper.used_memory()

        def wake() -> None:
            with self._phases.run("sync", "wake"):
                sleeper.wake(WEIGHTS if level == 2 else None)
                if before:
                    after = self._state.digest_tensors(engine)
                    self._observations.sleep_check = SleepCheck(
                        before,
                        after,
                        freed,
                        level,
                        no_op_reason(engine),
                        scalars_before,
                        self._state.read_scalars(engine),
                    )

        yield wake
        if level == 2:
            with self._phases.run("sync", "wake the rest"):
                sleeper.wake(REST)

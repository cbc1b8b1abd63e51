"""Runs probes with as few starts of the engine as their set-ups allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import EngineSetup, ProbeEnvironment, ProbeRun, StartProbeEngine
from ckptcheck.live.experiments.probes.trace import ProbeTrace
from ckptcheck.live.runtime.engines.base import Engine, EngineInfo, Running
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout

Make = Callable[[ProbeEnvironment], ProbeRun]


@dataclass
class _Run:
    """The state of a run of probes."""

    environment: ProbeEnvironment
    start: StartProbeEngine
    probes: dict[str, ProbeRun]
    """Name → the running probe."""
    engine: Engine | None = None
    spare: Engine | None = None
    """An engine whose successor did not start; its process can start another."""
    current: EngineSetup | None = None
    """The set-up of `engine`."""
    info: EngineInfo | None = None
    """The first engine that started."""
    waiting: dict[str, EngineSetup] = field(default_factory=dict)
    """Probe → the set-up that it waits for."""
    results: dict[str, object] = field(default_factory=dict)
    """Probe → its result."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Probe → why it could not run."""
    failures: dict[str, str] = field(default_factory=dict)
    """Probe → what killed an engine or a trainer in it."""
    untaken: dict[str, str] = field(default_factory=dict)
    """Switch of the user → why the engine did not take it."""

    def step(self, name: str, advance: Callable[[], EngineSetup]) -> None:
        """Advance a probe to the next set-up that it needs, or to its end."""
        self.waiting.pop(name, None)
        try:
            with time_budget(self.environment.timeout):
                self.waiting[name] = advance()
        except StopIteration as end:
            self.results[name] = end.value
        except Skip as skip:
            self.unavailable[name] = str(skip)
        except RemoteError as error:
            self.unavailable[name] = str(error)
        except (WorkerDied, WorkerTimeout) as error:
            # either side may have died, so both start anew
            self.failures[name] = str(error)
            self.environment.close()
            if self.engine is not None:
                self.engine.close()
            self.engine, self.current = None, None

    def group(self) -> None:
        """Start the set-up that most probes wait for, unless it runs already, and advance these probes."""
        setup = self._next()
        names = [name for name, needed_setup in self.waiting.items() if needed_setup == setup]
        if setup != self.current:
            self.environment.say(f"starting the engine: {setup}")
            previous, self.engine, self.current, self.spare = self.engine or self.spare, None, None, None
            try:
                with time_budget(self.environment.timeout):
                    self.engine = self.start(setup, previous)
            except (WorkerDied, WorkerTimeout, RemoteError) as error:
                if isinstance(error, RemoteError):
                    # the process of the previous engine lives, and can start another engine
                    self.spare = previous
                elif previous is not None:
                    previous.close()
                for name in names:
                    del self.waiting[name]
                    self.unavailable[name] = f"the engine did not start with {setup}: {error}"
                return
            self.current, self.info = setup, self.info or self.engine.info
            self._note(setup, self.engine)
        for name in names:
            # the engine died; the remaining probes of this set-up run after a new start
            if self.engine is None:
                return
            reason = _describe_ignored_switches(self.waiting[name], self.engine)
            if reason:
                del self.waiting[name]
                self.unavailable[name] = reason
                continue
            self.environment.say(f"probing {name}")
            self.step(name, partial(self.probes[name].send, self.engine))

    def _next(self) -> EngineSetup:
        """Return the running set-up if a probe waits for it, else the one that most probes wait for."""
        setups = list(self.waiting.values())
        if self.current in setups:
            return self.current
        return max(dict.fromkeys(setups), key=setups.count)

    def _note(self, setup: EngineSetup, engine: Running) -> None:
        """Record and report once which of the user's switches the engine did not take."""
        user_switches, setup_switches = self.environment.setup.switches.to_dict(), setup.switches.to_dict()
        for name, reason in engine.ignored_switches.items():
            if name in user_switches and user_switches[name] == setup_switches.get(name) and name not in self.untaken:
                self.untaken[name] = reason
                self.environment.say(f"{name}: {reason}")


def _describe_ignored_switches(setup: EngineSetup, engine: Running) -> str:
    """Name the switches that a probe needs and the engine did not take; "" if there is none."""
    return "; ".join(f"{name}: {reason}" for name, reason in engine.ignored_switches.items() if name in setup.needs)


def run_probes(
    target: str, environment: ProbeEnvironment, start: StartProbeEngine, probes: Mapping[str, Make]
) -> ProbeTrace:
    """Run every probe; probes that wait for the same set-up share a start.

    A probe is skipped if the engine does not start with its set-up, or does not take its switch. An engine or a trainer that
    dies in a probe starts again for the next one.
    """
    run = _Run(environment, start, {name: make(environment) for name, make in probes.items()})
    try:
        for name, probe in run.probes.items():
            run.step(name, partial(next, probe))
        while run.waiting:
            run.group()
    finally:
        for engine in (run.engine, run.spare):
            if engine is not None:
                engine.close()
        environment.close()
    return ProbeTrace(
        target,
        run.info,
        environment.trainer_info,
        tuple(probes),
        run.results,
        run.unavailable,
        run.failures,
        run.untaken,
    )

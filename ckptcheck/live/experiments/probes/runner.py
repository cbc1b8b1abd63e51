"""Runs probes with as few starts of the engine as their set-ups allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import (
    EngineSetup,
    Probe,
    ProbeEnvironment,
    ProbeRun,
    StartProbeEngine,
)
from ckptcheck.live.experiments.probes.trace import ProbeTrace
from ckptcheck.live.experiments.runner import ExperimentRunner
from ckptcheck.live.experiments.side import Side
from ckptcheck.live.runtime.engines.base import Engine, EngineInfo
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout


class _ProbeRuns:
    """The running probes, and the engine that they take turns with."""

    def __init__(self, environment: ProbeEnvironment, start: StartProbeEngine, probes: Mapping[str, ProbeRun]) -> None:
        self._environment, self._probes = environment, probes
        self._engine = Side[EngineSetup, Engine](start)
        self.runner = ExperimentRunner[str, object](timeout=environment.timeout, forget=self.close)
        self.info: EngineInfo | None = None
        """The first engine that started."""
        self.waiting: dict[str, EngineSetup] = {}
        """Probe → the set-up that it waits for."""
        self.untaken: dict[str, str] = {}
        """Switch of the user → why the engine did not take it."""

    def step(self, name: str, advance: Callable[[], EngineSetup]) -> None:
        """Advance a probe to the next set-up that it needs, or to its end."""
        self.waiting.pop(name, None)
        setup = self.runner.advance(name, advance)
        if setup is not None:
            self.waiting[name] = setup

    def group(self) -> None:
        """Start the set-up that most probes wait for, unless it runs already, and advance these probes."""
        setup = self._next()
        names = [name for name, needed_setup in self.waiting.items() if needed_setup == setup]
        if setup != self._engine.setup:
            self._environment.say(f"starting the engine: {setup}")
        try:
            with time_budget(self._environment.timeout):
                engine = self._engine.ready(setup)
        except (WorkerDied, WorkerTimeout, RemoteError, Skip) as error:
            for name in names:
                del self.waiting[name]
                self.runner.table.unavailable[name] = f"the engine did not start with {setup}: {error}"
            return
        self.info = self.info or engine.info
        self._note(setup, engine)
        for name in names:
            # the engine died; the remaining probes of this set-up run after a new start
            if self._engine.process is None:
                return
            reason = _describe_ignored_switches(self.waiting[name], engine)
            if reason:
                del self.waiting[name]
                self.runner.table.unavailable[name] = reason
                continue
            self._environment.say(f"probing {name}")
            self.step(name, partial(self._probes[name].send, engine))

    def close(self) -> None:
        """End both sides; whoever needs one starts it anew."""
        self._engine.discard()
        self._environment.close()

    def _next(self) -> EngineSetup:
        """Return the running set-up if a probe waits for it, else the one that most probes wait for."""
        setups = list(self.waiting.values())
        if self._engine.setup in setups:
            return self._engine.setup
        return max(dict.fromkeys(setups), key=setups.count)

    def _note(self, setup: EngineSetup, engine: Engine) -> None:
        """Record and report once which of the user's switches the engine did not take."""
        user_switches, setup_switches = self._environment.setup.switches.to_dict(), setup.switches.to_dict()
        for name, reason in engine.ignored_switches.items():
            if name in user_switches and user_switches[name] == setup_switches.get(name) and name not in self.untaken:
                self.untaken[name] = reason
                self._environment.say(f"{name}: {reason}")


def _describe_ignored_switches(setup: EngineSetup, engine: Engine) -> str:
    """Name the switches that a probe needs and the engine did not take; "" if there is none."""
    return "; ".join(f"{name}: {reason}" for name, reason in engine.ignored_switches.items() if name in setup.needs)


def run_probes(
    target: str, environment: ProbeEnvironment, start: StartProbeEngine, probes: Mapping[str, Probe]
) -> ProbeTrace:
    """Run every probe; probes that wait for the same set-up share a start.

    A probe is skipped if the engine does not start with its set-up, or does not take its switch. An engine or a trainer that
    dies in a probe starts again for the next one.
    """
    running = {name: probe.run(environment) for name, probe in probes.items()}
    runs = _ProbeRuns(environment, start, running)
    try:
        for name, run in running.items():
            runs.step(name, partial(next, run))
        while runs.waiting:
            runs.group()
    finally:
        runs.close()
    table = runs.runner.table
    return ProbeTrace(
        target,
        runs.info,
        environment.trainer_info,
        tuple(probes),
        table.results,
        table.unavailable,
        table.failures,
        runs.untaken,
    )

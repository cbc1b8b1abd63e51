"""Runs probes with as few starts of the engine as their set-ups allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ckptcheck.engines.base import Engine, EngineInfo
from ckptcheck.host.patience import within
from ckptcheck.host.trouble import HostDied, HostHung, VerbError
from ckptcheck.parity.probes.bench import Bench, Probe, Setup, StartEngine
from ckptcheck.parity.probes.trace import ProbeTrace
from ckptcheck.rule import Skip

Make = Callable[[Bench], Probe]


@dataclass
class _Run:
    """A run under way. waiting: probe → the set-up that it waits for."""

    bench: Bench
    start: StartEngine
    probes: dict[str, Probe]
    engine: Engine | None = None
    spare: Engine | None = None
    current: Setup | None = None
    info: EngineInfo | None = None
    waiting: dict[str, Setup] = field(default_factory=dict)
    seen: dict[str, object] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    died: dict[str, str] = field(default_factory=dict)
    untaken: dict[str, str] = field(default_factory=dict)

    def step(self, name: str, advance: Callable[[], Setup]) -> None:
        """Let a probe go on to the next set-up that it needs, or to its end."""
        self.waiting.pop(name, None)
        try:
            with within(self.bench.timeout):
                self.waiting[name] = advance()
        except StopIteration as end:
            self.seen[name] = end.value
        except Skip as skip:
            self.left[name] = str(skip)
        except VerbError as error:
            self.left[name] = str(error)
        except (HostDied, HostHung) as error:  # whoever it was: both are started anew
            self.died[name] = str(error)
            self.bench.close()
            if self.engine is not None:
                self.engine.close()
            self.engine, self.current = None, None

    def group(self) -> None:
        """Start the set-up that most probes wait for, unless it runs, and let them go on."""
        setup = self._next()
        names = [name for name, wanted in self.waiting.items() if wanted == setup]
        if setup != self.current:
            self.bench.say(f"starting the engine: {setup}")
            before, self.engine, self.current, self.spare = self.engine or self.spare, None, None, None
            try:
                with within(self.bench.timeout):
                    self.engine = self.start(setup, before)
            except (HostDied, HostHung, VerbError) as error:
                if isinstance(error, VerbError):
                    self.spare = before  # its process lives, and can start another
                elif before is not None:
                    before.close()
                for name in names:
                    del self.waiting[name]
                    self.left[name] = f"the engine did not start with {setup}: {error}"
                return
            self.current, self.info = setup, self.info or self.engine.info
            self._note(setup, self.engine)
        for name in names:
            if self.engine is None:
                return  # it died; those that wait for this set-up come again
            ignored = _ignored(self.waiting[name], self.engine)
            if ignored:
                del self.waiting[name]
                self.left[name] = ignored
                continue
            self.bench.say(f"probing {name}")
            self.step(name, partial(self.probes[name].send, self.engine))

    def _next(self) -> Setup:
        wanted = list(self.waiting.values())
        if self.current in wanted:
            return self.current
        return max(dict.fromkeys(wanted), key=wanted.count)

    def _note(self, setup: Setup, engine: Engine) -> None:
        """Keep, and say once, which switches of the user the engine did not take; a probe's own are why it could not look."""
        asked, had = self.bench.setup.switches.given(), setup.switches.given()
        for name, why in engine.ignored.items():
            if name in asked and asked[name] == had.get(name) and name not in self.untaken:
                self.untaken[name] = why
                self.bench.say(f"{name}: {why}")


def _ignored(setup: Setup, engine: Engine) -> str:
    """Say which switch that a probe needs the engine did not take."""
    return "; ".join(f"{name}: {why}" for name, why in engine.ignored.items() if name in setup.needs)


def run_probes(target: str, bench: Bench, start: StartEngine, probes: Mapping[str, Make]) -> ProbeTrace:
    """Run every probe, those together that wait for the same set-up.

    A set-up that the engine does not start with, or a switch that it does not take, is why a probe could not look. What dies in
    a probe is started anew for the next one.
    """
    run = _Run(bench, start, {name: make(bench) for name, make in probes.items()})
    try:
        for name, probe in run.probes.items():
            run.step(name, partial(next, probe))
        while run.waiting:
            run.group()
    finally:
        for engine in (run.engine, run.spare):
            if engine is not None:
                engine.close()
        bench.close()
    return ProbeTrace(target, run.info, bench.trainer_info, tuple(probes), run.seen, run.left, run.died, run.untaken)

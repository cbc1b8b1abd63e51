"""Runs the kit: opens the source, starts the subject, proves sound updates, and tries one fault after the other.

Between two faults it proves a sound update.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.conformance.faults import (
    NEW,
    OLD,
    Fault,
    ReceiverLost,
    ReceiverState,
    Reply,
    Subject,
    plan_faults,
    send_all,
)
from ckptcheck.live.conformance.own_transport import OwnTransport, WeightTransport, load_transport
from ckptcheck.live.conformance.trace import ConformanceTrace, KnownStates, Outcome, judge
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.live.refit.live_trial import TrialEngine, TrialSource

Log = Callable[[str], None]
WORDS = {OLD: "old", NEW: "new"}


class ConformanceRun:
    """One run of the kit over one transport. The caller closes the subject. say: gets a line for each fault."""

    def __init__(self, subject: Subject, say: Log = lambda _: None) -> None:
        self._subject, self._say = subject, say
        self._known = KnownStates({}, {})
        self._problems: list[str] = []
        self._updates = 0
        self._marks = 0

    def run(self) -> ConformanceTrace:
        """Run all faults and return the evidence.

        A receiver that does not start again ends the run; the trace says so. Raises what `Subject.update` raises for faults of the
        kit itself.
        """
        subject = self._subject
        faults = plan_faults(len(subject.buckets), has_wire=subject.has_wire, pause_modes=subject.pause_modes)
        outcomes: list[Outcome] = []
        failed: dict[str, str] = {}
        try:
            self._prove_baseline()
            outcomes.append(self._describe_poison())
            for fault in faults if not self._problems else ():
                outcomes.append(self._try(fault))
                done = outcomes[-1]
                self._say(f"  {done.kind} {done.place}: {done.answer}{'; ' + done.detail if done.detail else ''}")
        except (CkptcheckError, OSError, KeyboardInterrupt) as error:
            message = error.message if isinstance(error, CkptcheckError) else str(error) or "interrupted"
            if not outcomes:
                message = f"before the first fault: {message}"
            failed["the conformance run"] = message
        reason = f"the sound update is not proved: {self._problems[0]}" if self._problems else "the run ended before it"
        untried = faults[max(0, len(outcomes) - 1) :]
        # one row for each kind: the places would all say the same
        outcomes += [Outcome(kind, "", "untried", reason) for kind in dict.fromkeys(fault.kind for fault in untried)]
        return ConformanceTrace(
            self._subject.target,
            self._subject.title,
            tuple(outcomes),
            tuple(dict.fromkeys(self._problems)),
            tensors=len(self._known.new),
            updates=self._updates,
            failed_phases=failed,
        )

    def _prove_baseline(self) -> None:
        """Send new, old and new weights by sound updates over marks, and record the receiver's tensors after each."""
        states: list[ReceiverState] = []
        versions: list[str | None] = [self._subject.version()]
        for values in (NEW, OLD, NEW, OLD):
            self._marks = self._subject.write_marks()
            reply = self._send_sound(values)
            if not reply.ok:
                self._problems.append(f'a sound update of the {WORDS[values]} weights was answered "{reply.message}"')
                return
            left = self._subject.find_marks() if self._marks else ()
            if left:
                self._problems.append(
                    f"a sound update did not write {count(len(left), 'tensor')}: {join_truncated(left)}"
                )
            states.append(self._subject.read_state())
            versions.append(self._subject.version())
        new, old, again, old_again = states
        derived = new.derived | again.derived
        unlike = {name for name, digest in new.digests.items() if again.digests.get(name) != digest}
        unlike |= {name for name, digest in old.digests.items() if old_again.digests.get(name) != digest}
        scratch = frozenset(unlike & derived)
        self._known = KnownStates(dict(old.digests), dict(new.digests), scratch)
        if not new.digests:
            self._problems.append("the receiver holds no tensor that could be read")
        elif not self._known.moving:
            self._problems.append("the receiver holds the same after two updates with different weights")
        if steady := sorted(unlike - derived):
            self._problems.append(
                f"two sound updates of the same weights left {count(len(steady), 'tensor')} different: "
                + join_truncated(steady)
            )
        for values, state in ((NEW, new), (OLD, old)):
            self._compare_expected(values, state, scratch)
        if versions[-1] is not None and len(set(versions[1:])) == 1:
            self._problems.append(f"four updates left the version that the receiver reports at {versions[-1]}")

    def _compare_expected(self, values: int, state: ReceiverState, scratch: frozenset[str]) -> None:
        expected = self._subject.expected_state(values)
        wrong = sorted(
            name for name, digest in expected.items() if name not in scratch and state.digests.get(name) != digest
        )
        if wrong:
            self._problems.append(
                f"after a sound update {count(len(wrong), 'tensor')} of {len(expected):,} "
                f"{'is' if len(wrong) == 1 else 'are'} not what was sent: {join_truncated(wrong)}"
            )

    def _describe_poison(self) -> Outcome:
        if self._problems:
            return Outcome("poison", "", "untried", f"the sound update is not proved: {self._problems[0]}")
        if not self._marks:
            return Outcome("poison", "", "untried", "no marks can be written into what this receiver holds")
        return Outcome("poison", "", "harmless", f"every mark was overwritten, in {count(self._marks, 'tensor')}")

    def _try(self, fault: Fault) -> Outcome:
        """Put one fault on the transport. The receiver holds the old weights before and afterwards."""
        if obstacle := self._subject.find_obstacle(fault):
            return Outcome(fault.kind, fault.place, "untried", obstacle)
        subject, before = self._subject, self._subject.version()
        if fault.kind == "still-version" and before is None:
            return Outcome(fault.kind, fault.place, "untried", "the receiver reports no version")
        start = time.monotonic()
        self._updates += 1
        version = before if fault.kind == "still-version" and before is not None else str(self._updates)
        reply = subject.update(fault, fault.events, version)
        state, after = None, None
        if not reply.has_died and reply.has_ended:
            try:
                state, after = subject.read_state(), subject.version()
            except ReceiverLost as error:
                reply = replace(reply, message=reply.message or error.message)
        if fault.kind == "still-version" and reply.ok and after == before:
            reply = replace(reply, misreport=f"the version stayed {before} although the weights changed")
        outcome = replace(judge(fault, reply, self._known, state, after), seconds=time.monotonic() - start)
        return self._recover(outcome, must_restart=state is None)

    def _recover(self, outcome: Outcome, *, must_restart: bool) -> Outcome:
        """Bring the receiver back to the old weights and prove it."""
        if must_restart:
            self._restart()
            return replace(outcome, recovery="a restart")
        failure = self._find_reset_failure()
        if not failure.sentence:
            return replace(outcome, recovery="a sound update")
        # a refused update may end the session that refused it
        way = "ending the open update" if self._subject.end_update() else "a second sound update"
        if self._find_reset_failure().sentence:
            way = "a restart"
            self._restart()
        return replace(
            outcome,
            recovery=f"{way}: {failure.sentence}",
            is_stuck=True,
            is_wrong_afterwards=failure.reported_success,
        )

    def _restart(self) -> None:
        self._subject.restart()
        if (failure := self._find_reset_failure()).sentence:
            raise CkptcheckError(f"after a restart {failure.sentence}")

    def _find_reset_failure(self) -> _ResetFailure:
        """Send the old weights by a sound update over marks; return the fault that remains."""
        subject = self._subject
        try:
            marks = subject.write_marks()
            reply = self._send_sound(OLD)
            if not reply.ok:
                return _ResetFailure(f'a sound update afterwards was answered "{reply.message[:160]}"')
            left = subject.find_marks() if marks else ()
            if left:
                return _ResetFailure(
                    f"a sound update afterwards did not write {count(len(left), 'tensor')}", reported_success=True
                )
            holds, sentence = KnownStates(self._known.new, self._known.old, self._known.scratch).describe(
                subject.read_state()
            )
            if holds != "new":
                wrong = sentence.replace("old", "faulty").replace("new", "right")
                return _ResetFailure(f"after a sound update {wrong}", reported_success=True)
        except ReceiverLost as error:
            return _ResetFailure(f"the receiver could not be asked: {error.message}")
        return _ResetFailure("")

    def _send_sound(self, values: int) -> Reply:
        self._updates += 1
        return self._subject.update(None, send_all(len(self._subject.buckets), values), str(self._updates))


class _ResetFailure:
    """Why a sound update did not restore the weights; the sentence is "" if it did."""

    def __init__(self, sentence: str, *, reported_success: bool = False) -> None:
        self.sentence, self.reported_success = sentence, reported_success


def is_own_transport(transport: object) -> bool:
    """Return whether a transport is the user's own: a class, or its name as ``module:Class``."""
    return ":" in transport if isinstance(transport, str) else transport is not None


def try_own_transport(
    transport: str | Callable[[], WeightTransport],
    source: TrialSource | None = None,
    *,
    observer: Observer = SILENT,
) -> ConformanceTrace:
    """Run the kit over a transport of the user's own. source: the weights that it carries; None: random ones of the
    receiver's shapes.

    Raises CkptcheckError for a class that cannot be used, and for a source that cannot be opened.
    """
    name = transport if isinstance(transport, str) else f"{transport.__module__}:{transport.__qualname__}"
    make = load_transport(transport) if isinstance(transport, str) else transport
    with _scratch_folder() as folder:
        subject = OwnTransport(make, name, None if source is None else _read_tensors(source, folder))
        with contextlib.closing(subject):
            return ConformanceRun(subject, observer.log).run()


def _read_tensors(source: TrialSource, folder: Path) -> dict[str, Any]:
    """Return the tensors of a source as tensors of torch."""
    from ckptcheck.live.conformance.weights import read_weights, write_safetensors
    from ckptcheck.live.refit.source import open_source
    from ckptcheck.live.runtime.worker.ckptcheck_worker.tensor_files import read_tensors

    tolerated = source.errors if source.despite_errors else None
    weights = read_weights(open_source(source.target, folder / "source", source.hf_config, tolerated=tolerated))
    write_safetensors(weights, folder / "weights.safetensors")
    return read_tensors({"kind": "file", "path": str(folder / "weights.safetensors"), "tensors": len(weights)})


def try_engine_transport(
    transport: str, source: TrialSource, engine: TrialEngine, *, dtype: str = "float32", observer: Observer = SILENT
) -> ConformanceTrace:
    """Run the kit over a transport of an engine. dtype: what the engine computes in.

    Raises CkptcheckError for a source that cannot be opened, an engine that does not start, and a transport whose sender the kit
    cannot play.
    """
    from ckptcheck.live.conformance.engine_transport import EngineTransport
    from ckptcheck.live.refit.source import open_source
    from ckptcheck.live.runtime.engines import registry

    registry.check_build(engine.name, transport, engine.python)
    tolerated = source.errors if source.despite_errors else None
    with _scratch_folder() as folder:
        ckpt = open_source(source.target, folder / "source", source.hf_config, tolerated=tolerated)
        if ckpt.source.local is None:
            raise CkptcheckError(f"{source.target} is not on this disk")
        with contextlib.closing(EngineTransport(ckpt, engine, transport, dtype, folder)) as subject:
            return ConformanceRun(subject, observer.log).run()


@contextlib.contextmanager
def _scratch_folder() -> Any:
    folder = Path(tempfile.mkdtemp(prefix="ckptcheck-conformance-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

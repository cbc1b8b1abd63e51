"""The watch: observes the engine before and after each sync, and judges the sync by the record of the last ones."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import structs

from ckptcheck.jobs.first_step import find_logged_step
from ckptcheck.runs.history.logged_gap import find_gap, is_exact
from ckptcheck.runs.history.record import SyncRecord, run_id
from ckptcheck.watch.story import tell
from ckptcheck.watch.sync_check import SyncCheck, tell_findings
from ckptcheck.watch.syncing import Syncing
from ckptcheck.watch.watch_state import WatchState, convert_number

END_PATIENCE = 60.0
"""Seconds for which the end of training waits for checks beside it, so that the record is whole and a tracker's run still open."""
_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch(WatchState):
    """Watches the syncs of one trainer into one engine. Call it for every sync, and use the result in a ``with`` block.

    Args:
        engine: the engine to question after each sync, None for none.
        expected: returns the weights that the engine should hold now, if they do not pass through `Syncing.sent`.
        record: the file to append each sync to, None for none.
        keep: how many syncs the file keeps.
        every: digest the weights only at every n-th sync; the watch asks for the version at each.
        probe: fixed sequences that both sides score after every n-th sync, None for none.
        share: the part of a step's CPU time that digests may take. If they take more, and more than 20 ms of a step, the watch
            looks at a half, a quarter or an eighth of the tensors at a sync, at one part after the other, at each in two syncs: at
            every tensor within 16 syncs. After a finding it looks at all of them.
        budget: seconds that the digests of a sync may take at most. What is left then is not looked at, and the next syncs look
            at fewer tensors, until one is cheaper.
        trainer: the name of the trainer, for the record.
        enabled: False makes the watch do nothing, on all ranks but the first.
        on: what to do with findings: ``warn``, ``raise`` (errors only), or a function that gets each.
        metrics: where the numbers of each sync go, and findings as alerts: ``wandb``, ``trackio`` or ``mlflow`` for the job's own
            run, a run of theirs, a SummaryWriter of TensorBoard, ``prometheus:FILE`` for the collector of text files, the address
            of a webhook (findings only), a function of numbers and step, or a list of these.
        background: whether a sync is checked in a thread after it (record, rules, findings, metrics) and not before it ends.
            None: where a sync has more than 16 MB, and from the 17th sync on, unless findings are raised.
            `wait` waits for it.
        identity: also name the set of weights that was sent by its content, as ``ckptcheck identity`` names a checkpoint, at each
            sync that is digested; and that of the engine, where it is a `module`. Every tensor is then read whole, whatever the
            share. The path of a checkpoint of this model, whose config says how the weights are called, is better than True.
    """

    def logged(self, metrics: Mapping[Any, Any], step: int | None = None) -> None:
        """Give the watch what the job logs at a step: it looks for the gap that the job measures itself (HIS024), the norm of the
        gradient, and numbers that are 0 at step 0 (HIS032).

        The next sync records them. In a process that syncs no weights, such as the driver of verl, each has a record of its own.

        metrics: name → number. step: the step whose tokens they are about, counted as syncs are.
        """
        if not self.enabled:
            return
        step = convert_number(step, int)
        logged = find_logged_step(metrics, step) if step is not None else None
        if logged is not None:
            if self.logged_steps and self.logged_steps[-1].step == step:  # a job may log a step by parts
                logged = self.logged_steps.pop().join(logged)
            self.logged_steps.append(logged)
            self.pending_step = logged
        gap = find_gap(metrics, step, self.dtype)
        if gap is not None:
            if not self.dtype and not self.gaps and is_exact(gap):
                self.dtype = "float32"
                gap = structs.replace(gap, dtype=self.dtype)
            self.gaps.append(gap)
            self.pending_gap = gap
        elif logged is None or logged.gradient is None:
            return
        self._is_driver = self._is_driver or self.number == 0
        if self._is_driver:
            self.number += 1
            _watches.add(self)
            with Syncing(self, step, None, None, looks_at_weights=False):
                pass

    def close(self) -> None:
        """Judge what was logged since the last sync, wait until everything is recorded, and print one line on the whole job.

        The end of the process does it too.
        """
        if not self.enabled or self._is_closed or os.getpid() != self._maker:
            return
        self._is_closed = True
        self.wait(END_PATIENCE)
        if self.pending_gap is not None or self.pending_step is not None:
            self.attempt("judge what was logged", lambda: tell_findings(self, self.judge(None), is_error=True))
        tell(self.story.describe_end(self.coverage, self.record.path if self.record is not None else None))

    def __call__(self, *, step: int | None = None, loss: float | None = None, version: str | None = None) -> Syncing:
        """Return the watch of one sync.

        step: optimizer steps that the trainer has taken. loss: its last loss, a number or a tensor of one. version: the weight
        version that the sync gives the engine, for an engine that does not report it.
        """
        self.number += 1
        if self.ranks is not None:
            self.ranks.begin()
        self._is_closed = False
        _watches.add(self)
        if self.enabled:
            for name, value, convert in (("step", step, int), ("loss", loss, float)):
                if value is not None and convert_number(value, convert) is None:
                    self.say(f"{name} is no number but {type(value).__name__}, and is not recorded")
            step, loss = convert_number(step, int), convert_number(loss, float)
            version = None if version is None else str(version)
        return Syncing(self, step, loss, version, looks_at_weights=self.enabled and (self.number - 1) % self.every == 0)

    def note_missing(self, step: int) -> None:
        """Note that rollouts of a step begin without the sync of its weights."""
        if self.enabled:
            missing = SyncRecord(step=step, trainer=self.trainer, run=run_id(), missing=True)
            check = SyncCheck(self, missing, {}, is_in_background=self.is_in_background)
            if not self.is_in_background:
                check.run(None)
            else:
                self.thread.submit(lambda: check.run(None), 0.0, always=True)


@atexit.register
def _close_all() -> None:
    """Say how the jobs of this process went."""
    for watch in list(_watches):
        with suppress(Exception):
            watch.close()

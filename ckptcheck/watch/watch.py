"""The watch: observes the engine before and after each sync, and judges the sync by the record of the last ones."""

from __future__ import annotations

from ckptcheck.runs.history.record import SyncRecord, run_id
from ckptcheck.watch.sync_check import SyncCheck
from ckptcheck.watch.syncing import Syncing
from ckptcheck.watch.watch_state import WatchState, convert_number


class Watch(WatchState):
    """Watches the syncs of one trainer into one engine. Call it for every sync, and use the result in a ``with`` block.

    Args:
        engine: the engine to question after each sync, None for none.
        expected: returns the weights that the engine should hold now, if they do not pass through `Syncing.sent`.
        record: the file to append each sync to, None for none.
        keep: how many syncs the file keeps.
        every: digest the weights only at every n-th sync; the watch asks for the version at each.
        probe: fixed sequences that both sides score after every n-th sync, None for none.
        share: the part of the syncs' time that digests may take. If they take more, and more than 20 ms of a sync, the watch looks
            at so few of the tensors at a sync that the share suffices, at one after the other, at each in two syncs.
        budget: seconds that the digests of a sync may take at most. What is left then is not looked at, and the next syncs look
            at fewer tensors.
        trainer: the name of the trainer, for the record.
        enabled: False makes the watch do nothing, on all ranks but the first.
        on: what to do with findings: ``warn``, ``raise`` (errors only), or a function that gets each.
        metrics: where the numbers of each sync go, and findings as alerts: ``wandb``, ``trackio`` or ``mlflow`` for the job's own
            run, a run of theirs, a SummaryWriter of TensorBoard, a function of numbers and step, or a list of these.
        background: whether a sync is checked in a thread after it (record, rules, findings, metrics) and not before it ends.
            None: where a sync has more than 16 MB, and from the 17th sync on, unless findings are raised.
            `wait` waits for it.
        identity: also name the set of weights that was sent by its content, as ``ckptcheck identity`` names a checkpoint, at each
            sync that is digested; and that of the engine, where it is a `module`. Every tensor is then read whole, whatever the
            share. The path of a checkpoint of this model, whose config says how the weights are called, is better than True.
    """

    def __call__(self, *, step: int | None = None, loss: float | None = None, version: str | None = None) -> Syncing:
        """Return the watch of one sync.

        step: optimizer steps that the trainer has taken. loss: its last loss, a number or a tensor of one. version: the weight
        version that the sync gives the engine, for an engine that does not report it.
        """
        self.number += 1
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

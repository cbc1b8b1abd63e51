"""Syncs the engine of a trial, compares it with a cold load of the same weights, and looks for the causes of what differs."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from ckptcheck.live.refit.arrivals import noted_arrivals
from ckptcheck.live.refit.borrowed_memory import find_unsynced_changes
from ckptcheck.live.refit.cold_loads import ColdLoad, ColdLoads
from ckptcheck.live.refit.diagnose_sync import diagnose_sync
from ckptcheck.live.refit.draft_weights import DraftWeights
from ckptcheck.live.refit.engine_state import EngineState
from ckptcheck.live.refit.expert_moves import ExpertMoves
from ckptcheck.live.refit.identity_checks import IdentityChecks
from ckptcheck.live.refit.inflight import InflightUpdate
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.settings import TrialSettings
from ckptcheck.live.refit.sync import send_weights
from ckptcheck.live.refit.timed_update import timed_update
from ckptcheck.live.refit.trace import Sync, is_draft
from ckptcheck.live.refit.trial_phases import TrialPhases
from ckptcheck.live.runtime.engines.base import Engine, ScrambleResult
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.runs.history.record import utc_now


class TrialSyncs:
    """The syncs of one trial.

    prompt: of the request that runs during a sync, if one does. folder: has the checkpoints of the cold loads. identities: of
    what the engine holds. draft: what the engine drafts with and the trainer does not hold, None without it.
    """

    def __init__(
        self,
        settings: TrialSettings,
        observations: TrialObservations,
        phases: TrialPhases,
        state: EngineState,
        experts: ExpertMoves,
        cold_loads: ColdLoads,
        prompt: tuple[int, ...],
        folder: Path,
        identities: IdentityChecks,
        draft: DraftWeights | None = None,
    ) -> None:
        self._settings, self._observations, self._phases = settings, observations, phases
        self._state, self._experts, self._cold_loads = state, experts, cold_loads
        self._prompt, self._folder, self._identities, self._draft = prompt, folder, identities, draft

    def scramble(self, engine: Engine) -> ScrambleResult:
        """Overwrite the weights with marks, but for a draft model of which nothing is sent."""
        if self._observations.sent_draft or self._observations.untrained:
            return engine.scramble_weights(keep_draft=not self._observations.sent_draft)
        return engine.scramble_weights()

    def compare_before(self, engine: Engine, step: int, reference: ColdLoad) -> None:
        """Note what the engine holds otherwise after the trainer's step, although nothing was sent."""
        observations = self._observations
        with self._phases.run("sync", f"look at the engine before the sync after step {step}"):
            slept = not observations.sleep_skipped
            # experts may have been moved since the first sync
            held = self._experts.moved_tensors if step == 1 else {}
            held = held or observations.syncs[-1].manifest
            digests = self._state.digest_tensors(engine)
            observations.unsynced_changes[step] = find_unsynced_changes(held, digests, reference.manifest, slept=slept)

    def sync(
        self,
        trainer: Trainer,
        engine: Engine,
        step: int,
        bucket_bytes: int,
        reference: ColdLoad,
        phase: str,
        *,
        is_marked: bool = False,
    ) -> None:
        """Sync once, compare the engine with the reference, and look for the causes of what differs.

        is_marked: marks were written before.
        """
        observations, compares_weights = self._observations, self._settings.weights
        start_time = time.monotonic()
        with self._phases.run("sync", phase):
            sent = dict(trainer.digests())
            sent_seconds = time.monotonic() - start_time
            number = len(observations.syncs) + 1
            request = InflightUpdate(self._settings.pause, self._prompt, str(number)) if self._settings.pause else None
            with (
                timed_update(engine, step, observations.syncs) as is_timed,
                noted_arrivals(engine, tuple(sent), is_wanted=compares_weights, is_timed=is_timed) as noted,
            ):
                sync_start_time = time.monotonic()
                buckets, result = send_weights(
                    trainer, engine, bucket_bytes, self._settings.transport, f"sync-{number}", request
                )
                sync_end_time = time.monotonic()
                if self._settings.clears_cache:
                    engine.reset_prefix_cache()
                draft_answer = (
                    self._draft.send(engine, bucket_bytes, self._settings.transport)
                    if self._draft is not None
                    else None
                )
            result = replace(result, seconds=result.seconds - noted.seconds)
            sync = Sync(
                number=number,
                step=step,
                time=utc_now(),
                bucket_bytes=bucket_bytes,
                buckets=len(buckets),
                bucket_names=tuple(bucket.names for bucket in buckets),
                nbytes=sum(bucket.nbytes for bucket in buckets),
                answer=result,
                draft_answer=draft_answer,
                sent=sent,
                arrived=noted.arrived,
                loaded=noted.loaded,
                manifest=self._state.digest_tensors(engine) if compares_weights else {},
                reference=reference.manifest if compares_weights else {},
                scalars=self._state.read_scalars(engine) if compares_weights else {},
                reference_scalars=reference.scalars if compares_weights else {},
                seconds=sync_end_time - sync_start_time - noted.seconds,
                sent_seconds=sent_seconds,
                inflight_request=request.request if request else None,
            )
            memory = engine.memory_bytes()
            if compares_weights:
                sync = self._experts.compare(engine, sync, reference.slots)
                self._identities.identify_engine(engine, number)
            is_different = any(not is_draft(name) for _, name in sync.differing_tensors)
            sync = replace(sync, check_seconds=time.monotonic() - sync_end_time)
            if is_marked and compares_weights:
                sync = replace(sync, unwritten_parts=engine.find_unwritten(), was_marked=True)
        observations.memory.append(memory)
        observations.syncs.append(sync)
        if is_different:
            with self._phases.run("start", f"look for causes after sync {number}"):
                start_again = partial(self._cold_loads.start_again, step)
                observations.syncs[-1] = diagnose_sync(engine, start_again, sync, self._folder, observations.weights)

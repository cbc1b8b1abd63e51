"""Runs a trial: cold load, scramble, sync, step, sync again with other buckets, and a cold load to compare each sync with.

The reference is the same engine, started cold from the weights that the trainer holds. Knowing *that* a tensor is wrong
therefore needs no knowledge of fused, sharded or repacked layouts; only the diagnosis needs it, to say why.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.refit import placement
from ckptcheck.refit.arrivals import noted_arrivals
from ckptcheck.refit.borrowed_memory import find_unsynced_changes
from ckptcheck.refit.compute_path import Capturing
from ckptcheck.refit.diagnose_sync import diagnose_sync
from ckptcheck.refit.draft import Acceptance, add_untrained, find_untrained, measure_acceptance
from ckptcheck.refit.expert_moves import ExpertMoves
from ckptcheck.refit.expert_slots import Slots, read_slots
from ckptcheck.refit.export_checks import ExportChecks
from ckptcheck.refit.history.record import utc_now
from ckptcheck.refit.host_scalars import ScalarReader
from ckptcheck.refit.inflight import InflightUpdate
from ckptcheck.refit.module_errors import StartOracle
from ckptcheck.refit.module_search import ModuleSearch
from ckptcheck.refit.noise_floor import measure_noise_floor, measure_rounding
from ckptcheck.refit.observations import TrialObservations
from ckptcheck.refit.scoring_inputs import ScoringInputs
from ckptcheck.refit.settings import TrialSettings
from ckptcheck.refit.sleep_cycle import REST, WEIGHTS, SleepCheck, find_sleeping_engine, no_op_reason
from ckptcheck.refit.sync import send_weights
from ckptcheck.refit.timed_update import timed_update
from ckptcheck.refit.tokenizer import TrialTokenizer
from ckptcheck.refit.trace import Key, RefitTrace, Sync
from ckptcheck.refit.trace_queries import compare_scoring
from ckptcheck.refit.trial_phases import FollowPhase, Log, TrialPhases
from ckptcheck.runtime.engines.base import Engine, HostScalars, ScrambleResult, SequenceScores, TensorDigests
from ckptcheck.runtime.engines.sizing import DEFAULT_CONTEXT_LEN
from ckptcheck.runtime.engines.transports import select_transport
from ckptcheck.runtime.process.errors import RemoteError, WorkerDied
from ckptcheck.runtime.trainers.base import Trainer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class ColdLoad:
    """What an engine is after it was started cold from the trainer's weights."""

    manifest: TensorDigests
    scalars: HostScalars
    slots: Slots
    scores: tuple[SequenceScores, ...] = ()
    probe: SequenceScores | None = None
    """Score of the sequence that is in the prefix cache of the other engine."""


class StartEngine(Protocol):
    """Starts an engine cold from a checkpoint."""

    def __call__(self, checkpoint: Path) -> Engine:
        """Start it. Raises what the engine's worker raises."""
        ...


class RefitTrial:
    """One trial of a trainer and an engine.

    start_trainer: returns the trainer with its weights loaded; the caller closes it. start: starts the engine, each time in
    a process of its own. vocabulary: rows of the embedding. block: tokens that the engine's prefix cache keeps together, 0
    if it has no cache. length: tokens that the model has room for. nbytes: of the weights. text: the tokenizer, for a prompt
    that means something. folder: for the checkpoints that the trial writes. source: what the trainer loaded, to compare its export
    with; None if it cannot be compared. draft_source: the checkpoint with the layers by which the engine drafts, which the cold
    loads get from there where the trainer does not hold them; None without such layers. start_oracle: starts
    transformers in float32 with a checkpoint; None if nothing does. say: gets a line for each phase.
    """

    def __init__(
        self,
        target: str,
        start_trainer: Callable[[], Trainer],
        start: StartEngine,
        settings: TrialSettings,
        *,
        vocabulary: int,
        block: int = 0,
        length: int = DEFAULT_CONTEXT_LEN,
        nbytes: int = 0,
        text: TrialTokenizer | None = None,
        folder: Path,
        source: Checkpoint | None = None,
        draft_source: Checkpoint | None = None,
        start_oracle: StartOracle | None = None,
        say: Log = lambda _: None,
        follow: FollowPhase | None = None,
    ) -> None:
        self._start_trainer, self._start, self._settings = start_trainer, start, settings
        self._folder, self._say = folder, say
        self._source, self._draft_source = source, draft_source
        self._start_oracle = start_oracle
        self._trainer: Trainer
        self._cold_acceptance: float | None = None
        self._scratch: frozenset[Key] = frozenset()
        self._scalars = ScalarReader()
        self._inputs = ScoringInputs.for_trial(vocabulary, block, text or TrialTokenizer(), settings.decode, length)
        too_short = f"the model has room for {length} tokens, and the prefix cache keeps {block} together"
        self._observations = TrialObservations(
            target,
            too_short if block and not self._inputs.probe else "",
            is_fast=settings.logprobs and not settings.decode,
        )
        self._phases = TrialPhases(settings.timeouts, nbytes, say, follow)
        self._exports = ExportChecks(self._observations, self._phases, folder)
        self._experts = ExpertMoves(self._observations, self._phases, self._inputs)
        self._modules = ModuleSearch(self._observations, self._phases, folder, self._inputs.sequences[0])

    def run(self) -> RefitTrace:
        """Run the trial and return its evidence.

        A process that dies, hangs or refuses, and an interruption, end the trial; the trace names the phase and the reason.
        Raises CkptcheckError for a trainer or an engine that cannot be started at all.
        """
        observations = self._observations
        engine: Engine | None = None
        try:
            with self._phases.run("start", "start of the trainer"):
                self._trainer = self._start_trainer()
                observations.trainer, observations.weights = self._trainer.info, tuple(self._trainer.weights())
                if self._draft_source is not None:
                    exported = {weight.name for weight in observations.weights}
                    observations.untrained = find_untrained(self._draft_source, exported)
                self._exports.compare_ranks(self._trainer, 0)
            with self._phases.run("start", "cold load"):
                engine = self._start(self._save_checkpoint(0))
                self._observe_engine(engine)
            self._run_rounds(engine)
            self._modules.compare_with_float32(engine, self._trainer, self._start_oracle)
            self._measure_rounding()
            self._exports.compare_saved()
        except (CkptcheckError, OSError, KeyboardInterrupt) as error:
            is_refusal = isinstance(error, CkptcheckError) and not isinstance(error, (WorkerDied, RemoteError))
            # there is no evidence yet that could be kept
            if is_refusal and observations.engine is None:
                raise
            observations.failed_phases[self._phases.current] = self._phases.format_error(error)
        # a fault of our own, or a worker that answers something unexpected: the evidence so far is kept
        except Exception as error:
            self._say(traceback.format_exc().rstrip())
            observations.failed_phases[self._phases.current] = f"{type(error).__name__}: {error}"
        finally:
            if engine is not None:
                engine.close()
        return observations.to_trace()

    def _observe_engine(self, engine: Engine) -> None:
        """Note what the engine is and holds after the cold load."""
        observations, transport = self._observations, self._settings.transport
        placement.check_transport(self._trainer, engine, transport)
        for name, reason in engine.ignored_switches.items():
            self._say(f"{name}: {reason}")
        manifest, memory = self._digest(engine), engine.memory_bytes()
        observations.engine, observations.ignored_options, observations.cold_manifest = (
            engine.info,
            engine.ignored_switches,
            manifest,
        )
        if engine.info.facts.get("prefix_caching") == "False":
            observations.cache_unused_reason = f"{engine.info.name} runs without a prefix cache here"
        joins_buckets = select_transport(engine.transports, transport, engine.info.name).joins_buckets
        observations.stream_transport = transport if joins_buckets else ""
        observations.memory.append(memory)
        self._experts.observe_cold_load(engine)

    def _digest(self, engine: Engine) -> TensorDigests:
        """Digest the tensors of the engine; scratch memory is left out as soon as it is known."""
        return {key: entry for key, entry in engine.digest_tensors().items() if key not in self._scratch}

    def _find_scratch(self, engine: Engine) -> None:
        """Find the tensors and numbers that a forward pass changes: those are no weights, and nothing is to be compared of them.

        Only derived tensors can be scratch: a parameter or a buffer that a forward pass changes is a fault.
        """
        observations = self._observations
        engine.score([self._inputs.sequences[0]], decode=1)
        manifest, scalars = engine.digest_tensors(), self._scalars.read(engine)
        # of another length, so that a number that belongs to a request moves too
        engine.score([self._inputs.sequences[0][: len(self._inputs.sequences[0]) // 2 + 1]], decode=1)
        self._scalars.leave_out_moving(scalars, engine.read_scalars())
        observations.cold_scalars = self._scalars.read(engine)
        cold = observations.cold_manifest
        self._scratch = frozenset(
            key
            for key, entry in manifest.items()
            if entry.kind == "derived" and key in cold and cold[key].digest != entry.digest
        )
        observations.cold_manifest = {key: entry for key, entry in cold.items() if key not in self._scratch}

    def _run_rounds(self, engine: Engine) -> None:
        """Score, scramble and sync the loaded weights; then step, sync twice and score, as often as the settings say."""
        observations, settings = self._observations, self._settings
        if settings.logprobs:
            with self._phases.run("score", "score the cold load"):
                self._score(engine, 0, self._inputs.score_engine(engine))
            with self._phases.run("score", "measure the noise of both sides"):
                observations.noise_floor = measure_noise_floor(
                    engine, self._trainer, self._inputs.sequences, self._inputs.decode
                )
        with self._phases.run("sync", "find scratch memory"):
            self._find_scratch(engine)
        with self._phases.run("sync", "scramble"):
            scrambled, manifest = self._scramble(engine), self._digest(engine)
        observations.scrambled, observations.scrambled_manifest = scrambled, manifest
        cold = ColdLoad(observations.cold_manifest, observations.cold_scalars, self._experts.cold)
        self._sync(engine, 0, settings.bucket_bytes, cold, "first sync", is_marked=True)
        if settings.weights:
            if self._source is not None:
                self._exports.compare_source(self._source)
            self._exports.compare_shards(self._trainer, 0)
        with self._phases.run("score", "score after the first sync"):
            self._score(engine, 1, observations.scorings[0].engine if observations.scorings else ())
        if settings.weights and settings.steps:
            self._experts.move(engine)
        for step in self._phases.count_rounds(settings.steps):
            drops_weights = settings.sleep_level == 2
            if drops_weights:
                self._fill_cache(engine, step)
            with self._asleep(engine) as wake:
                with self._phases.run("step", f"step {step}"):
                    self._step(step)
                with self._phases.run("start", f"reference for step {step}"):
                    reference = self._load_reference(step)
                wake()
                if settings.weights and not drops_weights:
                    self._compare_before_sync(engine, step, reference)
                if not drops_weights:
                    self._fill_cache(engine, step)
                self._sync(engine, step, settings.second_bucket_bytes, reference, f"sync after step {step}")
            if settings.weights:
                self._exports.compare_shards(self._trainer, step)
            with self._phases.run("score", f"score after step {step}"):
                self._score(engine, len(observations.syncs), reference.scores, reference.probe)
            # This sync sends the values that the engine has: only marks show that it writes them. A request that runs meanwhile
            # would compute with the marks.
            if is_marked := settings.weights and not settings.pause:
                with self._phases.run("sync", "scramble again"):
                    self._scramble(engine)
            self._sync(
                engine, step, settings.bucket_bytes, reference, "the same sync with other buckets", is_marked=is_marked
            )

    def _compare_before_sync(self, engine: Engine, step: int, reference: ColdLoad) -> None:
        """Note what the engine holds otherwise after the trainer's step, although nothing was sent."""
        observations = self._observations
        with self._phases.run("sync", f"look at the engine before the sync after step {step}"):
            slept = not observations.sleep_skipped
            # experts may have been moved since the first sync
            held = self._experts.moved_tensors if step == 1 else {}
            held = held or observations.syncs[-1].manifest
            changes = find_unsynced_changes(held, self._digest(engine), reference.manifest, slept=slept)
        observations.unsynced_changes[step] = changes

    def _scramble(self, engine: Engine) -> ScrambleResult:
        """Overwrite the weights with marks, but for a draft model of which the trainer sends nothing."""
        return engine.scramble_weights(keep_draft=True) if self._observations.untrained else engine.scramble_weights()

    def _measure_rounding(self) -> None:
        """Measure how far rounding moves logprobs. This perturbs the trainer's weights, so it is the last phase."""
        observations = self._observations
        assert observations.engine is not None
        if not self._settings.logprobs:
            return
        with self._phases.run("score", "measure what rounding amounts to"):
            dtypes = [self._trainer.info.dtype, observations.engine.dtype]
            rounding = measure_rounding(self._trainer, dtypes, self._inputs.sequences)
            floor = observations.noise_floor
            observations.noise_floor = replace(floor, trainer=replace(floor.trainer, rounding=rounding))

    def _fill_cache(self, engine: Engine, step: int) -> None:
        if self._settings.logprobs:
            with self._phases.run("score", f"fill the cache before the sync after step {step}"):
                self._inputs.fill_cache(engine)

    @contextmanager
    def _asleep(self, engine: Engine) -> Iterator[Callable[[], None]]:
        """Let the engine sleep, if it can, while others need the device; yields the function that wakes it for a sync.

        The first sleep compares what the engine holds before and after. At level 2 the engine gets the memory of its weights
        back when it wakes, and that of its cache after the sync.
        """
        sleeper, level = find_sleeping_engine(engine), self._settings.sleep_level
        if isinstance(sleeper, str):
            self._observations.sleep_skipped = sleeper
            yield lambda: None
            return
        with self._phases.run("sync", "sleep"):
            is_first = self._observations.sleep_check is None
            before = self._digest(engine) if is_first else {}
            scalars_before = self._scalars.read(engine) if is_first else {}
            memory = sleeper.used_memory()
            sleeper.sleep(level)
            freed = memory - sleeper.used_memory()

        def wake() -> None:
            with self._phases.run("sync", "wake"):
                sleeper.wake(WEIGHTS if level == 2 else None)
                if before:
                    after = self._digest(engine)
                    self._observations.sleep_check = SleepCheck(
                        before, after, freed, level, no_op_reason(engine), scalars_before, self._scalars.read(engine)
                    )

        yield wake
        if level == 2:
            with self._phases.run("sync", "wake the rest"):
                sleeper.wake(REST)

    def _save_checkpoint(self, step: int) -> Path:
        folder = self._folder / f"step{step}"
        folder.mkdir()
        self._trainer.save(folder)
        if self._draft_source is not None and self._observations.untrained:
            add_untrained(folder, self._draft_source, self._observations.untrained)
        return folder

    def _step(self, step: int) -> None:
        if self._settings.perturb is not None:
            self._trainer.perturb(self._settings.perturb, seed=step)
        else:
            self._observations.steps.append(self._trainer.step(self._inputs.sequences, seed=step))
        self._exports.compare_ranks(self._trainer, step)

    def _load_reference(self, step: int) -> ColdLoad:
        """Start the engine cold from the stepped weights, digest and score it, and close it again."""
        engine = self._start(self._save_checkpoint(step))
        try:
            self._experts.follow(engine)
            manifest, slots = self._digest(engine), read_slots(engine)
            scores: tuple[SequenceScores, ...] = ()
            # the probe first: nothing is in its cache then
            probe = self._inputs.score_cache_probe(engine) if self._settings.logprobs else None
            if self._settings.logprobs:
                scores = self._inputs.score_engine(engine)
                self._cold_acceptance = measure_acceptance(engine, self._inputs.sequences)
            else:
                # some numbers are made by the first forward pass
                engine.score([self._inputs.sequences[0]], decode=1)
            return ColdLoad(manifest, self._scalars.read(engine), slots, scores, probe)
        finally:
            engine.close()

    def _sync(
        self,
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
            sent = dict(self._trainer.digests())
            sent_seconds = time.monotonic() - start_time
            number = len(observations.syncs) + 1
            request = (
                InflightUpdate(self._settings.pause, self._inputs.prompt, str(number)) if self._settings.pause else None
            )
            with (
                timed_update(engine, step, observations.syncs) as is_timed,
                noted_arrivals(engine, tuple(sent), is_wanted=compares_weights, is_timed=is_timed) as noted,
            ):
                sync_start_time = time.monotonic()
                buckets, result = send_weights(
                    self._trainer, engine, bucket_bytes, self._settings.transport, f"sync-{number}", request
                )
                sync_end_time = time.monotonic()
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
                sent=sent,
                arrived=noted.arrived,
                loaded=noted.loaded,
                manifest=self._digest(engine) if compares_weights else {},
                reference=reference.manifest if compares_weights else {},
                scalars=self._scalars.read(engine) if compares_weights else {},
                reference_scalars=reference.scalars if compares_weights else {},
                seconds=sync_end_time - sync_start_time - noted.seconds,
                sent_seconds=sent_seconds,
                inflight_request=request.request if request else None,
            )
            memory = engine.memory_bytes()
            if compares_weights:
                sync = self._experts.compare(engine, sync, reference.slots)
            is_different = bool(sync.differing_tensors)
            sync = replace(sync, check_seconds=time.monotonic() - sync_end_time)
            if is_marked and compares_weights:
                sync = replace(sync, unwritten_parts=engine.find_unwritten(), was_marked=True)
        observations.memory.append(memory)
        observations.syncs.append(sync)
        if is_different:
            with self._phases.run("start", f"look for causes after sync {number}"):
                start_again = partial(self._start_again, step)
                observations.syncs[-1] = diagnose_sync(engine, start_again, sync, self._folder, observations.weights)

    def _start_again(self, step: int) -> Engine:
        """Start the engine cold once more from the weights of a step, with its experts where they lie by then."""
        engine = self._start(self._folder / f"step{step}")
        return self._experts.follow(engine) if step else engine

    def _score(
        self, engine: Engine, after_sync: int, cold: Sequence[SequenceScores], cold_probe: SequenceScores | None = None
    ) -> None:
        if not self._settings.logprobs:
            return
        observations = self._observations
        scoring = self._inputs.score_both_sides(engine, self._trainer, after_sync, cold, cold_probe)
        observations.scorings.append(scoring)
        if after_sync and observations.syncs[after_sync - 1].scalars:
            # some numbers are made anew by the first forward pass after a sync
            sync = replace(observations.syncs[after_sync - 1], scalars=self._scalars.read(engine))
            observations.syncs[after_sync - 1] = sync
        if (acceptance := measure_acceptance(engine, self._inputs.sequences)) is not None:
            if not after_sync:
                self._cold_acceptance = acceptance
            observations.acceptances.append(Acceptance(after_sync, acceptance, self._cold_acceptance or acceptance))
        if not after_sync or compare_scoring(scoring).most <= observations.noise_floor.cold_load_tolerance:
            return
        sync = observations.syncs[after_sync - 1]
        if sync.manifest and not sync.has_wrong_parameter and isinstance(engine, Capturing):
            self._modules.compare_with_cold_load(engine, self._start_again, sync)

"""Runs a trial: cold load, scramble, sync, step, sync again with other buckets, and a cold load to compare each sync with.

The reference is the same engine, started cold from the weights that the trainer holds. Knowing *that* a tensor is wrong
therefore needs no knowledge of fused, sharded or repacked layouts; only the diagnosis needs it, to say why.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit import placement
from ckptcheck.live.refit.cold_loads import ColdLoad, ColdLoads, StartEngine
from ckptcheck.live.refit.draft_weights import DraftWeights
from ckptcheck.live.refit.engine_state import EngineState
from ckptcheck.live.refit.expert_moves import ExpertMoves
from ckptcheck.live.refit.export_checks import ExportChecks
from ckptcheck.live.refit.first_step import FirstStep
from ckptcheck.live.refit.identity_checks import IdentityChecks
from ckptcheck.live.refit.image_scoring import ImageProbes
from ckptcheck.live.refit.module_errors import StartOracle
from ckptcheck.live.refit.module_search import ModuleSearch
from ckptcheck.live.refit.observations import TrialObservations
from ckptcheck.live.refit.scoring_inputs import ScoringInputs
from ckptcheck.live.refit.settings import TrialSettings
from ckptcheck.live.refit.tokenizer import TrialTokenizer
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trial_phases import FollowPhase, Log, TrialPhases
from ckptcheck.live.refit.trial_scores import TrialScores
from ckptcheck.live.refit.trial_sleep import TrialSleep
from ckptcheck.live.refit.trial_syncs import TrialSyncs
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.sizing import DEFAULT_CONTEXT_LEN
from ckptcheck.live.runtime.engines.transports import select_transport
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
from ckptcheck.live.runtime.trainers.base import Trainer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class RefitTrial:
    """One trial of a trainer and an engine.

    start_trainer: returns the trainer with its weights loaded; the caller closes it. start: starts the engine, each time in
    a process of its own. vocabulary: rows of the embedding. block: tokens that the engine's prefix cache keeps together, 0
    if it has no cache. length: tokens that the model has room for. nbytes: of the weights. text: the tokenizer, for a prompt
    that means something. folder: for the checkpoints that the trial writes. source: what the trainer loaded, to compare its export
    with; None if it cannot be compared. draft: what the engine drafts with and the trainer does not hold;
    None without it. start_oracle: starts
    transformers in float32 with a checkpoint; None if nothing does. first_step: is recorded after the first sync, None for
    none. image_token: stands for an image, None for a model that takes none. say: gets a line for each phase.
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
        draft: DraftWeights | None = None,
        start_oracle: StartOracle | None = None,
        first_step: FirstStep | None = None,
        image_token: int | None = None,
        say: Log = lambda _: None,
        follow: FollowPhase | None = None,
    ) -> None:
        self._start_trainer, self._settings, self._say = start_trainer, settings, say
        self._source, self._start_oracle, self._first_step, self._draft = source, start_oracle, first_step, draft
        self._trainer: Trainer
        inputs = ScoringInputs.for_trial(vocabulary, block, text or TrialTokenizer(), settings.decode, length)
        too_short = f"the model has room for {length} tokens, and the prefix cache keeps {block} together"
        observations = self._observations = TrialObservations(
            target,
            too_short if block and not inputs.probe else "",
            is_fast=settings.logprobs and not settings.decode,
        )
        phases = self._phases = TrialPhases(settings.timeouts, nbytes, say, follow)
        state = self._state = EngineState()
        self._sequences = inputs.sequences
        identities = self._identities = IdentityChecks(observations, source)
        self._exports = ExportChecks(observations, phases, folder, identities)
        experts = self._experts = ExpertMoves(observations, phases, inputs)
        self._modules = ModuleSearch(observations, phases, folder, inputs.sequences[0])
        images = ImageProbes(image_token, inputs.sequences[0], observations)
        self._sleep = TrialSleep(settings.sleep_level, observations, phases, state)
        cold_loads = self._cold_loads = ColdLoads(start, folder, draft, observations, inputs, state, experts, images)
        self._scores = TrialScores(observations, phases, inputs, state, cold_loads, self._modules, images)
        self._syncs = TrialSyncs(
            settings, observations, phases, state, experts, cold_loads, inputs.prompt, folder, identities, draft
        )

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
                self._cold_loads.observe_trainer(self._trainer)
                self._exports.compare_ranks(self._trainer, 0)
            with self._phases.run("start", "cold load"):
                engine = self._cold_loads.start(self._trainer, 0)
                self._observe_engine(engine)
            self._run_rounds(engine)
            self._modules.compare_with_float32(engine, self._trainer, self._start_oracle)
            if self._settings.logprobs:
                self._scores.measure_rounding(self._trainer)
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
        manifest, memory = self._state.digest_tensors(engine), engine.memory_bytes()
        observations.engine, observations.ignored_options, observations.cold_manifest = (
            engine.info,
            engine.ignored_switches,
            manifest,
        )
        if self._settings.weights:
            self._identities.identify_engine(engine, 0)
        if engine.info.facts.get("prefix_caching") == "False":
            observations.cache_unused_reason = f"{engine.info.name} runs without a prefix cache here"
        joins_buckets = select_transport(engine.transports, transport, engine.info.name).joins_buckets
        observations.stream_transport = transport if joins_buckets else ""
        observations.memory.append(memory)
        self._experts.observe_cold_load(engine)

    def _run_rounds(self, engine: Engine) -> None:
        """Score, scramble and sync the loaded weights; then step, sync twice and score, as often as the settings say."""
        settings = self._settings
        self._sync_loaded_weights(engine)
        if settings.weights and settings.steps:
            self._experts.move(engine)
        for step in self._phases.count_rounds(settings.steps):
            drops_weights, fills_cache = settings.sleep_level == 2, settings.logprobs
            if drops_weights and fills_cache:
                self._scores.fill_cache(engine, step)
            with self._sleep.asleep(engine) as wake:
                with self._phases.run("step", f"step {step}"):
                    self._step(step)
                with self._phases.run("start", f"reference for step {step}"):
                    reference = self._cold_loads.measure(self._trainer, step, has_scores=settings.logprobs)
                wake()
                if settings.weights and not drops_weights:
                    self._syncs.compare_before(engine, step, reference)
                if not drops_weights and fills_cache:
                    self._scores.fill_cache(engine, step)
                self._sync(engine, step, settings.second_bucket_bytes, reference, f"sync after step {step}")
            if settings.weights:
                self._exports.compare_shards(self._trainer, step)
            if settings.logprobs:
                with self._phases.run("score", f"score after step {step}"):
                    self._scores.score(engine, self._trainer, len(self._observations.syncs), reference)
            # This sync sends the values that the engine has: only marks show that it writes them. A request that runs meanwhile
            # would compute with the marks.
            if is_marked := settings.weights and not settings.pause:
                with self._phases.run("sync", "scramble again"):
                    self._syncs.scramble(engine)
            self._sync(
                engine, step, settings.bucket_bytes, reference, "the same sync with other buckets", is_marked=is_marked
            )

    def _sync_loaded_weights(self, engine: Engine) -> None:
        """Score the cold load, scramble its weights, and sync those that the trainer has loaded."""
        observations, settings = self._observations, self._settings
        if settings.logprobs:
            self._scores.score_cold_load(engine, self._trainer)
        with self._phases.run("sync", "find scratch memory"):
            self._state.find_scratch(engine, self._sequences[0], observations)
        with self._phases.run("sync", "scramble"):
            scrambled, manifest = self._syncs.scramble(engine), self._state.digest_tensors(engine)
        observations.scrambled, observations.scrambled_manifest = scrambled, manifest
        cold = ColdLoad(observations.cold_manifest, observations.cold_scalars, self._experts.cold)
        self._sync(engine, 0, settings.bucket_bytes, cold, "first sync", is_marked=True)
        if settings.weights:
            if self._source is not None:
                self._exports.compare_source(self._source)
            self._exports.compare_shards(self._trainer, 0)
        if settings.logprobs:
            with self._phases.run("score", "score after the first sync"):
                self._scores.score(engine, self._trainer, 1, None)
        if self._first_step is not None:
            self._record_first_step(self._first_step, engine)

    def _record_first_step(self, first_step: FirstStep, engine: Engine) -> None:
        """Have the first step of a job recorded, unless the first sync did not bring the trainer's weights."""
        sync = self._observations.syncs[0]
        if not sync.answer.ok or sync.has_wrong_parameter or sync.has_unwritten_parameter:
            self._say("no rollouts: the first sync did not bring the trainer's weights")
            return
        with self._phases.run("score", "record the first step"):
            try:
                first_step.record(engine, self._trainer)
            except WorkerDied:
                raise
            except CkptcheckError as error:
                self._say(f"no rollouts: {error.message}")

    def _sync(
        self, engine: Engine, step: int, bucket_bytes: int, reference: ColdLoad, phase: str, *, is_marked: bool = False
    ) -> None:
        self._syncs.sync(self._trainer, engine, step, bucket_bytes, reference, phase, is_marked=is_marked)

    def _step(self, step: int) -> None:
        if self._settings.perturb is not None:
            self._trainer.perturb(self._settings.perturb, seed=step)
        else:
            self._observations.steps.append(self._trainer.step(self._sequences, seed=step))
        if self._draft is not None:
            self._draft.step(self._settings.perturb, step)
        self._exports.compare_ranks(self._trainer, step)

"""Runs a trial: cold load, scramble, sync, step, sync again with other buckets, and a cold load to compare each sync with.

The reference is the same engine, started cold from the weights that the trainer holds. Knowing *that* a tensor is wrong
therefore needs no knowledge of fused, sharded or repacked layouts; only the diagnosis needs it, to say why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.live.refit.draft import DraftWeights
from ckptcheck.live.refit.expert_slots import read_slots
from ckptcheck.live.refit.feasibility import check_transport
from ckptcheck.live.refit.module_errors import StartOracle
from ckptcheck.live.refit.observations import SleepCheck
from ckptcheck.live.refit.scoring_inputs import ScoringInputs, TrialTokenizer
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trial_scores import (
    ColdLoad,
    build_image_prompt,
    compare_with_float32,
    fill_cache,
    measure_cold_load,
    measure_rounding_last,
    observe_trainer,
    score_cold_load,
    score_sides,
    start_cold,
)
from ckptcheck.live.refit.trial_state import FollowPhase, Log, StartEngine, TrialPhases, TrialSettings, TrialState
from ckptcheck.live.refit.trial_syncs import (
    compare_ranks,
    compare_saved,
    compare_shards,
    compare_source,
    identify_engine,
    move_experts,
    scramble,
    sync_weights,
)
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.capabilities import find_able, why_sleep_frees_nothing, why_unable
from ckptcheck.live.runtime.engines.sizing import DEFAULT_CONTEXT_LEN
from ckptcheck.live.runtime.engines.transports import select_transport
from ckptcheck.live.runtime.trainers.base import Trainer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

WEIGHTS, REST = ("weights",), ("kv_cache", "cuda_graph")
"""What jobs that train and sample on the same GPUs wake before a sync (if the engine dropped its weights), and after it."""


class RefitTrial:
    """One trial of a trainer and an engine.

    start_trainer: returns the trainer with its weights loaded; the caller closes it. start: starts the engine, each time in
    a process of its own. vocabulary: rows of the embedding. block: tokens that the engine's prefix cache keeps together, 0
    if it has no cache. length: tokens that the model has room for. nbytes: of the weights. text: the tokenizer, for a prompt
    that means something. folder: for the checkpoints that the trial writes. source: what the trainer loaded, to compare its export
    with; None if it cannot be compared. draft: what the engine drafts with and the trainer does not hold; None without it.
    start_oracle: starts transformers in float32 with a checkpoint; None if nothing does. image_token: stands for an image, None
    for a model that takes none. say: gets a line for each phase.
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
        image_token: int | None = None,
        say: Log = lambda _: None,
        follow: FollowPhase | None = None,
    ) -> None:
        self._start_trainer, self._start_oracle = start_trainer, start_oracle
        inputs = ScoringInputs.for_trial(vocabulary, block, text or TrialTokenizer(), settings.decode, length)
        too_short = f"the model has room for {length} tokens, and the prefix cache keeps {block} together"
        self._trace = RefitTrace(
            target,
            cache_unused_reason=too_short if block and not inputs.probe else "",
            is_fast=settings.logprobs and not settings.decode,
            clears_cache=settings.clears_cache,
        )
        self._state = TrialState(
            settings, TrialPhases(settings.timeouts, nbytes, say, follow), self._trace, inputs, start, folder,
            source=source, draft=draft, image=build_image_prompt(image_token, inputs.sequences[0]),
        )  # fmt: skip

    def run(self) -> RefitTrace:
        """Run the trial and return its evidence.

        A process that dies, hangs or refuses, and an interruption, end the trial; the trace names the phase and the reason.
        Raises CkptcheckError for a trainer or an engine that cannot be started at all.
        """
        trial, trace, phases = self._state, self._trace, self._state.phases
        engine: Engine | None = None
        try:
            with phases.keep_evidence(trace.failed_phases, has_evidence=lambda: trace.engine is not None):
                with phases.run("start", "start of the trainer"):
                    trainer = self._start_trainer()
                    observe_trainer(trial, trainer)
                    compare_ranks(trial, trainer, 0)
                with phases.run("start", "cold load"):
                    engine = start_cold(trial, trainer, 0)
                    self._observe_engine(engine, trainer)
                self._sync_loaded_weights(engine, trainer)
                if trial.settings.weights and trial.settings.steps:
                    move_experts(trial, engine)
                for step in phases.count_rounds(trial.settings.steps):
                    self._run_round(engine, trainer, step)
                compare_with_float32(trial, engine, trainer, self._start_oracle)
                if trial.settings.logprobs:
                    measure_rounding_last(trial, trainer)
                compare_saved(trial)
        finally:
            if engine is not None:
                engine.close()
        return trace

    def _observe_engine(self, engine: Engine, trainer: Trainer) -> None:
        """Note what the engine is and holds after the cold load."""
        trial, trace, transport = self._state, self._trace, self._state.settings.transport
        check_transport(trainer, engine, transport)
        for name, reason in engine.ignored_switches.items():
            trial.phases.log(f"{name}: {reason}")
        manifest, memory = trial.digest_tensors(engine), engine.memory_bytes()
        trace.engine, trace.ignored_options, trace.cold_manifest = engine.info, engine.ignored_switches, manifest
        if trial.settings.weights:
            identify_engine(trial, engine, 0)
        if engine.info.facts.get("prefix_caching") == "False":
            trace.cache_unused_reason = f"{engine.info.name} runs without a prefix cache here"
        joins_buckets = select_transport(engine.transports, transport, engine.info.name).joins_buckets
        trace.stream_transport = transport if joins_buckets else ""
        trace.memory.append(memory)
        trial.cold_slots = read_slots(engine)

    def _sync_loaded_weights(self, engine: Engine, trainer: Trainer) -> None:
        """Score the cold load, scramble its weights, and sync those that the trainer has loaded."""
        trial, trace, settings = self._state, self._trace, self._state.settings
        if settings.logprobs:
            score_cold_load(trial, engine, trainer)
        with trial.phases.run("sync", "find scratch memory"):
            trial.find_scratch(engine)
        with trial.phases.run("sync", "scramble"):
            scrambled, manifest = scramble(trial, engine), trial.digest_tensors(engine)
        trace.scrambled, trace.scrambled_manifest = scrambled, manifest
        cold = ColdLoad(trace.cold_manifest, trace.cold_scalars, trial.cold_slots)
        sync_weights(trial, trainer, engine, 0, settings.bucket_bytes, cold, "first sync", is_marked=True)
        if settings.weights:
            compare_source(trial)
            compare_shards(trial, trainer, 0)
        if settings.logprobs:
            with trial.phases.run("score", "score after the first sync"):
                score_sides(trial, engine, trainer, None)

    def _run_round(self, engine: Engine, trainer: Trainer, step: int) -> None:
        """Take a step while the engine sleeps, and sync it twice, with different buckets."""
        trial, settings = self._state, self._state.settings
        drops_weights, fills_cache = settings.sleep_level == 2, settings.logprobs
        if drops_weights and fills_cache:
            fill_cache(trial, engine, step)
        with self._asleep(engine) as wake:
            with trial.phases.run("step", f"step {step}"):
                self._step(trainer, step)
            with trial.phases.run("start", f"reference for step {step}"):
                reference = measure_cold_load(trial, trainer, step)
            wake()
            if not drops_weights and fills_cache:
                fill_cache(trial, engine, step)
            sync_weights(
                trial, trainer, engine, step, settings.second_bucket_bytes, reference, f"sync after step {step}"
            )
        if settings.weights:
            compare_shards(trial, trainer, step)
        if settings.logprobs:
            with trial.phases.run("score", f"score after step {step}"):
                score_sides(trial, engine, trainer, reference)
        # This sync sends the values that the engine has: only marks show that it writes them. A request that runs meanwhile
        # would compute with the marks.
        if is_marked := settings.weights and not settings.pause:
            with trial.phases.run("sync", "scramble again"):
                scramble(trial, engine)
        sync_weights(
            trial, trainer, engine, step, settings.bucket_bytes, reference, "the same sync with other buckets",
            is_marked=is_marked,
        )  # fmt: skip

    def _step(self, trainer: Trainer, step: int) -> None:
        trial, perturb = self._state, self._state.settings.perturb
        if perturb is not None:
            trainer.perturb(perturb, seed=step)
        else:
            self._trace.steps.append(trainer.step(trial.inputs.sequences, seed=step))
        if trial.draft is not None:
            trial.draft.step(perturb, step)
        compare_ranks(trial, trainer, step)

    @contextmanager
    def _asleep(self, engine: Engine) -> Iterator[Callable[[], None]]:
        """Let the engine sleep, if it can, while others need the device; yields the function that wakes it for a sync.

        The first sleep compares what the engine holds before and after. At level 2 the engine gets the memory of its weights
        back when it wakes, and that of its cache after the sync.
        """
        trial, trace, level = self._state, self._trace, self._state.settings.sleep_level
        sleeper = find_able(engine, "sleep")
        if sleeper is None:
            trace.sleep_skipped = why_unable(engine, "sleep")
            yield lambda: None
            return
        with trial.phases.run("sync", "sleep"):
            is_first = trace.sleep_check is None
            before = trial.digest_tensors(engine) if is_first else {}
            scalars_before = trial.read_scalars(engine) if is_first else {}
            memory = sleeper.used_memory()
            sleeper.sleep(level)
            freed = memory - sleeper.used_memory()

        def wake() -> None:
            with trial.phases.run("sync", "wake"):
                sleeper.wake(WEIGHTS if level == 2 else None)
                if before:
                    after, no_op_reason = trial.digest_tensors(engine), why_sleep_frees_nothing(engine.info)
                    trace.sleep_check = SleepCheck(
                        before, after, freed, level, no_op_reason, scalars_before, trial.read_scalars(engine)
                    )

        yield wake
        if level == 2:
            with trial.phases.run("sync", "wake the rest"):
                sleeper.wake(REST)

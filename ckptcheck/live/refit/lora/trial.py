"""Runs a trial of a LoRA adapter: load, eviction, and another adapter under the same name, each held to a cold load."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.live_trial import PREFIX_CACHE_BLOCK, TrialEngine, clean_up_folder
from ckptcheck.live.refit.lora.trace import CachedAdapterProbe, LoraTrace, Scores, ServedAdapter
from ckptcheck.live.refit.scoring_inputs import cache_probe_sequence, scoring_sequences
from ckptcheck.live.refit.trial_state import FollowPhase, Log, Timeouts, TrialPhases
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.text.file_io import read_json_file
from ckptcheck.text.observer import SILENT, Observer

DECODE = 2
"""Tokens that a request decodes, so that it reads the prefix cache."""
NAME = "policy"
"""The name under which requests ask for the adapter."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SLOTS = 2
"""Adapters that the engine holds at once: few, so that it has to evict."""


class LoraTrial:
    """One trial of an adapter.

    start: starts the engine with a checkpoint, for adapters or not, in place of a running one. checkpoint: the base model.
    adapter: its folder. vocabulary: rows of the embedding. block: tokens that the prefix cache keeps together, 0 where the model
    has no room for two. folder: for what the trial writes. timeouts: of each kind of phase, None for the usual ones; to load
    and score an adapter is a sync. nbytes: of the base model's weights. say: gets a line for each phase.
    """

    def __init__(
        self,
        trace: LoraTrace,
        start: Callable[[Path, bool, Engine | None], Engine],
        checkpoint: Path,
        adapter: Path,
        *,
        vocabulary: int,
        block: int,
        folder: Path,
        timeouts: Timeouts | None = None,
        nbytes: int = 0,
        say: Log = lambda _: None,
        follow: FollowPhase | None = None,
    ) -> None:
        self.trace, self._start, self._checkpoint, self._adapter = trace, start, checkpoint, adapter
        self._folder, self._phases = folder, TrialPhases(timeouts or Timeouts(), nbytes, say, follow)
        self._sequences = scoring_sequences(vocabulary)
        self._probe = cache_probe_sequence(vocabulary, block) if block else ()

    def run(self) -> LoraTrace:
        """Run the trial and return its evidence. Raises CkptcheckError for an engine that cannot be started at all."""
        engine: Engine | None = None
        try:
            with self._phases.keep_evidence(
                self.trace.failed_phases, has_evidence=lambda: self.trace.engine is not None
            ):
                engine = self._run_tested_engine()
                engine = self._run_references(engine)
        finally:
            if engine is not None:
                engine.close()
        return self.trace

    def _run_tested_engine(self) -> Engine:
        """Load the adapter, have others take its slot, and replace it under its name."""
        trace = self.trace
        with self._phases.run("start", "cold load of the base model"):
            engine = self._start(self._checkpoint, True, None)
        try:
            with self._phases.run("sync", "load the adapter"):
                trace.engine = engine.info
                trace.base = self._score(engine, "")
                engine.load_adapter(NAME, self._adapter)
                trace.loaded = self._observe(engine, NAME)
                trace.repeat = self._score(engine, NAME)
            with self._phases.run("sync", "load more adapters than there are slots"):
                # with two slots, this many bring the adapter back to the other one
                for number in range(2 * trace.slots):
                    other = self._folder / f"other{number}"
                    engine.write_variant(self._adapter, other, seed=10 + number)
                    engine.load_adapter(other.name, other)
                    self._score(engine, other.name)
                trace.evicted = self._observe(engine, NAME)
                trace.base_after = self._score(engine, "")
            with self._phases.run("sync", "load another adapter under the same name"):
                if self._probe:
                    engine.score_with_adapter([self._probe], NAME, decode=DECODE)
                engine.write_variant(self._adapter, self._folder / "next", seed=1)
                engine.load_adapter(NAME, self._folder / "next", trace.update)
                if self._probe:
                    cached = engine.score_with_adapter([self._probe], NAME, decode=DECODE)[0]
                    engine.reset_prefix_cache()
                    after_reset = engine.score_with_adapter([self._probe], NAME, decode=DECODE)[0]
                    trace.cache_probe = CachedAdapterProbe(cached, after_reset)
                trace.updated = self._observe(engine, NAME)
            with self._phases.run("sync", "merge the adapter"):
                for name, nudge in (("merged", False), ("nudged", True)):
                    engine.write_merged(self._checkpoint, self._adapter, self._folder / name, nudge=nudge)
        except BaseException:
            engine.close()
            raise
        return engine

    def _run_references(self, engine: Engine) -> Engine:
        """Start the engine cold with the other adapter, and from the merged checkpoint."""
        trace = self.trace
        with self._phases.run("start", "cold load of the other adapter"):
            engine = self._start(self._checkpoint, True, engine)
            engine.load_adapter(NAME, self._folder / "next")
            if self._probe:
                trace.cold_probe = engine.score_with_adapter([self._probe], NAME, decode=DECODE)[0]
            trace.updated_cold = self._observe(engine, NAME)
        with self._phases.run("start", "cold load of the merged checkpoint"):
            engine = self._start(self._folder / "merged", False, engine)
            merged = self._score(engine, "")
            engine = self._start(self._folder / "nudged", False, engine)
            trace.merged, trace.merged_nudged = merged, self._score(engine, "")
        return engine

    def _observe(self, engine: Engine, name: str) -> ServedAdapter:
        scores = self._score(engine, name)
        return ServedAdapter(scores, engine.digest_adapter(name))

    def _score(self, engine: Engine, name: str) -> Scores:
        engine.reset_prefix_cache()
        return tuple(engine.score_with_adapter(self._sequences, name))


@dataclass(frozen=True)
class AdapterShape:
    """What an engine has to know of an adapter before it starts."""

    rank: int
    """Of its largest pair."""
    modules: tuple[str, ...]
    """Last parts of the names of the modules that it changes."""


@contextlib.contextmanager
def run_live_lora_trial(
    source: str,
    adapter: Path,
    engine: TrialEngine,
    *,
    dtype: str,
    update: str,
    timeouts: Timeouts | None = None,
    observer: Observer = SILENT,
) -> Iterator[LoraTrace]:
    """Run a trial of an adapter and yield its trace. Leaving the context ends the processes and removes the files.

    Raises CkptcheckError for a source or an adapter that cannot be opened, and for an engine that is not installed.
    """
    from ckptcheck.checkpoint.files_beside import list_files_beside
    from ckptcheck.live.refit.lora.trial import LoraTrial
    from ckptcheck.live.refit.source import open_source
    from ckptcheck.live.runtime.engines import registry
    from ckptcheck.live.runtime.engines.engine_options import parse_switches
    from ckptcheck.live.runtime.engines.sizing import default_context_len
    from ckptcheck.live.runtime.process.signal_guard import SignalGuard

    shape = read_adapter_shape(adapter)
    switches = parse_switches(list(engine.switches))
    with SignalGuard() as signal_guard, contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-lora-"))
        stack.callback(clean_up_folder, folder, False, observer)
        ckpt = open_source(source, folder / "source")
        base, embedding = ckpt.source.local, ckpt.components.embedding
        if base is None or embedding is None:
            raise CkptcheckError(f"{source} is no checkpoint on this disk with a token embedding")
        list_files_beside(base)  # the worker copies them for the merged weights
        arguments = registry.CLASSES[engine.name]().lora_arguments(SLOTS, shape.rank, shape.modules)

        def start(checkpoint: Path, serves_adapters: bool, replaces: Engine | None) -> Engine:
            started = registry.start_engine(
                engine.name, checkpoint, dtype=dtype, ranks=engine.tp, mode=engine.mode, switches=switches,
                python=engine.python, gpus=engine.gpus, scratch=(folder,), replaces=replaces,
                extra_arguments=arguments if serves_adapters else {},
            )  # fmt: skip
            return started

        trace = LoraTrace(source, str(adapter), update, SLOTS)
        has_room = default_context_len(base) >= 2 * PREFIX_CACHE_BLOCK + 16
        trial = LoraTrial(
            trace, start, base, adapter, vocabulary=ckpt.tensors[embedding].shape[0],
            block=PREFIX_CACHE_BLOCK if has_room else 0, folder=folder,
            timeouts=timeouts, nbytes=sum(tensor.nbytes for tensor in ckpt.tensors.values()), say=observer.log,
            follow=observer.phase,
        )  # fmt: skip
        trial.run()
        signal_guard.ignore_signals()
        yield trace


def read_adapter_shape(adapter: Path) -> AdapterShape:
    """Read rank and modules from the headers of an adapter. Raises CkptcheckError for what is no adapter of PEFT."""
    from ckptcheck.checkpoint.open import open_checkpoint

    hint = f"a LoRA adapter is a folder with {CONFIG} and {WEIGHTS}; ckptcheck scan looks at one"
    try:
        config = read_json_file(adapter / CONFIG)
        rank = int(config["r"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise CkptcheckError(f"{adapter} has no {CONFIG} that says its rank", hint) from error
    if not (adapter / WEIGHTS).is_file():
        raise CkptcheckError(f"{adapter} has no {WEIGHTS}", hint)
    names = open_checkpoint(str(adapter)).tensors
    pairs = {name: tensor.shape for name, tensor in names.items() if ".lora_A." in name and len(tensor.shape) == 2}
    modules = sorted({name.partition(".lora_A.")[0].rpartition(".")[2] for name in pairs})
    if not modules:
        raise CkptcheckError(f"{adapter} has no matrix lora_A", hint)
    return AdapterShape(max(rank, *(shape[0] for shape in pairs.values())), tuple(modules))

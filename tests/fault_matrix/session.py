"""Runs many faults in the same processes: a trainer, the engine under test, and one that plays the cold load.

What makes that sound, and is proved each time rather than trusted:

- The engine under test starts every trial with the weights of the trainer's step 0, all faults taken out: its digests are those of
  its own cold start, and its logprobs those of then, bit for bit. Otherwise it is started anew.
- The cold load of a step is another process, into which the checkpoint of that step is loaded by the engine's own loader. For the
  weights of a sound trainer its digests are held against those of real cold starts, at the beginning of a session.
- The trainer is loaded anew for every trial, in ranks of their own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import live
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.scoring_inputs import TrialTokenizer
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trial import RefitTrial
from ckptcheck.live.refit.trial_state import TrialSettings
from ckptcheck.live.runtime.engines import registry
from ckptcheck.live.runtime.engines.base import Bucket
from ckptcheck.live.runtime.engines.sglang import SglangEngine
from ckptcheck.live.runtime.engines.vllm import VllmEngine
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers import megatron
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
from ckptcheck.live.runtime.trainers.transformers import start_transformers
from tests.fault_matrix.fault import Fault

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]
INJECTORS = Path(__file__).parent / "injectors"
TRANSPORTS = {"vllm": "load_weights", "sglang": "tensor"}
"""By which each engine gets weights in one call a bucket."""
PROBE = tuple(range(9, 60))
SETTINGS: Mapping[str, Any] = {"bucket_bytes": 90_000, "second_bucket_bytes": 40_000, "decode": 8}


@dataclass(frozen=True)
class Outcome:
    """A trial's evidence, its report, and the seconds that it took with all that was needed to make the next one sound."""

    trace: RefitTrace
    report: Report
    seconds: float


class NotSound(Exception):
    """An engine without a fault is not what its cold start was."""


class FaultyEngine:
    """The engine under test, or the cold load: a live engine with the fault at the right moments. Not ended with a trial."""

    def __init__(self, engine: Any, fault: Fault | None, is_cold: bool) -> None:
        self._engine, self._fault, self._is_cold = engine, fault, is_cold
        self._syncs = 0
        if is_cold and fault is not None and fault.both:
            self._inject("inject", 0, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def update_weights(self, buckets: Sequence[Bucket], transport: str, *, timeout: float | None = None) -> Any:
        """Update the weights with the fault in the loader, or beside it."""
        self._syncs += 1
        fault, number = self._fault, self._syncs
        if fault is None or fault.both or not fault.first <= number <= fault.last:
            return self._engine.update_weights(buckets, transport)
        if fault.at == "around" and number == fault.first:
            self._engine._call("inject_around", name=fault.inject)
        if fault.at == "load" or (fault.at == "engine" and fault.when == "before" and number == fault.first):
            self._inject("inject", number, len(buckets))
        answer = self._engine.update_weights(buckets, transport)
        if fault.at == "load":
            self._engine._call_ranks("heal", False)
        elif fault.at == "engine" and (fault.when == "every" or (fault.when == "after" and number == fault.first)):
            self._inject("inject", number, len(buckets))
        return answer

    def update_inflight(self, prompts: Any, sampling: Any, buckets: Any, **how: Any) -> Any:
        """Update the weights while a request runs, otherwise than was asked for."""
        changes = self._fault.arguments if self._fault is not None and self._fault.at == "request" else {}
        return self._engine.update_inflight(prompts, sampling, buckets, **{**how, **changes})

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Wake up, with a fault that sleep brings."""
        self._engine.wake(tags)
        if self._fault is not None and self._fault.when == "wake":
            self._inject("inject", self._syncs, 0)

    def _inject(self, method: str, number: int, buckets: int) -> None:
        assert self._fault is not None
        request = {
            "at": self._fault.at,
            "inject": self._fault.inject,
            "arguments": dict(self._fault.arguments),
            "sync": number,
            "buckets": buckets,
        }
        self._engine._call_ranks(method, request)

    def close(self) -> None:
        """Leave it to the session; what was put into the cold load is taken out."""
        if self._is_cold and self._fault is not None and self._fault.both:
            self._engine._call_ranks("heal", True)


class KeptTrainer:
    """A trainer that goes on when a trial is over."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def close(self) -> None:
        """Leave it to the session."""


class FaultSession:
    """Processes of one engine, with one model, that many trials share. Use it as a context manager."""

    def __init__(self, engine: str, model: str, ranks: int = 1, say: Callable[[str], None] = lambda _: None) -> None:
        self.engine, self.ranks, self._say = engine, ranks, say
        self._model = model
        self._host: Any = None
        self._tested: Any = None
        self._cold: Any = None
        self._oracle_host: Any = None
        self._scores: dict[Any, Any] = {}
        self.restarts = 0

    def __enter__(self) -> FaultSession:
        self._stack = ExitStack()
        patch = self._stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(VllmEngine, "module", INJECTORS / "fault_vllm.py")
        patch.setattr(SglangEngine, "module", INJECTORS / "fault_sglang.py")
        patch.setattr(megatron, "MODULE", INJECTORS / "fault_megatron.py")
        self._folder = Path(tempfile.mkdtemp(prefix="ckptcheck-faults-"))
        self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._exchange = self._stack.enter_context(TensorExchange())
        self._stack.callback(self._close)
        self._source = open_checkpoint(str(live.write(self._model, self._folder / "source")))
        self._prove()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _close(self) -> None:
        for each in filter(None, (self._tested, self._cold, self._host, self._oracle_host)):
            each.close()

    def _prove(self) -> None:
        """Start both engines cold, from steps 0 and 1 of a sound trainer; hold every way to load against cold starts."""
        trainer = self._load_trainer(None)
        for step in (0, 1):
            if step:
                trainer.step(self._sequences(), seed=1)
            trainer.save(self._folder / f"sound{step}")
        self._sound = [_hash(self._folder / f"sound{step}") for step in (0, 1)]
        self._tested = self._start(self._folder / "sound0")
        self._cold = self._start(self._folder / "sound1")
        self._digests = {
            hashed: _digests(engine) for hashed, engine in zip(self._sound, (self._tested, self._cold), strict=True)
        }
        self._first_scores = self._score(self._tested)
        self._loaded = self._sound[1]
        for step in (0, 1):
            self._load(self._cold, self._folder / f"sound{step}")

    def _sequences(self) -> list[tuple[int, ...]]:
        from ckptcheck.live.refit.scoring_inputs import ScoringInputs

        rows = self._source.tensors[str(self._source.components.embedding)].shape[0]
        decode = SETTINGS["decode"]
        return [*ScoringInputs.for_trial(rows, 128, TrialTokenizer(self._source.source), decode, 512).sequences]

    def _start(self, checkpoint: Path) -> Any:
        return registry.start_engine(
            self.engine, checkpoint, ranks=self.ranks, context_len=512, scratch=(self._folder,), sleep_level=1
        )

    def _start_oracle(self, checkpoint: Path) -> Any:
        """Load transformers in float32, in the process of the one before."""
        opened = open_checkpoint(str(checkpoint))
        started = start_transformers(opened, self._exchange, process=TrainerProcess("cpu", host=self._oracle_host))
        self._oracle_host = started.host
        return KeptTrainer(started)

    def _load_trainer(self, fault: Fault | None) -> Any:
        layout = ParallelLayout(tp=2)
        trainer = megatron.start_megatron(
            self._source, self._exchange, layout=layout, process=TrainerProcess(host=self._host)
        )
        self._host = trainer.host
        if fault is not None and fault.at == "trainer":
            trainer._ask(
                "inject", name=fault.inject, arguments=dict(fault.arguments), saved=fault.saved, sent=fault.sent,
                first_step=fault.first if fault.first > 1 or fault.when == "later" else 0,
            )  # fmt: skip
        return trainer

    def _load(self, engine: Any, checkpoint: Path) -> None:
        """Load a checkpoint into a running engine by its own loader. Raises NotSound where a cold start is known and differs."""
        hashed = _hash(checkpoint)
        with TensorExchange() as exchange:
            answer = engine.update_weights(_buckets(checkpoint, exchange), TRANSPORTS[self.engine])
        engine.reset_prefix_cache()
        known = self._digests.get(hashed)
        if not answer.ok or (known is not None and _digests(engine) != known):
            raise NotSound(f"{self.engine} loaded {checkpoint.name} otherwise than a cold start: {answer.message}")

    def _score(self, engine: Any) -> Any:
        engine.reset_prefix_cache()
        return engine.score([PROBE], decode=4)

    def run(self, fault: Fault | None) -> Outcome:
        """Run a trial with a fault, or without one; then make the processes sound again."""
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        engines: list[Any] = []
        in_engine = fault if fault is not None and fault.at != "trainer" else None

        def start(checkpoint: Path) -> Any:
            if not engines:
                if _hash(checkpoint) != self._sound[0]:
                    self._load(self._tested, checkpoint)
                engines.append(FaultyEngine(self._tested, in_engine, is_cold=False))
                if fault is not None and fault.both:
                    engines[0]._inject("inject", 0, 0)
                return engines[0]
            if (hashed := _hash(checkpoint)) != self._loaded:
                self._loaded = ""
                self._load(self._cold, checkpoint)
                self._loaded = hashed
            return FaultyEngine(self._cold, in_engine, is_cold=True)

        rows = self._source.tensors[str(self._source.components.embedding)].shape[0]
        asked = {**SETTINGS, **(fault.settings if fault is not None else {})}
        transport = (fault.transport if fault is not None else {}).get(self.engine, TRANSPORTS[self.engine])
        trial = RefitTrial(
            str(fault or "sound"),
            lambda: KeptTrainer(self._load_trainer(fault)),
            start,
            TrialSettings(transport=transport, **asked),
            vocabulary=rows,
            block=128,
            text=TrialTokenizer(self._source.source),
            folder=folder,
            source=self._source,
            start_oracle=self._start_oracle,
            say=self._say,
        )
        trace = trial.run()
        report = run_rules(trace, RULES)
        self._heal()
        shutil.rmtree(folder, ignore_errors=True)
        return Outcome(trace, report, time.monotonic() - began)

    def _heal(self) -> None:
        """Take all faults out, load step 0, and prove that the engine is what its cold start was; start it anew if it is not."""
        try:
            for engine in (self._tested, self._cold):
                engine._call_ranks("heal", True)
                engine._call("heal_around")
            self._load(self._tested, self._folder / "sound0")
            if self._score(self._tested) != self._first_scores:
                raise NotSound("logprobs differ")
        except Exception as error:
            self._say(f"the engine is started anew: {error}")
            self.restarts += 1
            for each in (self._tested, self._cold):
                each.close()
            self._tested = self._start(self._folder / "sound0")
            self._cold = self._start(self._folder / "sound1")
            self._loaded = self._sound[1]
            self._first_scores = self._score(self._tested)


def _hash(checkpoint: Path) -> str:
    """Return a digest of a checkpoint's tensors."""
    files = sorted(checkpoint.glob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _digests(engine: Any) -> dict[Any, str]:
    """Return the digests of what an engine holds, without what it derives."""
    return {key: entry.digest for key, entry in engine.digest_tensors().items() if entry.kind != "derived"}


def _buckets(checkpoint: Path, exchange: TensorExchange) -> list[Bucket]:
    """Return a checkpoint's files as buckets."""
    from safetensors import safe_open

    found = []
    for number, path in enumerate(sorted(checkpoint.glob("*.safetensors"))):
        address = exchange.address(f"load-{number}")
        shutil.copyfile(path, address["path"])
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            names = tuple(slices)
            dtypes = tuple(each.get_dtype() for each in slices.values())
            shapes = tuple(tuple(each.get_shape()) for each in slices.values())
        size = path.stat().st_size
        found.append(Bucket({**address, "tensors": len(names), "bytes": size}, names, dtypes, shapes, size))
    return found


def describe(outcome: Outcome) -> str:
    """Return what was found, one finding a line, for people who look at a fault."""
    lines = [f"{finding.code} {finding.severity}: {finding.message}" for finding in outcome.report.findings]
    lines += [f"failed {phase}: {why}" for phase, why in outcome.trace.failed_phases.items()]
    return json.dumps(lines, indent=1, ensure_ascii=False)

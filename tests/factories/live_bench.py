"""Trials on live engines whose faults are done to what is sent to them, or to what lies in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import live
import numpy as np

from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.trial import RefitTrial
from ckptcheck.live.refit.trial_state import TrialSettings
from ckptcheck.live.runtime.engines.base import Bucket, Engine, InflightResult, UpdateResult
from ckptcheck.live.runtime.process.exchange import TensorExchange
from tests.factories import sent_buckets
from tests.factories.refit_cases import FakeTrainer

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]
Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors, int], Tensors]


class FixedStepTrainer(FakeTrainer):
    """Holds the weights of a checkpoint. Its steps are the same every time, so cold loads of them can be kept."""

    def __init__(self, folder: Path, held: Tensors, extra: str = "") -> None:
        super().__init__(folder, extra=extra)
        self._held, self.steps = held, 0

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        self._held = sent_buckets.perturb_weights(self._held, seed=seed)

    def save(self, folder: Path) -> None:
        pass  # the references are there already


class FaultInjectingEngine:
    """A live engine that is sent other tensors than the trainer sends, and touched afterwards. Not ended with a trial.

    changed: gets the tensors and the number of the sync, returns what is sent. after: called when the sync is over. under_way: how
    it is updated while a request runs, otherwise than it is asked to.
    """

    def __init__(
        self,
        engine: Engine,
        changed: Change = lambda tensors, _: tensors,
        after: Callable[[Any, int], None] = lambda *_: None,
        chunks: bool = False,
        under_way: Mapping[str, Any] | None = None,
    ) -> None:
        self._engine, self._changed, self._after, self._chunks = engine, changed, after, chunks
        self._number, self._under_way = 0, under_way or {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def update_weights(
        self, parcels: Sequence[Bucket], transport: str, *, timeout: float | None = None
    ) -> UpdateResult:
        with self._sent(parcels) as made:
            calls = [[each] for each in made] if self._chunks else [made]
            answer = [self._engine.update_weights(each, transport) for each in calls][-1]
        self._after(self._engine, self._number)
        return answer

    def update_inflight(self, prompts: Any, sampling: Any, parcels: Sequence[Bucket], **how: Any) -> InflightResult:
        with self._sent(parcels) as made:
            return self._engine.update_inflight(prompts, sampling, made, **{**how, **self._under_way})

    @contextmanager
    def _sent(self, parcels: Sequence[Bucket]) -> Iterator[list[Bucket]]:
        self._number += 1
        tensors: Tensors = {}
        for parcel in parcels:
            tensors |= sent_buckets.load_file(parcel.address["path"])
        with TensorExchange() as exchange:
            yield sent_buckets.write_buckets(self._changed(tensors, self._number), exchange, parcels[0].nbytes)

    def close(self) -> None:
        pass


class LiveTrials:
    """Two engines: the one under test, and one that is started cold from the trainer's weights. made: starts one.

    transport: by which weights reach it unless a trial says otherwise. changed: changes the checkpoint of the model first.
    """

    def __init__(
        self,
        folder: Path,
        made: Callable[[Path], Any],
        model: str,
        transport: str,
        changed: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self.folder, self.trials, self.transport = folder, 0, transport
        self.first = live.write(model, folder / "step0")
        changed(self.first)
        self.held = sent_buckets.read_weights(self.first)
        sent_buckets.write_checkpoint(self.first, sent_buckets.perturb_weights(self.held, seed=1), folder / "step1")
        self.made, self.tested, self.cold, self.loaded = made, made(self.first), None, ""

    def start(self, checkpoint: Path) -> Engine:
        if self.cold is None:
            self.cold = self.made(self.folder / checkpoint.name)
        elif self.loaded != checkpoint.name:
            self.cold.restart(self.folder / checkpoint.name)
        self.loaded = checkpoint.name
        return FaultInjectingEngine(self.cold)

    def trial(
        self,
        changed: Change = lambda tensors, _: tensors,
        after: Callable[[Any, int], None] = lambda *_: None,
        *,
        chunks: bool = False,
        transport: str = "",
        extra: str = "",
        under_way: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Report:
        """Run a trial with that fault; the engine is put right first."""
        self.trials += 1
        with TensorExchange() as exchange:
            assert self.tested.update_weights(sent_buckets.write_buckets(self.held, exchange), self.transport).ok
        folder = self.folder / f"trial{self.trials}"
        folder.mkdir()
        engines = iter([FaultInjectingEngine(self.tested, changed, after, chunks, under_way)])
        asked = {"bucket_bytes": 60_000, "second_bucket_bytes": 20_000, "logprobs": False, **settings}
        trainer = FixedStepTrainer(folder, dict(self.held), extra)
        trial = RefitTrial(
            "live",
            lambda: trainer,
            lambda path: next(engines, None) or self.start(path),
            TrialSettings(transport=transport or self.transport, **asked),
            vocabulary=512,
            folder=folder,
        )
        trace = trial.run()
        assert not trace.failed_phases
        return run_rules(trace, RULES)

    def close(self) -> None:
        for engine in filter(None, (self.tested, self.cold)):
            engine.close()


def messages_by_code(report: Report) -> dict[str, str]:
    """Return code → the messages of its findings, one after the other."""
    found: dict[str, list[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.code, []).append(finding.message)
    return {code: "; ".join(messages) for code, messages in found.items()}


def drop_tensors(*names: str) -> Change:
    return lambda tensors, _: {name: values for name, values in tensors.items() if name not in names}

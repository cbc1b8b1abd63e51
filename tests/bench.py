"""Trials on live engines whose faults are done to what is sent to them, or to what lies in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import live
import numpy as np
import sent
from refitted import FakeTrainer

from ckptcheck import pack
from ckptcheck.engines.base import Answer, Engine, Parcel
from ckptcheck.engines.sampling import Inflight
from ckptcheck.host.exchange import Exchange
from ckptcheck.refit.settings import Settings
from ckptcheck.refit.trial import Trial
from ckptcheck.report import Report
from ckptcheck.run import run

RULES = [rule for rule in pack.load() if rule.on == "refit"]
Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors, int], Tensors]


class Sender(FakeTrainer):
    """Holds the weights of a checkpoint. Its steps are the same every time, so cold loads of them can be kept."""

    def __init__(self, folder: Path, held: Tensors, extra: str = "") -> None:
        super().__init__(folder, extra=extra)
        self._held, self.steps = held, 0

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        self._held = sent.stepped(self._held, seed=seed)

    def save(self, folder: Path) -> None:
        pass  # the references are there already


class Faulty:
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

    def refit(self, parcels: Sequence[Parcel], transport: str, *, timeout: float | None = None) -> Answer:
        with self._sent(parcels) as made:
            calls = [[each] for each in made] if self._chunks else [made]
            answer = [self._engine.refit(each, transport) for each in calls][-1]
        self._after(self._engine, self._number)
        return answer

    def inflight(self, prompts: Any, sampling: Any, parcels: Sequence[Parcel], **how: Any) -> Inflight:
        with self._sent(parcels) as made:
            return self._engine.inflight(prompts, sampling, made, **{**how, **self._under_way})

    @contextmanager
    def _sent(self, parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
        self._number += 1
        tensors: Tensors = {}
        for parcel in parcels:
            tensors |= sent.load_file(parcel.address["path"])
        with Exchange() as exchange:
            yield sent.buckets(self._changed(tensors, self._number), exchange, parcels[0].nbytes)

    def close(self) -> None:
        pass


class Bench:
    """Two engines: the one under test, and one that is started cold from the trainer's weights. made: starts one.

    transport: by which weights reach it unless a trial says otherwise.
    """

    def __init__(self, folder: Path, made: Callable[[Path], Any], model: str, transport: str) -> None:
        self.folder, self.trials, self.transport = folder, 0, transport
        self.first = live.write(model, folder / "step0")
        self.held = sent.weights(self.first)
        sent.checkpoint(self.first, sent.stepped(self.held, seed=1), folder / "step1")
        self.made, self.tested, self.cold, self.loaded = made, made(self.first), None, ""

    def start(self, checkpoint: Path) -> Engine:
        if self.cold is None:
            self.cold = self.made(self.folder / checkpoint.name)
        elif self.loaded != checkpoint.name:
            self.cold.restart(self.folder / checkpoint.name)
        self.loaded = checkpoint.name
        return Faulty(self.cold)

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
        with Exchange() as exchange:
            assert self.tested.refit(sent.buckets(self.held, exchange), self.transport).ok
        folder = self.folder / f"trial{self.trials}"
        folder.mkdir()
        engines = iter([Faulty(self.tested, changed, after, chunks, under_way)])
        asked = {"bucket_bytes": 60_000, "other_bytes": 20_000, "logprobs": False, **settings}
        trainer = Sender(folder, dict(self.held), extra)
        trial = Trial(
            "live",
            lambda: trainer,
            lambda path: next(engines, None) or self.start(path),
            Settings(transport=transport or self.transport, **asked),
            vocabulary=512,
            folder=folder,
        )
        trace = trial.run()
        assert not trace.broken
        return run(trace, RULES)

    def close(self) -> None:
        for engine in filter(None, (self.tested, self.cold)):
            engine.close()


def told(report: Report) -> dict[str, str]:
    return {finding.code: finding.message for finding in report.findings}


def without(*names: str) -> Change:
    return lambda tensors, _: {name: values for name, values in tensors.items() if name not in names}

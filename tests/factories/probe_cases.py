"""Runs probes on a fake engine that has faults, beside a fake trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from safetensors.numpy import save_file

from ckptcheck.live.experiments.probes.environment import EngineSetup, ProbeEnvironment, run_probes
from ckptcheck.live.experiments.probes.registry import select_probes
from ckptcheck.live.experiments.probes.trace import ProbeTrace
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.rollouts.metrics.noise_floor import NoiseFloor
from ckptcheck.rollouts.metrics.sampling_distribution import processed
from tests.doubles import fake_model as model
from tests.doubles.fake_serving import EXPERTS, FakeServing
from tests.factories.case_table import CaseTable
from tests.factories.refit_cases import VOCABULARY, FakeTrainer, weights

PROMPTS = ((3, 9, 20, 11), (5, 6, 30, 8, 12, 14), (7, 7, 19))
CHAT = ("<s>Who?", (1, 17, 18), ({"role": "user", "content": "Who?"},))


class ScoringTrainer(FakeTrainer):
    """Computes as the fake engine does.

    padding: sequences that are filled up are off. wide: its head is in float32. rounding: nats by which every second logprob is
    off, to both sides.
    """

    def __init__(self, folder: Path, *, padding: bool = False, wide: bool = False, rounding: float = 0.0) -> None:
        super().__init__(folder)
        self._padding, self._wide, self._rounding = padding, wide, rounding

    def score(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        off = 0.004 if self._wide else 0.0
        return [
            tuple(float(table[place, token]) - off for place, token in enumerate(tokens[1:]))
            for tokens, table in ((tokens, processed(self._table(tokens), temperature)) for tokens in sequences)
        ]

    def score_batched(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        longest = max(map(len, sequences))
        return [
            tuple(value - 0.2 * (self._padding and len(tokens) < longest) for value in values)
            for tokens, values in zip(sequences, self.score(sequences, temperature=temperature), strict=True)
        ]

    def score_full_vocab(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        path = folder / "full-trainer.safetensors"
        save_file({str(n): np.ascontiguousarray(self._table(t), np.float32) for n, t in enumerate(sequences)}, path)
        return path

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        number: int,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
    ) -> list[tuple[int, ...]]:
        asked = [
            Sampling(temperature, top_p, top_k, max_tokens=number, seed=seed + n, ignore_eos=True)
            for n in range(len(prompts))
        ]
        return [each.tokens for each in FakeServing(self._held).generate(prompts, asked)]

    def expert_routing(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        return [[[(t + layer) % EXPERTS, (t + layer + 1) % EXPERTS] for t in tokens] for layer in range(2)]

    def _table(self, tokens: Sequence[int]) -> Any:
        engine = FakeServing(self._held)
        table = model.logprobs(*engine._state(), tokens[:-1])
        signs = np.where(np.indices(table.shape).sum(axis=0) % 2, 1.0, -1.0)
        return table + self._rounding * signs


class ProbeCase(CaseTable, kw_only=True):
    """A case of a rule on probes."""

    probes: list[str]
    """The probes to run."""
    faults: list[str] = []
    """Those of the fake engine, see `FakeServing`."""
    untaken: list[str] = []
    """NAME=VALUE of the switches that it ignores."""
    stock: Literal["raw", "processed"] = "raw"
    """The distribution of which its logprobs are if nobody says."""
    switches: dict[str, Any] = {}
    """The switches of the job, see `Switches`."""
    sampling: dict[str, Any] = msgspec.field(default_factory=lambda: {"temperature": 0.7})
    """The sampling of the job, see `Sampling`."""
    trainer: dict[str, Any] = {}
    """What is wrong with the trainer, see `ScoringTrainer`; head_fp32: whether its head is in float32. It rounds only in a narrow
    dtype."""
    floor: float | None = None
    """mult_prob_error of equal weights, which the user measured before."""
    dtype: str = "float32"
    """What the engine and the trainer say that they compute in."""
    ends: list[int] = msgspec.field(default_factory=lambda: [2, 4])
    """The tokens that end a response."""


def run_probe_case(table: Mapping[str, Any], folder: Path) -> ProbeTrace:
    """Run the probes of a case."""
    case = msgspec.convert(table, ProbeCase)
    folder.mkdir(exist_ok=True)
    asked = dict(case.trainer)
    wide = asked.pop("head_fp32", False)
    ends = dict.fromkeys(case.ends, "generation_config.json")

    def start(setup: EngineSetup, instead: Engine | None) -> Engine:
        return FakeServing(
            weights(), case.faults, switches=setup.switches, length=setup.length, dtype=setup.dtype or case.dtype,
            ends=ends, chat=CHAT[1], untaken=case.untaken, stock=case.stock,
        )  # fmt: skip

    def trainer(dtype: str, head_fp32: bool, instead: Trainer | None) -> Trainer:
        faults = asked if dtype != "float32" else asked | {"rounding": 0.0}
        made = ScoringTrainer(folder, wide=head_fp32, **faults)
        made.info = replace(made.info, dtype=dtype)
        return made

    bench = ProbeEnvironment(
        PROMPTS, VOCABULARY, folder, start_trainer=trainer, sampling=Sampling(**case.sampling),
        setup=EngineSetup(Switches(**case.switches)), stop_tokens=ends, conversation=CHAT,
        length=64, block=4, response=12, head_fp32=wide, dtype=case.dtype,
    )  # fmt: skip
    trace = run_probes("trial", bench, start, select_probes(case.probes, ()))
    return trace if case.floor is None else replace(trace, floor=NoiseFloor({"mult_prob_error": case.floor}))

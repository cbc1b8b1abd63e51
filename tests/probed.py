"""Runs probes on a fake engine that has faults, beside a fake trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from refitted import VOCABULARY, FakeTrainer, weights
from safetensors.numpy import save_file

from ckptcheck.engines import fake_model as model
from ckptcheck.engines.base import Engine
from ckptcheck.engines.fake_serving import EXPERTS, FakeServing
from ckptcheck.engines.sampling import Sampling
from ckptcheck.engines.switches import Switches
from ckptcheck.metrics.processed import processed
from ckptcheck.parity.probes.bench import Bench, Setup
from ckptcheck.parity.probes.catalogue import chosen
from ckptcheck.parity.probes.runner import run_probes
from ckptcheck.parity.probes.trace import ProbeTrace
from ckptcheck.trainers.base import Trainer

PROMPTS = ((3, 9, 20, 11), (5, 6, 30, 8, 12, 14), (7, 7, 19))
CHAT = ("<s>Who?", (1, 17, 18), ({"role": "user", "content": "Who?"},))


class ScoringTrainer(FakeTrainer):
    """Computes as the fake engine does. padding: sequences that are filled up are off. wide: its head is in float32."""

    def __init__(self, folder: Path, *, padding: bool = False, wide: bool = False) -> None:
        super().__init__(folder)
        self._padding, self._wide = padding, wide

    def score(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        off = 0.004 if self._wide else 0.0
        return [
            tuple(float(table[place, token]) - off for place, token in enumerate(tokens[1:]))
            for tokens, table in ((tokens, processed(self._table(tokens), temperature)) for tokens in sequences)
        ]

    def padded(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        longest = max(map(len, sequences))
        return [
            tuple(value - 0.2 * (self._padding and len(tokens) < longest) for value in values)
            for tokens, values in zip(sequences, self.score(sequences, temperature=temperature), strict=True)
        ]

    def full(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
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

    def routes(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        return [[[(t + layer) % EXPERTS, (t + layer + 1) % EXPERTS] for t in tokens] for layer in range(2)]

    def _table(self, tokens: Sequence[int]) -> Any:
        engine = FakeServing(self._held)
        return model.logprobs(*engine._state(), tokens[:-1])


def probed(table: Mapping[str, Any], folder: Path) -> ProbeTrace:
    """Run the `probes` of a case. `faults`: of the engine, `untaken`: switches that it ignores, `stock`: its own logprobs.

    `switches`, `sampling`: of the job; `trainer` with what is wrong with it, and whether its head is wide (head_fp32);
    `ends` of the model.
    """
    folder.mkdir(exist_ok=True)
    asked = dict(table.get("trainer", {}))
    wide = asked.pop("head_fp32", False)
    ends = dict.fromkeys(table.get("ends", [2, 4]), "generation_config.json")

    def start(setup: Setup, instead: Engine | None) -> Engine:
        return FakeServing(
            weights(), table.get("faults", ()), switches=setup.switches, length=setup.length, dtype=setup.dtype or "float32",
            ends=ends, chat=CHAT[1], untaken=table.get("untaken", ()), stock=table.get("stock", "raw"),
        )  # fmt: skip

    def trainer(dtype: str, head_fp32: bool, instead: Trainer | None) -> Trainer:
        return ScoringTrainer(folder, wide=head_fp32, **asked)

    bench = Bench(
        PROMPTS, VOCABULARY, folder, start_trainer=trainer, sampling=Sampling(**table.get("sampling", {"temperature": 0.7})),
        setup=Setup(Switches(**table.get("switches", {}))), ends=ends, chat=CHAT, length=64, block=4, response=12,
        head_fp32=wide,
    )  # fmt: skip
    return run_probes("trial", bench, start, chosen(table["probes"], ()))

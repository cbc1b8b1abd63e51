"""A cell of the matrix of refits, and the bench on which trials of many cells share processes."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import live
import smollm2

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.scoring_inputs import TrialTokenizer
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trial import RefitTrial
from ckptcheck.live.refit.trial_state import TrialSettings
from ckptcheck.live.runtime.engines import registry
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.live.runtime.trainers.megatron import start_megatron
from ckptcheck.live.runtime.trainers.quantized import QuantizedTrainer
from ckptcheck.live.runtime.trainers.schemes import DEFAULT_IGNORE, build_scheme
from ckptcheck.live.runtime.trainers.spawn import TrainerProcess
from ckptcheck.live.runtime.trainers.transformers import start_transformers

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]


@dataclass(frozen=True)
class Cell:
    """ranks: of the engine. engine_dtype: where it is not the trainer's. perturb: noise in place of an optimizer step; the same in
    every layout, so a reference serves many. quantize: the scheme that weights are packed in on their way; quantizer, ignore: who
    packs, and the list of what is left alone (schemes.py)."""

    model: str
    layout: ParallelLayout
    ranks: int = 1
    dtype: str = "float32"
    transport: str = "reload"
    engine: str = "vllm"
    steps: int = 1
    perturb: float | None = None
    engine_dtype: str = ""
    quantize: str = ""
    quantizer: str = "compressed-tensors"
    ignore: tuple[str, ...] = DEFAULT_IGNORE

    def __str__(self) -> str:
        return (
            f"{self.model} {str(self.layout) or 'TP1'} → {self.engine} ×{self.ranks} {self.dtype} {self.transport}"
            + (f" {self.quantize}" if self.quantize else "")
            + (" perturbed" if self.perturb else "")
        )

    @property
    def known(self) -> set[str]:
        """What every trial of it finds: vLLM keeps its prefix cache unless it is told not to, SGLang forgets it with an update; and
        in INT8 vLLM's CPU build computes NaN after a reload, in which a stale cache does not show.
        """
        if self.engine == "vllm" and self.quantize == "w8a8":
            return {"REF007", "REF010", "REF012", "REF017", "REF033"}
        return {"REF011"} if self.engine == "vllm" and self.steps else set()


class ReusedEngine:
    """An engine of the bench; to close it is to give it back."""

    def __init__(self, engine: Any, kept: list[Any]) -> None:
        self._engine, self._kept = engine, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def close(self) -> None:
        """Keep it for the next, unless it is dead."""
        if (engine := self._engine) is not None:
            self._engine = None
            try:
                engine.memory_bytes()
            except Exception:
                engine.close()
            else:
                self._kept.append(engine)


class ChangedEngine:
    """An engine to which something is done after every sync."""

    def __init__(self, engine: Any, after: Callable[[Any], None]) -> None:
        self._engine, self._after = engine, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def update_weights(self, *how: Any) -> Any:
        """Update the weights, and touch them."""
        answer = self._engine.update_weights(*how)
        self._after(self._engine)
        return answer


class ReusedTrainer:
    """A trainer of the bench, whose process goes on when what packs its weights is closed."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def close(self) -> None:
        """Leave it to the bench."""


class CachedReference:
    """What a cold load of the same bytes held and said before."""

    def __init__(self, manifest: Any, scores: Any) -> None:
        self.manifest, self.score = lambda: manifest, lambda *_, **__: scores

    def close(self) -> None:
        """Nothing runs."""


class MatrixRunner:
    """Processes and checkpoints that cells share."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ckptcheck-matrix-"))
        self.exchange = TensorExchange()
        self._host: Any = None
        self._reference_host: Any = None
        self._kept: dict[tuple[str, int], list[Any]] = {}
        self._known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def __enter__(self) -> MatrixRunner:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in [engine for kept in self._kept.values() for engine in kept]:
            engine.close()
        for host in filter(None, (self._host, self._reference_host)):
            host.close()
        self.exchange.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self, cell: Cell, source: Checkpoint | None = None, after: Callable[[Any], None] | None = None
    ) -> tuple[RefitTrace, Report]:
        """Run the trial of a cell and judge it. source: in place of the cell's model. after: done to the engine after a sync."""
        ckpt = source or open_checkpoint(str(self.model(cell.model)))
        rows = ckpt.tensors[ckpt.components.embedding].shape[0]
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        started: list[bool] = []
        packing: list[QuantizedTrainer] = []

        def start_trainer() -> Any:
            held = self.trainer(ckpt, cell.layout, cell.dtype)
            if not cell.quantize:
                return held
            packing.append(self._packing(cell, ReusedTrainer(held), folder))
            return packing[-1]

        def start(checkpoint: Path) -> Any:
            started.append(True)
            if len(started) == 1 or not cell.perturb:
                engine = self._engine(cell, checkpoint)
                return ChangedEngine(engine, after) if len(started) == 1 and after else engine
            return self._reference(cell, checkpoint)

        bucket = (1 << 26) if cell.model == "smollm2" else 60_000
        settings = TrialSettings(
            steps=cell.steps,
            transport=cell.transport,
            perturb=cell.perturb,
            bucket_bytes=bucket,
            second_bucket_bytes=bucket // 4,
        )
        trial = RefitTrial(
            str(cell),
            start_trainer,
            start,
            settings,
            vocabulary=rows,
            block=128,
            nbytes=1 << 30,
            text=TrialTokenizer(ckpt.source),
            folder=folder,
            source=None if cell.quantize else ckpt,
            start_oracle=None if cell.quantize else self._start_oracle,
        )
        try:
            trace = trial.run()
        finally:
            for each in packing:
                each.close()
            shutil.rmtree(folder, ignore_errors=True)
        return trace, run_rules(trace, RULES)

    def _packing(self, cell: Cell, held: Any, folder: Path) -> QuantizedTrainer:
        """Pack what a trainer holds on its way; transformers, for the reference, computes in the process of the cell before."""
        shapes = {weight.name: weight.shape for weight in held.weights()}
        chosen = build_scheme(
            cell.quantize, shapes, held.info.architecture, cell.engine, ignore=cell.ignore, quantizer=cell.quantizer
        )

        found = find_interpreter(cell.engine)
        return QuantizedTrainer(
            held,
            chosen,
            python=found.python,
            variables=found.variables,
            start=lambda checkpoint, _: self._start_oracle(checkpoint),
            exchange=self.exchange,
            folder=folder,
        )

    def _start_oracle(self, checkpoint: Path) -> Any:
        """Load transformers in float32, in the process of the one before."""
        opened = open_checkpoint(str(checkpoint))
        started = start_transformers(
            opened, self.exchange, process=TrainerProcess("cpu", host=self._reference_host, scratch=(self.folder,))
        )
        self._reference_host = started.host
        return ReusedTrainer(started)

    def trainer(self, source: Checkpoint, layout: ParallelLayout, dtype: str = "float32") -> Any:
        """Load a trainer in the process of the one before."""
        trainer = start_megatron(
            source, self.exchange, layout=layout, dtype=dtype, process=TrainerProcess(host=self._host)
        )
        self._host = trainer.host
        return trainer

    def model(self, name: str) -> Path:
        if name == "smollm2":
            return smollm2.default_folder()
        folder = self.folder / name
        return folder if folder.exists() else live.write(name, folder)

    def _engine(self, cell: Cell, checkpoint: Path) -> Any:
        dtype = cell.engine_dtype or cell.dtype
        kept = self._kept.setdefault((cell.engine, cell.ranks), [])
        before = kept.pop() if kept else None
        try:
            engine = registry.start_engine(
                cell.engine,
                checkpoint,
                dtype=dtype,
                ranks=cell.ranks,
                replaces=before,
                scratch=(self.folder,),
                sleep_level=1,
            )
        except BaseException:
            if before is not None:
                before.close()
            raise
        return ReusedEngine(engine, kept)

    def _reference(self, cell: Cell, checkpoint: Path) -> Any:
        files = sorted(checkpoint.glob("*.safetensors"))
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()
        key = (cell.engine, cell.ranks, cell.dtype, digest)
        if key in self._known:
            return CachedReference(*self._known[key])
        engine, known = self._engine(cell, checkpoint), self._known

        class Heard:
            """The cold load itself; what it says is kept."""

            def manifest(self) -> Any:
                self.held = engine.digest_tensors()
                return self.held

            def score(self, sequences: Any, decode: int = 0) -> Any:
                said = engine.score(sequences, decode=decode)
                known[key] = (self.held, said)
                return said

            def close(self) -> None:
                engine.close()

        return Heard()

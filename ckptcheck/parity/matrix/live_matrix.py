"""Measures a matrix on real engines and trainers, each started once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.parity.live_session import LiveSession, with_batch_size

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.parity.matrix.cells import Plan
    from ckptcheck.parity.matrix.trace import MatrixTrace
    from ckptcheck.runtime.engines.base import Engine, EngineInfo
    from ckptcheck.runtime.trainers.base import Trainer, TrainerInfo

SPARE_TOKENS = 8
"""Tokens of context beyond the longest sequence."""


@dataclass(frozen=True)
class MatrixSides:
    """How the engines and trainers of a matrix are started."""

    tp: int = 1
    """Tensor parallelism of megatron."""
    pp: int = 1
    """Pipeline parallelism of megatron."""
    ep: int = 1
    """Expert parallelism of megatron."""
    engine_tp: int = 1
    """Tensor parallelism of the engines."""
    dtype: str = "float32"
    """What both sides compute in."""
    head_fp32: bool = False
    """The trainers' output head computes in float32."""
    switches: Sequence[str] = ()
    """Settings of the engines, as ``NAME=VALUE``."""
    mode: str = "plain"
    """How engines store weights on a CPU."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which a measurement log keeps so that other settings do not continue it."""
        return {
            "tp": self.tp,
            "pp": self.pp,
            "ep": self.ep,
            "engine_tp": self.engine_tp,
            "dtype": self.dtype,
            "head_fp32": self.head_fp32,
            "switches": sorted(self.switches),
            "mode": self.mode,
        }


def measure_matrix(
    live: LiveSession, plan: Plan, sides: MatrixSides, *, resume: Path | None = None, calibrate: bool = False
) -> MatrixTrace:
    """Start every engine and trainer once and measure every cell.

    resume: a file that keeps the measurements; those that it has are not repeated. calibrate: measure the noise floor of every
    pair first. A worker that dies or hangs ends the measurement, and the trace says so.
    """
    from ckptcheck.parity.calibrate import TITLES
    from ckptcheck.parity.calibrate import calibrate as measure_floor
    from ckptcheck.parity.default_prompts import DefaultPrompts
    from ckptcheck.parity.matrix.cells import drop_unmeasurable_cells
    from ckptcheck.parity.matrix.measure import MatrixRun
    from ckptcheck.parity.matrix.measurement_log import MeasurementLog
    from ckptcheck.parity.matrix.trace import MatrixTrace
    from ckptcheck.runtime.engines.engine_options import parse_switches
    from ckptcheck.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
    from ckptcheck.runtime.trainers.layout import ParallelLayout

    log = live.observer.log
    default_prompts = DefaultPrompts(live.ckpt)
    plan, left_out = drop_unmeasurable_cells(plan, default_prompts.context_length, default_prompts.tokenizer_error)
    identity = {"source": live.source, "plan": plan.as_dict(), "setting": sides.to_dict()}
    measurements = MeasurementLog(
        resume, identity if resume is None else identity | {"weights": _digest_weights(live.ckpt)}
    )
    engines: dict[str, Engine] = {}
    trainers: dict[str, Trainer] = {}
    floor: dict[str, float] = {}
    sections = []
    broken: dict[str, str] = {}
    # without this switch an engine splits a large batch into several small ones
    switches = with_batch_size(parse_switches(sorted(sides.switches)), max(plan.batches))
    with ExitStack() as stack:
        for name in dict.fromkeys(engine for _, engine in plan.pairs):
            log(f"starting {name}")
            engines[name] = live.start_engine(
                name, dtype=sides.dtype, ranks=sides.engine_tp, mode=sides.mode,
                context_len=min(max(plan.lengths) + SPARE_TOKENS, default_prompts.context_length or 1 << 30),
                concurrent_sequences=max(8, *plan.batches), switches=switches,
            )  # fmt: skip
            stack.callback(engines[name].close)
            left_out |= {f"{name} {switch}": reason for switch, reason in engines[name].ignored_switches.items()}
        for name in dict.fromkeys(trainer for trainer, _ in plan.pairs):
            log(f"starting {name}")
            layout = ParallelLayout(tp=sides.tp, pp=sides.pp, ep=sides.ep) if name == "megatron" else None
            trainers[name] = live.start_trainer(name, dtype=sides.dtype, head_fp32=sides.head_fp32, layout=layout)
            stack.callback(trainers[name].close)
        infos: list[EngineInfo | TrainerInfo] = [
            *(trainer.info for trainer in trainers.values()),
            *(engine.info for engine in engines.values()),
        ]
        versions = [f"{info.name} {info.version}" for info in infos]
        measurements.check_versions(versions)
        try:
            for trainer_name, engine_name in plan.pairs if calibrate else ():
                pair = f"{trainer_name}:{engine_name}"
                prompts = default_prompts.prompts(min(plan.lengths) - plan.response, plan.data[0], 8)
                log(f"the floor of {pair}")
                measurement = measure_floor(
                    engines[engine_name], trainers[trainer_name], prompts, response=plan.response, say=log
                )
                if measurement.failed_comparisons:
                    reason = f"logprobs of {TITLES[measurement.failed_comparisons[0]]} are not finite"
                    left_out[f"the floor of {pair}"] = reason
                else:
                    floor[pair] = max(metrics.mult_prob_error for metrics in measurement.metrics.values())
                sections.append(measurement.section(pair))
            MatrixRun(
                plan, engines, trainers, default_prompts.prompts, measurements, timeout=live.timeout, say=log
            ).run()
        except (WorkerDied, WorkerTimeout, RemoteError) as error:
            broken["the matrix"] = str(error)
    return MatrixTrace(
        live.source, measurements.measurements, left_out, tuple(versions), sides.dtype, floor, tuple(sections), broken
    )


def _digest_weights(ckpt: Checkpoint) -> str:
    """Return one digest of all weights, so that measurements of another training step are not continued."""
    import xxhash

    from ckptcheck.values.digest import digest_tensors
    from ckptcheck.values.tensor_stream import open_streams

    digests = digest_tensors(open_streams(ckpt))
    return xxhash.xxh3_128_hexdigest(repr(sorted(digests.items())).encode())

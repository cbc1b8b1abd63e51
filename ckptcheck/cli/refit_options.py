"""Which options of ``ckptcheck refit`` have no effect in one of its ways, or do not go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from ckptcheck.cli.idle import Given
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import listed
from ckptcheck.refit import placement
from ckptcheck.refit.timeouts import Timeouts

OF_TRIALS = (
    "engine", "engine_tp", "engine_mode", "transport", "quantize", "ignore", "trainer_quantizer", "dtype", "engine_gpus",
    "switch", "bucket_mb", "pause", "steps", "perturb", "record", "sleep_level",
)  # fmt: skip
"""They say how a trial is made. Servers that run already are taken as they are."""
OF_THE_TRAINER = ("trainer", "tp", "pp", "ep", "device", "trainer_gpus", "trainer_python")
OF_SOURCE = (*OF_THE_TRAINER, "engine_python", "hf_config", "despite_errors", "keep")
"""They say what is made of SOURCE."""
OF_SERVERS = ("allow_write", "allow_remote")
ATTACHED = "with --attach: the servers run already, and no sync is made"


def refuse_idle(
    given: Given,
    *,
    attached: bool,
    source: bool,
    weights: bool,
    logprobs: bool,
    device: str,
    quantize: bool,
    steps: int,
    timeouts: Sequence[str],
) -> None:
    """Refuse what would be ignored. attached: to servers. source: there is one. weights, logprobs: which checks are made.

    quantize: weights are packed on the way. timeouts: as the user wrote them, those of one phase too. Raises CkptcheckError.
    """
    kinds = {text.rpartition("=")[0] for text in timeouts} & {field.name for field in fields(Timeouts)}
    if not (weights or logprobs):
        raise CkptcheckError("with both checks turned off there is nothing to check")
    if device == "cpu":
        given.refuse(["trainer_gpus"], "with --device cpu: the trainer is kept off GPUs")
    if attached:
        given.refuse(OF_TRIALS, ATTACHED)
        _phases(kinds & {"step", "sync"}, ATTACHED)
        if not source:
            where = "where servers are held against each other alone"
            given.refuse(OF_SOURCE, where, "name the checkpoint they should serve")
            _phases(kinds & {"start"}, f"{where}: nothing is started")
        if not logprobs:
            given.refuse(OF_THE_TRAINER, "with --attach and --no-check-logprobs: no trainer is started")
        if not weights:
            given.refuse(["engine_python"], "with --attach and --no-check-weight-update-equal: no engine is started")
        return
    given.refuse(OF_SERVERS, "without servers that run already", "name them with --attach")
    if not quantize:
        given.refuse(["ignore", "trainer_quantizer"], "where nothing is packed", "give --quantize too")
    if not steps:
        given.refuse(["perturb"], "with --steps 0: it takes the place of a step")
        given.refuse(["sleep_level"], "with --steps 0: the engine sleeps while the trainer steps")
        _phases(kinds & {"step"}, "with --steps 0")
    if not logprobs:
        _phases(kinds & {"score"}, "with --no-check-logprobs: nothing is scored")


def refuse_packed(scheme: str, engine: str, transport: str, dtype: str) -> None:
    """Refuse ways by which packed weights do not reach an engine. scheme: of --quantize. Raises CkptcheckError."""
    if scheme == "w4a16" and engine == "vllm" and dtype == "float32":
        raise CkptcheckError("vLLM computes packed integers in 16 bits only", "--dtype bfloat16")
    if transport in placement.ON_GPU:
        raise CkptcheckError(
            f"--quantize does not go with --transport {transport}, which carries weights as the trainer holds them: packed ones "
            "over NCCL or CUDA IPC are not built",
            f"{placement.ELSE[engine]} carries packed weights to GPUs too",
        )


def _phases(kinds: set[str], where: str) -> None:
    if kinds:
        flags = [f"--timeout {kind}=" for kind in sorted(kinds)]
        raise CkptcheckError(f"{listed(flags)} {'means' if len(kinds) == 1 else 'mean'} nothing {where}")

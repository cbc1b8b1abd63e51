"""Says what no trial can do with this source, these options, this engine and these devices, before weights are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.known_issues import version_numbers
from ckptcheck.live.runtime.engines.transports import (
    Transport,
    find_transport,
    join_names,
    require_device,
    transports_of,
)
from ckptcheck.live.runtime.trainers.base import GpuTrainer, Trainer
from ckptcheck.live.runtime.trainers.schemes import DEFAULT_IGNORE, SCHEMES, build_scheme

LOADS_ONCE = (0, 5, 23)
"""The newest SGLang that was read: on GPUs it loads packed weights once only, but for experts in integers of 4 bits."""
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}


def check_quantization(scheme: str, engine: str, transport: str, dtype: str) -> None:
    """Raise CkptcheckError if quantized weights cannot reach an engine in this format, by this transport, or in this dtype."""
    if scheme == "w4a16" and engine == "vllm" and dtype == "float32":
        raise CkptcheckError("vLLM computes packed integers in 16 bits only", "--dtype bfloat16")
    if find_transport(engine, transport).is_between_gpus:
        raise CkptcheckError(
            f"--quantize does not go with --transport {transport}, which carries weights as the trainer holds them: packed ones "
            "over NCCL or CUDA IPC are not built",
            f"--transport {find_transport(engine, None).name} carries packed weights to GPUs too",
        )


def require_engine_layout(engine: str, *, tp: int, ep: int) -> None:
    """Raise CkptcheckError for a layout in which no trial starts this engine.

    vLLM 0.32 has no size of its own for expert parallelism: the group is that of all tensor-parallel ranks. SGLang 0.5.23 divides
    those ranks.
    """
    if ep > 1 and engine == "vllm" and ep != tp:
        raise CkptcheckError(
            f"--set engine-ep={ep}: vLLM spreads experts over all of its {tp} tensor-parallel ranks",
            f"--engine-tp {ep} --set engine-ep={ep}",
        )
    if tp % ep:
        raise CkptcheckError(
            f"--set engine-ep={ep} does not divide the {tp} ranks of --engine-tp",
            f"--engine-tp {ep} --set engine-ep={ep}",
        )


def require_draft_update(engine: str, transport: Transport, draft: str | None) -> None:
    """Raise CkptcheckError if the draft cannot be sent: the engine has none, or a transport does not reach it."""
    if draft is None:
        raise CkptcheckError(
            "--set send-draft=on: the engine has no draft model",
            "--switch draft=mtp, or --switch draft=DIR, gives it one",
        )
    if not transport.reaches_draft:
        usable = [row for row in transports_of(engine) if row.reaches_draft]
        raise CkptcheckError(
            f"--set send-draft=on: {transport.name} does not bring {TITLES.get(engine, engine)} the weights of a draft model",
            f"--transport {' or '.join(row.name for row in usable)}",
        )


def require_experts(ckpt: Checkpoint, ep: int) -> None:
    """Raise CkptcheckError for expert parallelism of a model without experts."""
    if ep > 1 and not any(".experts." in name for name in ckpt.tensors):
        raise CkptcheckError(f"--set engine-ep={ep}: {ckpt.target} has no experts", "leave out engine-ep")


def require_plain_source(ckpt: Checkpoint) -> None:
    """Raise CkptcheckError for a checkpoint that is quantized, with its format: no trainer holds packed weights."""
    quantization = ckpt.quantization
    if ckpt.config is None or not ckpt.config.get("quantization_config") or quantization is None:
        return
    words = (quantization.method, quantization.config.get("format"), quantization.config.get("quant_algo"))
    declared = [word.lower() for word in words if isinstance(word, str)]
    raise CkptcheckError(
        f"{ckpt.target} is quantized ({', '.join(declared) or 'by a method that it does not name'}), and a trainer holds plain "
        "weights: there is nothing that could take a step",
        f"name the checkpoint it was made from, and --quantize {_join(SCHEMES, 'or')} to pack the weights on their way",
    )


def require_dtype(ckpt: Checkpoint, engine: str, dtype: str, *, is_cpu_build: bool) -> None:
    """Raise CkptcheckError for layers that the engine does not compute in this dtype on a CPU.

    vLLM 0.32 asserts bfloat16 in model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py.
    """
    has_gated_delta = ckpt.config is not None and ckpt.config.text.get("linear_num_value_heads") is not None
    if has_gated_delta and engine == "vllm" and is_cpu_build and dtype != "bfloat16":
        raise CkptcheckError(
            f"{ckpt.target} has linear attention with a gated delta rule, which vLLM computes in bfloat16 only on a CPU",
            "--dtype bfloat16",
        )


def require_second_load(
    ckpt: Checkpoint, engine: str, version: str, scheme: str, ignore: Sequence[str] | None, *, is_cpu_build: bool
) -> None:
    """Raise CkptcheckError for packed weights that the engine cannot load a second time, which kills it at the first sync.

    After its first load SGLang 0.5.23 replaces packed weights on GPUs by transposed ones without a loader
    (layers/quantization/compressed_tensors/schemes: w8a8_fp8, w8a8_int8, wNa16), and only wNa16_moe restores them
    (restore_weights_before_loading). On a CPU a trial replaces this code.

    version: of the engine; a newer one may have mended it, and is tried. ignore: entries of the list of modules that are not
    packed, None for the default.
    """
    if engine != "sglang" or is_cpu_build or version_numbers(version) > LOADS_ONCE:
        return
    if scheme == "w4a16":
        shapes = {name: tensor.shape for name, tensor in ckpt.tensors.items()}
        architecture = None if ckpt.config is None else ckpt.config.architecture
        entries = DEFAULT_IGNORE if ignore is None else ignore
        served = build_scheme(scheme, shapes, architecture, engine, ignore=entries).served
        if served and all(".experts." in module for module in served):
            return
    raise CkptcheckError(
        f"SGLang {version} cannot load weights in {scheme} a second time on a GPU: after the start it keeps them transposed and "
        "without a loader, and dies at the first sync",
        "--engine vllm; or, of a mixture of experts, --quantize w4a16 with all modules but the experts in --set quantize-ignore=…",
    )


def check_transport(trainer: Trainer, engine: Engine, name: str) -> None:
    """Raise CkptcheckError, with what would work, if the transport cannot carry weights from this trainer to this engine."""
    trainer_facts, engine_facts = trainer.info.facts, engine.info.facts
    device = engine_facts.get("device", "")
    transport = next((row for row in engine.transports if row.name == name), None)
    if transport is None:
        require_device(engine.info.name, name, device)
        raise CkptcheckError(
            f"{engine.info.name} {engine.info.version} is not updated by {name} here",
            f"choose one of {join_names(engine.transports)}",
        )
    if not transport.is_between_gpus:
        return
    default = f"--transport {transports_of(engine.info.name)[0].name}"
    if not isinstance(trainer, GpuTrainer):
        raise CkptcheckError(
            f"{name} carries weights as the trainer holds them, and they are packed on their way", default
        )
    if trainer_facts.get("device") != "cuda":
        raise CkptcheckError(
            f"{name} carries weights between GPUs, and {trainer.info.name} computes on the CPU",
            f"--set device=cuda, or {default}",
        )
    if transport.sender == "group":
        _check_nccl(trainer, engine, default)
    trainer_gpus, visible = (trainer_facts.get(fact, "").split(",") for fact in ("gpus", "sees"))
    engine_gpus = engine_facts.get("gpus", "").split(",")
    if transport.sender == "group" and trainer_gpus[0] in engine_gpus:
        raise CkptcheckError(
            f"NCCL refuses two ranks on one GPU, and {trainer.info.name} and {engine.info.name} share {trainer_gpus[0]}",
            f"--transport {_on_shared_gpu(engine.info.name).name}, or another GPU by --set engine-gpus",
        )
    if transport.sender == "ipc" and (hidden := [gpu for gpu in engine_gpus if gpu not in visible]):
        group = next(
            (row for row in transports_of(engine.info.name) if row.is_between_gpus and row.sender == "group"), None
        )
        alternative = f"--transport {group.name}, or {default}" if group else default
        raise CkptcheckError(
            f"CUDA IPC opens the memory of one GPU, and {trainer.info.name} does not see {hidden[0]}, where {engine.info.name} is",
            f"let both see it (--set trainer-gpus, --set engine-gpus), {alternative}",
        )


def _join(names: Iterable[str], word: str = "and") -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}"


def _check_nccl(trainer: Trainer, engine: Engine, default: str) -> None:
    """Raise CkptcheckError where an NCCL group of trainer and engine would hang instead of failing.

    Both ends need one version of NCCL. vLLM pins NCCL's algorithm, protocol and channels where it is batch-invariant
    (vllm/model_executor/layers/batch_invariant.py of 0.32), and a group needs the same on every rank.
    """
    versions = [side.info.facts.get("nccl", "") for side in (trainer, engine)]
    if all(versions) and versions[0] != versions[1]:
        raise CkptcheckError(
            f"{trainer.info.name} has NCCL {versions[0]} and {engine.info.name} has NCCL {versions[1]}: a group of two versions"
            " can hang",
            f"install the same torch on both sides, or {default}",
        )
    if engine.info.facts.get("batch_invariant") == "True":
        raise CkptcheckError(
            f"{engine.info.name} is batch-invariant and pins how NCCL computes, which {trainer.info.name} does not: their group"
            " would hang",
            f"unset VLLM_BATCH_INVARIANT, or {default}",
        )


def _on_shared_gpu(engine: str) -> Transport:
    """Return the transport between GPUs that works on one GPU, the default transport where there is none."""
    rows = transports_of(engine)
    return next((row for row in rows if row.is_between_gpus and row.sender == "ipc"), rows[0])

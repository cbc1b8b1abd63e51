"""SGLang, in a process tree of its own (see ckptcheck_far/sglang_engine.py). Read against SGLang 0.5.23."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from ckptcheck.host.patience import otherwise
from ckptcheck.host.trouble import ERROR, VerbError, telling

MODULE = "ckptcheck_far.sglang_engine"
ANSWER = 600.0
"""Seconds for any other call: SGLang waits for ever for a scheduler that hangs."""
TOKENS = 4096
"""That the cache has room for, unless more are asked for."""
VARIABLES = {
    "GLOO_SOCKET_IFNAME": "lo",  # it would meet at the address of the machine's name
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class SglangOptions(EngineOptions):
    """How SGLang is started. mode: plain computes quantized layers on a CPU, which stock SGLang does on GPUs only.

    tokens: that the cache has room for. sleep_level: 2 drops its weights when it sleeps, 1 keeps them on the host. more: further
    arguments of sglang.Engine.
    """

    tokens: int = TOKENS
    sleep_level: int = 1


class SglangEngine:
    """An SGLang that holds a checkpoint; see `base.Engine`. Use as a context manager.

    python: the user's own interpreter that has SGLang, None for the environment sglang-cpu. gpus: numbers of those that it may
    see, as in CUDA_VISIBLE_DEVICES, None for all.

    Raises CkptcheckError where SGLang is not installed, VerbError, HostDied or HostHung where it does not start. A tensor
    that does not fit the engine's kills SGLang, so `refit` then raises HostDied with SGLang's words.
    """

    transports: tuple[str, ...] = ("tensor", "flattened_bucket", "gloo", "nccl", "disk")
    streams: tuple[str, ...] = ("disk",)
    pauses: tuple[str, ...] = ("retract", "in_place", "abort", "wait")

    def __init__(
        self,
        checkpoint: Path,
        options: SglangOptions | None = None,
        *,
        python: Path | None = None,
        gpus: str | None = None,
        timeout: float | None = None,
        log: Path | None = None,
        scratch: Sequence[Path] = (),
    ) -> None:
        self.options = options = options or SglangOptions()
        found = interpreter("sglang", python)
        env: dict[str, str | None] = {
            **found.variables,
            **VARIABLES,
            **visible(gpus),
            **binding("sglang", options.ranks),
        }
        self._new_host: Callable[[], Host] = lambda: Host(
            found.python, MODULE, name="sglang", env=env, log=log, scratch=scratch
        )
        self._host = self._new_host()
        self._spoilt = False
        try:
            self.restart(checkpoint, options, timeout=timeout)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SglangEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restart(self, checkpoint: Path, options: SglangOptions | None = None, *, timeout: float | None = None) -> None:
        """Load another checkpoint, or the same anew, into new schedulers. The mode stays what it was.

        A scheduler that does not start kills the process that forked it, and the next start would wait for that for ever; so
        the next one has a new process.
        """
        self.options = options = options or self.options
        bare = {} if options.sleep_level == 1 else {"enable_weights_cpu_backup": False}
        started = replace(options, more={**options.more, **bare})
        if self._spoilt:
            self._host.close()
            self._host, self._spoilt = self._new_host(), False
        before = self._host.last_words()
        try:
            self.info, self.ignored = load(self._host, "SGLang", checkpoint, started, timeout, tokens=options.tokens)
        except VerbError as error:
            self._spoilt = True
            raise _scheduler(error, before, self._host.last_words()) from error
        if self.info.facts["device"] != "cuda":
            self.transports = tuple(name for name in type(self).transports if name != "nccl")

    def manifest(self, *, loader: bool = False) -> Manifest:
        """Digest every parameter, buffer and derived tensor on every rank, where they live.

        loader: ask by way of a custom weight loader, as one would a server; then as they are while weights are loaded.
        """
        return reading.manifest(self._call("ask", method="manifest", arguments=[], loader=loader))

    def scramble(self, *, loader: bool = False) -> Scrambled:
        """Overwrite parameters, and the derived tensors that updates rebuild, with marks. loader: as of `manifest`."""
        return reading.scrambled(self._call("ask", method="scramble", arguments=[], loader=loader))

    def leftovers(self, *, loader: bool = False) -> Mapping[tuple[int, str], Leftover]:
        """Return the scrambled tensors that an update did not write wholly. loader: as of `manifest`."""
        return reading.leftovers(self._call("ask", method="leftovers", arguments=[], loader=loader))

    def refit(
        self, parcels: Sequence[Parcel], transport: str, *, timeout: float | None = None, flush: bool = True
    ) -> Answer:
        """Update the weights by one of SGLang's routes (see ckptcheck_far/sglang_update.py).

        Parcels of gloo and nccl are addressed to one group (see group.py), whose rank 0 sends meanwhile. flush: have SGLang forget
        its cache with the last bucket, which is what it does unless told otherwise. Raises CkptcheckError for a transport
        that SGLang has not.
        """
        said = self._parcels(parcels, transport)
        return reading.answer(self._call("update", timeout=timeout, parcels=said, transport=transport, flush=flush))

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
        """Update the weights by the tensor route once the first response has `after` tokens.

        pause: wait does not pause, and begin_weight_update waits for the requests; the others are SGLang's. in_place with
        clear_cache is answered with a failure, though the weights are written.
        """
        said = self._call(
            "inflight",
            prompts=_lists(prompts),
            samplings=[asdict(one) for one in each(sampling, len(prompts))],
            parcels=self._parcels(parcels, "tensor"),
            pause=pause,
            clear_cache=clear_cache,
            after=after,
            version=version,
        )
        return Inflight(reading.answer(said["answer"]), tuple(reading.generations(said["generations"])))

    def _parcels(self, parcels: Sequence[Parcel], transport: str) -> list[dict[str, Any]]:
        if transport not in self.transports:
            raise CkptcheckError(f"SGLang is not updated by {transport}; known are {', '.join(self.transports)}")
        if not parcels:
            raise CkptcheckError("there is nothing to send")
        return [reading.parcel(parcel) for parcel in parcels]

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[Scores]:
        """Score sequences; decode: how many tokens to add greedily."""
        return reading.scores(self._call("score", sequences=_lists(sequences), decode=decode))

    def follow(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        """Return the logprobs of the tokens after the first `prompt` ones, each by a step of decoding (forced)."""
        return [tuple(each) for each in self._call("follow", sequences=_lists(sequences), prompt=prompt)]

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling], *, salt: str = ""
    ) -> list[Generation]:
        """Return a response for each prompt, all asked at once unless one has a seed. salt: see `base.Engine`."""
        asked = [asdict(one) for one in each(sampling, len(prompts))]
        return reading.generations(self._call("generate", prompts=_lists(prompts), samplings=asked, salt=salt))

    def forced(self, prompt: Sequence[int], tokens: Sequence[int]) -> Generation:
        """Have these tokens decoded after the prompt until SGLang itself would stop: at an end token."""
        return reading.generations([self._call("forced", prompt=list(prompt), tokens=list(tokens))])[0]

    def full(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file."""
        path = folder.resolve() / "full-engine.safetensors"
        self._call("full", sequences=_lists(sequences), path=str(path))
        return path

    def read(self, text: str, messages: Sequence[Mapping[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens that SGLang makes of a text and of a conversation. Needs the switch `text`."""
        said = self._call("read", text=text, messages=[dict(one) for one in messages])
        return tuple(said["text"]), tuple(said["chat"])

    def routes(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts that every token went to: layers, tokens, choices; [] where the model has none."""
        found: list[list[list[int]]] = self._call("routes", tokens=list(tokens))
        return found

    def activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return what every module gives out while a prompt is prefilled, over all ranks."""
        path = folder.resolve() / "engine"
        return assembled(self._call("capture", tokens=list(map(int, tokens)), path=str(path)), len(tokens))

    def reset_prefix_cache(self) -> None:
        """Forget cached keys and values."""
        self._call("reset_prefix_cache")

    def fetch(self, names: Sequence[tuple[int, str]], folder: Path) -> Path:
        """Write tensors to a safetensors file (names ``RANK/NAME``) and return it."""
        path = folder.resolve() / "fetched.safetensors"
        self._call("fetch", wanted=reading.by_rank(names, self.info.ranks), path=str(path))
        return path

    def memory(self) -> int:
        """Return the bytes that the schedulers hold: on the device, on CPU their resident memory."""
        return sum(dict(self._ask("memory")).values())

    def version(self, value: str | None = None) -> str:
        """Return the weight version that the engine reports, set first where a value is given."""
        found: str = self._call("version", value=value)
        return found

    def sleep(self, level: int = 1) -> None:
        """Give device memory away (release_memory_occupation); on a CPU all stays.

        level: see `nap.Sleeper`. SGLang is started for one, see `SglangOptions`; raises CkptcheckError for the other one.
        """
        if level != self.options.sleep_level:
            raise CkptcheckError(f"this SGLang was started to sleep at level {self.options.sleep_level}, not {level}")
        self._call("sleep", tags=None)

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again (resume_memory_occupation). tags: only that of weights, kv_cache or cuda_graph."""
        self._call("wake", tags=None if tags is None else list(tags))

    def check(self, action: str) -> Mapping[str, Any]:
        """Ask SGLang's own weight checker (snapshot, compare, checksum): ok, message, checksums of each rank."""
        found: Mapping[str, Any] = self._call("check", action=action)
        return found

    def poke(self, name: str, index: int, bit: int) -> None:
        """Flip a bit of a tensor on every rank: a fault, for tests."""
        self._ask("poke", name, index, bit)

    def processes(self) -> tuple[int, ...]:
        """Return the process id of every rank's scheduler."""
        return tuple(pid for pid, _ in self._ask("memory"))

    def close(self) -> None:
        """End it and all it started; may be called twice."""
        self._host.close()

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        found: list[Any] = self._call("ask", method=method, arguments=list(arguments))
        return found

    def _call(self, verb: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        return self._host.call(verb, timeout=otherwise(ANSWER) if timeout is None else timeout, **arguments)


def _lists(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(map(int, tokens)) for tokens in sequences]


def _scheduler(error: VerbError, before: Sequence[str], words: Sequence[str]) -> VerbError:
    """Return the error of the scheduler that died while SGLang started: SGLang itself only says that one did, and not why."""
    new = tuple(line for line in words if line not in before)
    found = ERROR.search(telling(new)) if new and "scheduler died" in error.said else None
    if found is None or not found[1]:
        return error
    kind, _, said = found.string[found.start() :].partition(": ")
    return VerbError("sglang", "start", kind, said, error.trace)

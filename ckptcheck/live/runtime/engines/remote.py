"""An engine in a worker process: the common part of vLLM and SGLang, to which each adapter adds its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines import codec
from ckptcheck.live.runtime.engines.activations import Activations, assemble_activations
from ckptcheck.live.runtime.engines.base import (
    Bucket,
    EngineInfo,
    ExpertSlots,
    HostScalars,
    InflightResult,
    LoadedWeights,
    ScrambleResult,
    SequenceScores,
    TensorDigests,
    UnwrittenElements,
    UpdateResult,
    WeightPart,
)
from ckptcheck.live.runtime.engines.cpu_affinity import cpu_affinity_variables
from ckptcheck.live.runtime.engines.loading import LaunchOptions, load_checkpoint
from ckptcheck.live.runtime.engines.prepared_worker import PreparedWorkers, StartWorker
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling, sampling_per_prompt
from ckptcheck.live.runtime.engines.transports import (
    Transport,
    available_transports,
    join_names,
    require_device,
    transports_of,
)
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.deadlines import default_timeout
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.process.gpus import gpu_variables
from ckptcheck.text.file_io import real_path

Options = TypeVar("Options", bound=LaunchOptions)
SINGLE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Keeps numpy from starting threads when it is imported, so that a process can be copied. No engine multiplies by numpy."""


class RemoteEngine(ABC, Generic[Options]):
    """A running engine. Use it as a context manager. Make it as `VllmEngine` or `SglangEngine`.

    Every call raises WorkerDied, WorkerTimeout or RemoteError as `WorkerClient.call` does.

    Args:
        checkpoint: the folder of the checkpoint to load.
        options: how the engine is started; None for the defaults.
        python: the user's own interpreter that has the engine; None for ckptcheck's environment.
        gpus: the numbers of the GPUs that the engine may see, as in CUDA_VISIBLE_DEVICES; None for all.
        timeout: seconds for the start; see `load_checkpoint`.
        log: a file that keeps the engine's output.
        scratch: folders of the caller that are removed if the caller is killed.
        prepared: workers that were started with the same arguments and have imported the engine; None starts one.

    Raises:
        CkptcheckError: the engine is not installed, or cannot take weights by `options.transport`.
        RemoteError, WorkerDied, WorkerTimeout: the engine does not start.
    """

    name: ClassVar[str]
    """The engine's name in options and reports."""
    title: ClassVar[str]
    """The engine's own spelling of its name, for messages."""
    module: ClassVar[str | Path]
    """The worker's module; see `WorkerClient`."""
    variables: ClassVar[Mapping[str, str]]
    """Environment variables of the worker."""
    pause_modes: tuple[str, ...]
    """The ways in which the engine treats running requests while weights change."""
    call_timeout: ClassVar[float | None] = None
    """Seconds for any call after the start; None for no limit."""
    info: EngineInfo
    ignored_switches: Mapping[str, str]
    """Requested switch (see engine_options.py) that the engine did not apply → why."""
    transports: tuple[Transport, ...]
    """The transports by which this engine, on this device, takes weights."""

    def __init__(
        self,
        checkpoint: Path,
        options: Options | None = None,
        *,
        python: Path | None = None,
        gpus: str | None = None,
        timeout: float | None = None,
        log: Path | None = None,
        scratch: Sequence[Path] = (),
        prepared: PreparedWorkers | None = None,
    ) -> None:
        self.options: Options = self.default_options() if options is None else options
        self.transports = transports_of(self.name)
        if self.options.transport and find_interpreter(self.name, python).is_cpu_build:
            require_device(self.name, self.options.transport, "cpu")
        self._start_worker = self.worker_starter(self.options.ranks, python, gpus, log, scratch)
        self._worker = self._start_worker() if prepared is None else prepared.take()
        self._needs_new_worker = False
        try:
            self.restart(checkpoint, timeout=timeout)
        except BaseException:
            self.close()
            raise

    @classmethod
    def worker_starter(
        cls, ranks: int, python: Path | None, gpus: str | None, log: Path | None, scratch: Sequence[Path]
    ) -> StartWorker:
        """Return the function that starts a worker for this engine. Raises CkptcheckError if it is not installed."""
        interpreter = find_interpreter(cls.name, python)
        variables: dict[str, str | None] = {
            **interpreter.variables,
            **cls.variables,
            **gpu_variables(gpus),
            **cpu_affinity_variables(cls.name, ranks),
            **(SINGLE_THREAD if interpreter.is_cpu_build else {}),
        }
        return partial(
            WorkerClient, interpreter.python, cls.module, name=cls.name, env=variables, log=log, scratch=scratch
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    @abstractmethod
    def default_options(cls) -> Options:
        """Return the options of an engine that is started without any."""

    @classmethod
    @abstractmethod
    def options_for(cls, checkpoint: Path, concurrent_sequences: int, **options: Any) -> Options:
        """Return options with a KV cache for so many sequences of `context_len` tokens. options: fields of `LaunchOptions`."""

    @classmethod
    @abstractmethod
    def expert_arguments(cls, ranks: int) -> Mapping[str, Any]:
        """Return the arguments of the engine's constructor for so many ranks of expert parallelism; {} for one."""

    def restart(self, checkpoint: Path, options: Options | None = None, *, timeout: float | None = None) -> None:
        """Load another checkpoint, or the same one again: a cold load in the same worker, without the imports.

        timeout: see `load_checkpoint`.
        """
        self.options = self.options if options is None else options
        if self._needs_new_worker:
            self._worker.close()
            self._worker, self._needs_new_worker = self._start_worker(), False
        log_before = self._worker.read_log_tail()
        try:
            self.info, self.ignored_switches = load_checkpoint(
                self._worker, self.title, checkpoint, self.options, timeout, self._start_arguments()
            )
        except RemoteError as error:
            self._handle_failed_start(error, log_before)
            raise
        self.transports = available_transports(
            self.name, self.info.facts.get("device", ""), self.info.facts.get("weight_transfer", "")
        )

    def _start_arguments(self) -> dict[str, Any]:
        """Return the arguments of the worker's ``start`` that only this engine has."""
        return {}

    def _handle_failed_start(self, error: RemoteError, log_before: Sequence[str]) -> None:
        """Prepare for the next start, and raise a better error from the log, if any. log_before: before this start."""

    def can_restart_with(self, options: Options) -> bool:
        """Return whether the running worker can load a checkpoint with these options."""
        return True

    def digest_tensors(self) -> TensorDigests:
        """Digest every parameter, buffer and derived tensor on every rank, where they live."""
        return codec.decode_digests(self._call_ranks("digest_tensors"))

    def sum_parts(self, parts: Sequence[WeightPart]) -> list[tuple[int, int]]:
        """Return each part's addition to the two sums of its weight's shard digest, computed where the part lies."""
        return codec.decode_part_sums(parts, self._call_ranks("sum_parts", codec.encode_parts(parts, self.info.ranks)))

    def read_scalars(self) -> HostScalars:
        """Return the numbers that the engine's modules keep on the host, on every rank."""
        return codec.decode_scalars(self._call_ranks("read_scalars"))

    def scramble_weights(self, *, keep_draft: bool | None = None) -> ScrambleResult:
        """Overwrite parameters, and the derived tensors that updates rebuild, with sentinels, different for each element.

        keep_draft: whether to leave out the tensors of a draft model, because the trainer does not send it; None: the engine
        leaves out a draft model that has its own checkpoint.
        """
        return codec.decode_scramble(
            self._call_ranks("scramble_weights", *([] if keep_draft is None else [keep_draft]))
        )

    def find_unwritten(self) -> Mapping[tuple[int, str], UnwrittenElements]:
        """Return the scrambled tensors that an update did not write completely."""
        return codec.decode_unwritten(self._call_ranks("find_unwritten"))

    def digest_expert_slots(self) -> Mapping[tuple[int, str], ExpertSlots]:
        """Digest each slot of the expert tensors on every rank; {} if the engine has no map of its experts."""
        return codec.decode_slots(self._call_ranks("digest_expert_slots"))

    def rebalance_experts(self) -> None:
        """Have the engine move experts between its slots, the same way in every engine that started with the same options.

        Needs the switch `redundant_experts`.
        """
        self._call_ranks("rebalance_experts")

    def record_arrivals(self, expected: Sequence[str], *, is_brief: bool = False) -> None:
        """Record from now on what load_weights receives on every rank, and the parameters once all of `expected` came.

        This costs an update two passes over its bytes; is_brief: only the second one.
        """
        self._call_ranks("record_arrivals", list(expected), is_brief)

    def read_arrivals(self) -> LoadedWeights:
        """Return the records since then, and stop recording."""
        return codec.decode_arrivals(self._call_ranks("read_arrivals"))

    def update_weights(
        self, buckets: Sequence[Bucket], transport: str, *, timeout: float | None = None, version: str | None = None
    ) -> UpdateResult:
        """Update the weights by one of `transports` (see transports.py). version: of the weights, None for the next number.

        The buckets of a process group have its address (process_group.py), and its rank 0 sends meanwhile; those of ipc have the
        handles of their tensors. Does not reset the caches. An exception of the engine becomes a failed `UpdateResult`. Raises
        CkptcheckError for a transport that this engine does not have.
        """
        return self._update(buckets, transport, timeout, **({} if version is None else {"version": version}))

    def _update(
        self, buckets: Sequence[Bucket], transport: str, timeout: float | None, **arguments: Any
    ) -> UpdateResult:
        encoded = self._encode_buckets(buckets, transport)
        reply = self._call("update_weights", timeout=timeout, buckets=encoded, transport=transport, **arguments)
        return msgspec.convert(reply, UpdateResult)

    def update_draft(self, buckets: Sequence[Bucket], transport: str) -> UpdateResult:
        """Update the draft model in a session of its own. buckets: in files. transport: that of the policy's weights."""
        reply = self._call("update_draft", buckets=self._encode_buckets(buckets, transport), transport=transport)
        return msgspec.convert(reply, UpdateResult)

    def time_updates(self, on: bool) -> None:
        """Let the next updates run as in a job, or end that. In a trial vLLM fills new memory with NaN, which costs time."""
        self._call_ranks("time_updates", on)

    def end_update(self) -> None:
        """End an update that a failure left open. Raises RemoteError if none is open, or if the engine cannot end it."""
        self._call("end_update")

    def update_inflight(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        buckets: Sequence[Bucket],
        *,
        transport: str,
        pause: str,
        clear_cache: bool,
        after: int,
        version: str,
    ) -> InflightResult:
        """Update the weights while requests run, once the first response has `after` tokens. pause: one of `pause_modes`.

        transport: one of `transports` that supports it (`Transport.supports_inflight`). Raises CkptcheckError for any other.
        """
        usable = [row for row in self.transports if row.supports_inflight]
        if transport not in [row.name for row in usable]:
            raise CkptcheckError(
                f"{self.title} takes no weights by {transport} while requests run",
                f"choose one of {join_names(usable)}",
            )
        reply = self._call(
            "update_inflight",
            prompts=_as_lists(prompts),
            samplings=[asdict(settings) for settings in sampling_per_prompt(sampling, len(prompts))],
            buckets=self._encode_buckets(buckets, transport),
            transport=transport,
            pause=pause,
            clear_cache=clear_cache,
            after=after,
            version=version,
        )
        generations = msgspec.convert(reply["generations"], tuple[Generation, ...])
        return InflightResult(msgspec.convert(reply["update"], UpdateResult), generations)

    def _encode_buckets(self, buckets: Sequence[Bucket], transport: str) -> list[dict[str, Any]]:
        if transport not in [row.name for row in self.transports]:
            raise CkptcheckError(
                f"{self.title} takes no weights by {transport} here", f"choose one of {join_names(self.transports)}"
            )
        if not buckets:
            raise CkptcheckError(f"there is nothing to send by {transport}")
        encoded: list[dict[str, Any]] = msgspec.to_builtins(buckets)
        return encoded

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[SequenceScores]:
        """Score sequences by prefill; decode: how many tokens to add by greedy decoding."""
        reply = self._call("score", sequences=_as_lists(sequences), decode=decode)
        return msgspec.convert(reply, list[SequenceScores])

    def score_by_decode(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        """Return the logprobs of the tokens after the first `prompt` ones, each from a decode step with the token forced."""
        reply = self._call("score_by_decode", sequences=_as_lists(sequences), prompt=prompt)
        return [tuple(logprobs) for logprobs in reply]

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling], *, salt: str = ""
    ) -> list[Generation]:
        """Return a response for each prompt, all requested at once. salt: prompts with different salts share no cached prefix."""
        samplings = [asdict(settings) for settings in sampling_per_prompt(sampling, len(prompts))]
        reply = self._call("generate", prompts=_as_lists(prompts), samplings=samplings, salt=salt)
        return msgspec.convert(reply, list[Generation])

    def score_image(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Return the logprobs of the tokens after the first one, which stands for an image: always the same image."""
        return tuple(self._call("score_image", tokens=list(map(int, tokens))))

    def reset_encoder_cache(self) -> None:
        """Drop the outputs of the vision tower that the engine caches."""
        self._call("reset_encoder_cache")

    def acceptance_length(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Return the tokens per decode step over greedy responses of so many tokens, one request at a time."""
        return float(self._call("acceptance_length", prompts=_as_lists(prompts), tokens=tokens))

    def force_decode(self, prompt: Sequence[int], tokens: Sequence[int]) -> Generation:
        """Force the engine to decode these tokens after the prompt, until the engine itself stops: at an end token."""
        reply = self._call("force_decode", prompt=list(map(int, prompt)), tokens=list(map(int, tokens)))
        return msgspec.convert(reply, Generation)

    def score_full_vocab(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file.

        Tensors "0", "1", …: [tokens - 1, vocabulary], float32, natural, at temperature 1; short sequences only.
        """
        path = real_path(folder) / "full-engine.safetensors"
        self._call("score_full_vocab", sequences=_as_lists(sequences), path=str(path))
        return path

    def tokenize(self, text: str, messages: Sequence[Mapping[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the engine's own tokens of a text and of a conversation. Needs the switch `text`."""
        reply = self._call("tokenize", text=text, messages=[dict(message) for message in messages])
        return tuple(reply["text"]), tuple(reply["chat"])

    def expert_routing(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts of every token as [layer][token][choice]; [] if the engine cannot report them."""
        routing: list[list[list[int]]] = self._call("expert_routing", tokens=list(map(int, tokens)))
        return routing

    def capture_activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return the activations of every module while a prompt is prefilled, over all ranks."""
        path = real_path(folder) / "engine"
        captures = self._call("capture_activations", tokens=list(map(int, tokens)), path=str(path))
        return assemble_activations(captures, len(tokens))

    @classmethod
    @abstractmethod
    def lora_arguments(cls, slots: int, rank: int, modules: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of the engine's constructor for LoRA adapters.

        slots: how many adapters it holds at once. rank: of the largest. modules: names of the modules that they change.
        """

    def load_adapter(self, name: str, folder: Path, update: str = "reload") -> None:
        """Load a LoRA adapter, or another one under the same name.

        update: reload unloads the one before; inplace has the engine replace it; same only names the new folder.
        Raises RemoteError if the engine refuses.
        """
        self._call("load_adapter", name=name, path=str(real_path(folder)), update=update)

    def score_with_adapter(
        self, sequences: Sequence[Sequence[int]], adapter: str, *, decode: int = 0
    ) -> list[SequenceScores]:
        """Score sequences as `score` does, by requests with a loaded adapter; "" for none.

        One request at a time: with LoRA on, vLLM 0.32 cannot compute the prompt logprobs of several on a CPU.
        """
        replies = (self._call("score", sequences=[one], decode=decode, adapter=adapter) for one in _as_lists(sequences))
        return [score for reply in replies for score in msgspec.convert(reply, list[SequenceScores])]

    def digest_adapter(self, name: str) -> TensorDigests:
        """Digest the tensors of an adapter on every rank; {} if the ranks hold none, because no request needs it."""
        return codec.decode_digests(self._call("digest_adapter", name=name))

    def write_merged(self, checkpoint: Path, adapter: Path, folder: Path, *, nudge: bool = False) -> None:
        """Write a checkpoint with an adapter merged into its weights; nudge: and each matrix moved by its last place."""
        self._call(
            "write_merged", checkpoint=str(real_path(checkpoint)), adapter=str(real_path(adapter)), folder=str(folder),
            nudge=nudge,
        )  # fmt: skip

    def write_variant(self, adapter: Path, folder: Path, seed: int) -> None:
        """Write an adapter of the same shape, with other values."""
        self._call("write_variant", adapter=str(real_path(adapter)), folder=str(folder), seed=seed)

    def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values."""
        self._call("reset_prefix_cache")

    def fetch_tensors(self, names: Sequence[tuple[int, str]], folder: Path) -> Path:
        """Write tensors to a safetensors file (names ``RANK/NAME``) and return it."""
        path = real_path(folder) / "fetched.safetensors"
        self._call("fetch_tensors", names_by_rank=codec.group_by_rank(names, self.info.ranks), path=str(path))
        return path

    def memory_bytes(self) -> int:
        """Return the bytes that the processes of the ranks hold: on the device, on a CPU their resident memory."""
        return sum(dict(self._call_ranks("memory_bytes")).values())

    def used_memory(self) -> int:
        """Return the used bytes of the ranks' devices, by any process; on a CPU the result of `memory_bytes`."""
        return sum(dict(self._call_ranks("used_memory")).values())

    def weight_version(self, value: str | None = None) -> str:
        """Return the weight version that the engine reports; set it first if a value is given."""
        version: str = self._call("weight_version", value=value)
        return version

    def sleep(self, level: int = 1) -> None:
        """Release device memory; nothing changes on a CPU. level: 1 keeps the weights on the host, 2 drops them."""
        self._call("sleep", level=level)

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory back. tags: only the parts weights, kv_cache or cuda_graph; the engine ignores a part it lacks."""
        self._call("wake", tags=None if tags is None else list(tags))

    def close(self) -> None:
        """End the engine and every process it started; may be called twice."""
        self._worker.close()

    def _call_ranks(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every rank and return the results."""
        results: list[Any] = self._call("call_ranks", method=method, arguments=list(arguments))
        return results

    def _call(self, function: str, /, *, timeout: float | None = None, **arguments: Any) -> Any:
        if timeout is None and self.call_timeout is not None:
            timeout = default_timeout(self.call_timeout)
        return self._worker.call(function, timeout=timeout, **arguments)


def _as_lists(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(map(int, tokens)) for tokens in sequences]

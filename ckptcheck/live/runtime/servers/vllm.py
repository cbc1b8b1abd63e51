"""A running vLLM. Read against, and run with, vLLM 0.32.0 (entrypoints/openai, entrypoints/rl/online, entrypoints/serve/dev).

Checksums, weight versions and updates exist only if VLLM_SERVER_DEV_MODE=1 was set at the server's start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ckptcheck.live.runtime.engines import codec
from ckptcheck.live.runtime.engines.base import SequenceScores, TensorDigests, WeightPart
from ckptcheck.live.runtime.engines.known_issues import EXPERTS
from ckptcheck.live.runtime.servers.base import ServerInfo, ServerUpdateResult
from ckptcheck.live.runtime.servers.client import ASK, ServerClient
from ckptcheck.live.runtime.servers.errors import BadResponse, Rejected, ServerError
from ckptcheck.live.runtime.servers.layout import ServerLayout, Size, Word, format_rank

PLACE = re.compile(r"dp(\d{1,6}):pp(\d{1,6}):pcp(\d{1,6}):tp(\d{1,6}):(.+)")
"""A name in vLLM's checksums: the rank, then the tensor (v1/worker/gpu_worker.py)."""


T = TypeVar("T")


class Version(msgspec.Struct):
    """The response of /version."""

    version: str


class Card(msgspec.Struct):
    """One model of /v1/models."""

    id: str
    owned_by: str = ""
    root: str | None = None
    """The source of its weights."""
    parent: str | None = None
    """The base model of an adapter."""


class Models(msgspec.Struct):
    """The response of /v1/models."""

    data: list[Card]


class ModelConfig(msgspec.Struct):
    """The model_config of /server_info."""

    dtype: Word = ""
    logprobs_mode: str = ""
    architectures: list[str] | None = None
    quantization: Word | None = None
    hf_overrides: Any = None
    model_impl: Any = None


class ParallelConfig(msgspec.Struct):
    """The parallel_config of /server_info."""

    tensor_parallel_size: Size = 0
    pipeline_parallel_size: Size = 1
    data_parallel_size: Size = 1
    prefill_context_parallel_size: Size = 1
    enable_expert_parallel: bool = False
    enable_eplb: bool = False
    is_moe_model: bool | None = None
    worker_extension_cls: Word = ""


class SpeculativeConfig(msgspec.Struct):
    """The speculative_config of /server_info."""

    method: str | None = None


class DeviceConfig(msgspec.Struct):
    """The device_config of /server_info. vLLM 0.32.0 reports `device`, and no architectures."""

    device: str | None = None
    device_type: str = ""


class VllmConfig(msgspec.Struct):
    """The vllm_config of /server_info."""

    model_config: ModelConfig = msgspec.field(default_factory=ModelConfig)
    parallel_config: ParallelConfig = msgspec.field(default_factory=ParallelConfig)
    device_config: DeviceConfig = msgspec.field(default_factory=DeviceConfig)
    instance_id: str = ""
    """The nanosecond in which the server was started (config/vllm.py)."""
    speculative_config: SpeculativeConfig | None = None
    lora_config: dict[str, Any] | None = None

    @property
    def layout(self) -> ServerLayout:
        """How the server spreads the model. The data-parallel ranks of a mixture share its experts (config/parallel.py)."""
        model, parallel = self.model_config, self.parallel_config
        copies = parallel.data_parallel_size or 1
        architecture = (model.architectures or [""])[0]
        is_moe = parallel.is_moe_model if parallel.is_moe_model is not None else bool(EXPERTS.search(architecture))
        shares_experts = is_moe and copies > 1
        other_settings = {
            f"data_parallel_size={copies} with experts": shares_experts,
            f"prefill_context_parallel_size={parallel.prefill_context_parallel_size}": (
                parallel.prefill_context_parallel_size > 1
            ),
            "enable_eplb": parallel.enable_eplb,
            "lora_config": self.lora_config is not None,
            "hf_overrides": bool(model.hf_overrides),
            f"model_impl={model.model_impl}": model.model_impl not in (None, "auto", "vllm"),
        }
        return ServerLayout(
            tp=parallel.tensor_parallel_size,
            pp=parallel.pipeline_parallel_size,
            ep=parallel.tensor_parallel_size * copies if parallel.enable_expert_parallel else 1,
            copies=1 if shares_experts else copies,
            quantization=model.quantization or "",
            other_settings=tuple(name for name, is_set in other_settings.items() if is_set),
            draft=(self.speculative_config.method or "") if self.speculative_config is not None else "",
        )


class VllmServerInfo(msgspec.Struct):
    """The response of /server_info in dev mode."""

    vllm_config: VllmConfig = msgspec.field(default_factory=VllmConfig)


class WeightInfo(msgspec.Struct):
    """The response of /weight_info in dev mode."""

    weight_version: str | None = None


class RankResults(msgspec.Struct):
    """The response of /collective_rpc in dev mode: the result of a method of the workers on each rank."""

    results: list[Any]


class Checksums(msgspec.Struct):
    """The response of /weight_checker."""

    checksums: dict[str, str]


class Sampled(msgspec.Struct):
    """The logprobs of the sampled tokens."""

    token_logprobs: list[float | None] = []


class CompletionChoice(msgspec.Struct):
    """One completion."""

    index: int
    logprobs: Sampled | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None = None
    """For each token of the prompt, token id → its logprob and rank; None for the first."""


class Completion(msgspec.Struct):
    """The response of /v1/completions."""

    choices: list[CompletionChoice]


class VllmServer:
    """A running vLLM server. client: sends the requests."""

    engine = "vllm"

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self.url = client.url

    def version(self, *, seconds: float = ASK) -> str:
        """Return the version of the server. Raises ServerError if it is no vLLM."""
        return self._client.get("/version", Version, timeout=seconds).version

    def info(self, *, seconds: float) -> ServerInfo:
        """Return the server's description of itself: only version and model if it does not run in dev mode."""
        version, card = self.version(seconds=seconds), self._card(seconds)
        config, weight_version = VllmConfig(), ""
        try:
            config = self._client.get("/server_info?config_format=json", VllmServerInfo, timeout=seconds).vllm_config
            weight_version = self._client.get("/weight_info", WeightInfo, timeout=seconds).weight_version or ""
        # not in dev mode, or older than /weight_info: the rest is unknown
        except ServerError:
            pass
        model = config.model_config
        return ServerInfo(
            "vllm",
            version=version,
            model=card.root or card.id,
            weight_version=weight_version,
            dtype=model.dtype.removeprefix("torch."),
            device=(config.device_config.device or config.device_config.device_type).partition(":")[0],
            architecture=(model.architectures or [""])[0],
            logprobs_mode=model.logprobs_mode,
            instance=config.instance_id,
            layout=config.layout,
            extension=config.parallel_config.worker_extension_cls or "",
        )

    def weight_version(self, *, seconds: float) -> str:
        """Return the weight version that the server reports; "" without dev mode, and for a vLLM without /weight_info."""
        try:
            return self._client.get("/weight_info", WeightInfo, timeout=seconds).weight_version or ""
        except Rejected as error:
            if error.status not in (404, 405):
                raise
        return ""

    def check_alive(self, *, seconds: float) -> None:
        """Have the server generate one token: /health answers 200 until the engine itself reports that it is dead."""
        self.score([[8, 9]], decode=1, seconds=seconds)

    def checksums(self, *, seconds: float) -> Mapping[str, str]:
        """Return the server's checksums: SHA-256 of each parameter's bytes, without buffers; a packed parameter has no bytes."""
        try:
            response = self._client.post("/weight_checker", {"action": "checksum"}, Checksums, timeout=seconds)
        except Rejected as error:
            hint = "start it with VLLM_SERVER_DEV_MODE=1; before vLLM 0.32 it has no /weight_checker"
            raise Rejected(error.message, error.status, error.body, error.hint or hint) from None
        by_place = {}
        for key, value in response.checksums.items():
            match = PLACE.fullmatch(key)
            if match is None:
                by_place[f"{format_rank(0, 0)}/{key}"] = value
                continue
            dp, pp, pcp, tp = map(int, match.groups()[:4])
            by_place[f"{format_rank(tp, pp, dp, pcp=pcp)}/{match[5]}"] = value
        return by_place

    def describe_tensors(self, *, seconds: float) -> TensorDigests:
        """Return the tensors of the ranks, without digests, from ckptcheck's extension of the workers."""
        return self._decode(codec.decode_digests, self._call_ranks("digest_tensors", [False], seconds))

    def sum_parts(self, parts: Sequence[WeightPart], ranks: int, *, seconds: float) -> list[tuple[int, int]]:
        """Return the addition of each part to the two sums of its weight's shard digest, by ckptcheck's extension."""
        results = self._call_ranks("sum_parts", [codec.encode_parts(parts, ranks)], seconds)
        return self._decode(partial(codec.decode_part_sums, parts), results)

    def _call_ranks(self, method: str, arguments: list[Any], seconds: float) -> list[Any]:
        request = {"method": f"ckptcheck_{method}", "args": arguments}
        return self._client.post("/collective_rpc", request, RankResults, timeout=seconds).results

    def _decode(self, decode: Callable[[list[Any]], T], results: list[Any]) -> T:
        try:
            return decode(results)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise BadResponse(f"{self.url}/collective_rpc answers in an unknown form: {error!r}") from error

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int, seconds: float) -> list[SequenceScores]:
        """Score sequences of token ids."""
        request = {
            "model": self._card(seconds).id,
            "prompt": [list(tokens) for tokens in sequences],
            "max_tokens": decode,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
            # without this vLLM looks up their text, and the server may have no tokenizer
            "return_tokens_as_token_ids": True,
        }
        choices = self._client.post("/v1/completions", request, Completion, timeout=seconds).choices
        if sorted(choice.index for choice in choices) != list(range(len(sequences))):
            raise BadResponse(f"{self.url}/v1/completions answers {len(choices)} of {len(sequences)} sequences")
        by_index = {choice.index: choice for choice in choices}
        return [self._scores(tokens, by_index[index]) for index, tokens in enumerate(sequences)]

    def _scores(self, tokens: Sequence[int], choice: CompletionChoice) -> SequenceScores:
        reported = choice.prompt_logprobs or []
        if len(reported) != len(tokens) or any(
            not entry or str(token) not in entry for token, entry in list(zip(tokens, reported, strict=True))[1:]
        ):
            raise BadResponse(f"{self.url}/v1/completions answers no logprob for every token of the prompt")
        prompt = (
            _number((entry or {})[str(token)].get("logprob"))
            for token, entry in zip(tokens[1:], reported[1:], strict=True)
        )
        sampled = choice.logprobs.token_logprobs if choice.logprobs else []
        return SequenceScores(tuple(prompt), tuple(choice.token_ids or ()), tuple(map(_number, sampled)))

    def scramble(self, *, seconds: float) -> None:
        """Have the server overwrite its weights with zeros."""
        self._client.post("/weight_checker", {"action": "reset"}, dict[str, Any], timeout=seconds)

    def update(self, checkpoint: Path, version: str, *, seconds: float) -> ServerUpdateResult:
        """Have the server load a checkpoint from its disk by reload_weights, then reset its cache and set its version."""
        request = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
        try:
            self._client.post("/collective_rpc", request, dict[str, Any], timeout=seconds)
            self._client.send("POST", "/reset_prefix_cache", timeout=seconds)
            self._client.post("/update_weight_version", {"new_version": version}, dict[str, Any], timeout=seconds)
        except Rejected as error:
            return ServerUpdateResult(False, error.body)
        return ServerUpdateResult(True, "")

    def _card(self, seconds: float) -> Card:
        cards = self._client.get("/v1/models", Models, timeout=seconds).data
        base = next((card for card in cards if not card.parent), None)
        if base is None:
            raise BadResponse(f"{self.url}/v1/models lists no model")
        return base


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")

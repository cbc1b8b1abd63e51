"""A running vLLM. Read against, and run with, vLLM 0.32.0 (entrypoints/openai, entrypoints/rl/online, entrypoints/serve/dev).

Checksums, weight versions and updates are there only where the server was started with VLLM_SERVER_DEV_MODE=1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.engines.base import Scores
from ckptcheck.engines.known import EXPERTS
from ckptcheck.servers.base import About, Answered
from ckptcheck.servers.client import ASK, Client
from ckptcheck.servers.layout import Layout, Size, Word, rank_of
from ckptcheck.servers.trouble import Junk, Refused, ServerTrouble

PLACE = re.compile(r"dp(\d{1,6}):pp(\d{1,6}):pcp(\d{1,6}):tp(\d{1,6}):(.+)")
"""What stands before a name in its checksums (v1/worker/gpu_worker.py)."""


class Version(msgspec.Struct):
    """What /version says."""

    version: str


class Card(msgspec.Struct):
    """One model of /v1/models. root: where its weights come from; parent: of an adapter."""

    id: str
    owned_by: str = ""
    root: str | None = None
    parent: str | None = None


class Models(msgspec.Struct):
    """The answer of /v1/models."""

    data: list[Card]


class ModelConfig(msgspec.Struct):
    """Of /server_info."""

    dtype: Word = ""
    logprobs_mode: str = ""
    architectures: list[str] | None = None
    quantization: Word | None = None
    hf_overrides: Any = None
    model_impl: Any = None


class ParallelConfig(msgspec.Struct):
    """Of /server_info."""

    tensor_parallel_size: Size = 0
    pipeline_parallel_size: Size = 1
    data_parallel_size: Size = 1
    prefill_context_parallel_size: Size = 1
    enable_expert_parallel: bool = False
    enable_eplb: bool = False
    is_moe_model: bool | None = None


class SpeculativeConfig(msgspec.Struct):
    """Of /server_info."""

    method: str | None = None


class DeviceConfig(msgspec.Struct):
    """Of /server_info. 0.32.0 says device; architectures it does not say at all."""

    device: str | None = None
    device_type: str = ""


class VllmConfig(msgspec.Struct):
    """Of /server_info. instance_id: the nanosecond in which it was started (config/vllm.py)."""

    model_config: ModelConfig = msgspec.field(default_factory=ModelConfig)
    parallel_config: ParallelConfig = msgspec.field(default_factory=ParallelConfig)
    device_config: DeviceConfig = msgspec.field(default_factory=DeviceConfig)
    instance_id: str = ""
    speculative_config: SpeculativeConfig | None = None
    lora_config: dict[str, Any] | None = None

    @property
    def layout(self) -> Layout:
        """How it spreads the model. Of a mixture, the ranks of data parallelism share the experts (config/parallel.py)."""
        model, parallel = self.model_config, self.parallel_config
        copies = parallel.data_parallel_size or 1
        architecture = (model.architectures or [""])[0]
        moe = parallel.is_moe_model if parallel.is_moe_model is not None else bool(EXPERTS.search(architecture))
        shared = moe and copies > 1
        further = {
            f"data_parallel_size={copies} with experts": shared,
            f"prefill_context_parallel_size={parallel.prefill_context_parallel_size}": (
                parallel.prefill_context_parallel_size > 1
            ),
            "enable_eplb": parallel.enable_eplb,
            "lora_config": self.lora_config is not None,
            "hf_overrides": bool(model.hf_overrides),
            f"model_impl={model.model_impl}": model.model_impl not in (None, "auto", "vllm"),
        }
        return Layout(
            tp=parallel.tensor_parallel_size,
            pp=parallel.pipeline_parallel_size,
            ep=parallel.tensor_parallel_size * copies if parallel.enable_expert_parallel else 1,
            copies=1 if shared else copies,
            quantization=model.quantization or "",
            further=tuple(name for name, there in further.items() if there),
            draft=(self.speculative_config.method or "") if self.speculative_config is not None else "",
        )


class ServerInfo(msgspec.Struct):
    """What /server_info says in dev mode."""

    vllm_config: VllmConfig = msgspec.field(default_factory=VllmConfig)


class WeightInfo(msgspec.Struct):
    """What /weight_info says in dev mode."""

    weight_version: str | None = None


class Checksums(msgspec.Struct):
    """The answer of /weight_checker."""

    checksums: dict[str, str]


class Sampled(msgspec.Struct):
    """The logprobs of what was sampled."""

    token_logprobs: list[float | None] = []


class Choice(msgspec.Struct):
    """One completion. prompt_logprobs: of each token of the prompt, token id → what is known; the first has none."""

    index: int
    logprobs: Sampled | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None = None


class Completion(msgspec.Struct):
    """The answer of /v1/completions."""

    choices: list[Choice]


class VllmServer:
    """One server. client: speaks to it."""

    engine = "vllm"

    def __init__(self, client: Client) -> None:
        self._client = client
        self.url = client.url

    def version(self, *, seconds: float = ASK) -> str:
        """Return its version. Raises ServerTrouble where it is no vLLM."""
        return self._client.get("/version", Version, timeout=seconds).version

    def about(self, *, seconds: float) -> About:
        """Return what it says of itself; out of dev mode that is version and model."""
        version, card = self.version(seconds=seconds), self._card(seconds)
        config, weights = VllmConfig(), ""
        try:
            config = self._client.get("/server_info?config_format=json", ServerInfo, timeout=seconds).vllm_config
            weights = self._client.get("/weight_info", WeightInfo, timeout=seconds).weight_version or ""
        except ServerTrouble:
            pass  # not started in dev mode, or older than /weight_info: the rest is not known
        model = config.model_config
        return About(
            "vllm",
            version=version,
            model=card.root or card.id,
            weights=weights,
            dtype=model.dtype.removeprefix("torch."),
            device=(config.device_config.device or config.device_config.device_type).partition(":")[0],
            architecture=(model.architectures or [""])[0],
            sampled=model.logprobs_mode,
            instance=config.instance_id,
            layout=config.layout,
        )

    def weight_version(self, *, seconds: float) -> str:
        """Return the weight version it reports; out of dev mode, and before vLLM has /weight_info, it has none."""
        try:
            return self._client.get("/weight_info", WeightInfo, timeout=seconds).weight_version or ""
        except Refused as refused:
            if refused.status not in (404, 405):
                raise
        return ""

    def alive(self, *, seconds: float) -> None:
        """Have it generate one token; /health alone answers 200 as long as the engine has not said that it is dead."""
        self.score([[8, 9]], decode=1, seconds=seconds)

    def checksums(self, *, seconds: float) -> Mapping[str, str]:
        """Return its own checksums: SHA-256 of each parameter's bytes, no buffer; packed ones are of no bytes."""
        try:
            said = self._client.post("/weight_checker", {"action": "checksum"}, Checksums, timeout=seconds).checksums
        except Refused as refused:
            hint = "start it with VLLM_SERVER_DEV_MODE=1; before vLLM 0.32 it has no /weight_checker"
            raise Refused(refused.message, refused.status, refused.said, refused.hint or hint) from None
        found = {}
        for spelled, value in said.items():
            place = PLACE.fullmatch(spelled)
            if place is None:
                found[f"{rank_of(0, 0)}/{spelled}"] = value
                continue
            dp, pp, pcp, tp = map(int, place.groups()[:4])
            found[f"{rank_of(tp, pp, dp, pcp=pcp)}/{place[5]}"] = value
        return found

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int, seconds: float) -> list[Scores]:
        """Score sequences of token ids."""
        asked = {
            "model": self._card(seconds).id,
            "prompt": [list(tokens) for tokens in sequences],
            "max_tokens": decode,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # else their text is looked up, and a tokenizer need not be there
        }
        choices = self._client.post("/v1/completions", asked, Completion, timeout=seconds).choices
        if sorted(choice.index for choice in choices) != list(range(len(sequences))):
            raise Junk(f"{self.url}/v1/completions answers {len(choices)} of {len(sequences)} sequences")
        by_index = {choice.index: choice for choice in choices}
        return [self._scores(tokens, by_index[index]) for index, tokens in enumerate(sequences)]

    def _scores(self, tokens: Sequence[int], choice: Choice) -> Scores:
        said = choice.prompt_logprobs or []
        if len(said) != len(tokens) or any(
            not known or str(token) not in known for token, known in list(zip(tokens, said, strict=True))[1:]
        ):
            raise Junk(f"{self.url}/v1/completions answers no logprob for every token of the prompt")
        prompt = (
            _number((known or {})[str(token)].get("logprob")) for token, known in zip(tokens[1:], said[1:], strict=True)
        )
        sampled = choice.logprobs.token_logprobs if choice.logprobs else []
        return Scores(tuple(prompt), tuple(choice.token_ids or ()), tuple(map(_number, sampled)))

    def scramble(self, *, seconds: float) -> None:
        """Overwrite its weights with zeros."""
        self._client.post("/weight_checker", {"action": "reset"}, dict[str, Any], timeout=seconds)

    def update(self, checkpoint: Path, version: str, *, seconds: float) -> Answered:
        """Have it load a checkpoint from its disk by its own reload_weights; then its cache and its version are set."""
        asked = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
        try:
            self._client.post("/collective_rpc", asked, dict[str, Any], timeout=seconds)
            self._client.send("POST", "/reset_prefix_cache", timeout=seconds)
            self._client.post("/update_weight_version", {"new_version": version}, dict[str, Any], timeout=seconds)
        except Refused as refused:
            return Answered(False, refused.said)
        return Answered(True, "")

    def _card(self, seconds: float) -> Card:
        cards = self._client.get("/v1/models", Models, timeout=seconds).data
        base = next((card for card in cards if not card.parent), None)
        if base is None:
            raise Junk(f"{self.url}/v1/models lists no model")
        return base


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")

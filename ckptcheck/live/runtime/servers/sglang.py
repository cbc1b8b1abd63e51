"""A running SGLang. Read against, and run with, SGLang 0.5.23 (srt/entrypoints/http_server.py, srt/managers/io_struct.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ckptcheck.live.runtime.engines.base import SequenceScores
from ckptcheck.live.runtime.servers.base import ServerInfo, ServerUpdateResult
from ckptcheck.live.runtime.servers.client import ASK, ServerClient
from ckptcheck.live.runtime.servers.errors import BadResponse, Rejected, ServerError
from ckptcheck.live.runtime.servers.layout import ServerLayout, Size, Word, format_rank

T = TypeVar("T")

FURTHER: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("moe_dp_size", "attn_cp_size", "dcp_size", "dwdp_size"), (None, 1)),
    **dict.fromkeys(("enable_dp_lm_head", "enable_eplb", "ep_num_redundant_experts"), (None, False)),
    "moe_dense_tp_size": (None,),
    "torchao_config": (None, ""),
    "lora_paths": (None, [], {}),
    "init_expert_location": (None, "trivial"),
    "model_impl": (None, "auto", "sglang"),
    "json_model_override_args": (None, "", "{}"),
}
"""Settings that may move, rename or change weights → the values with which they do not (srt/arg_groups/fields)."""
WORDS = 80
"""Characters of a setting that a message repeats."""


class ModelInfo(msgspec.Struct):
    """The response of /model_info, which does not need the scheduler."""

    model_path: str
    is_generation: bool
    weight_version: str | None = None
    architectures: list[str] | None = None


class SglangServerInfo(msgspec.Struct):
    """The fields of /server_info about version and layout. SGLang asks the scheduler for this response."""

    version: str = ""
    dtype: Word = ""
    tp_size: Size = 0
    pp_size: Size = 1
    dp_size: Size = 1
    ep_size: Size | None = 1
    # older versions report dp_size, with enable_dp_attention
    attn_dp_size: Size | None = 1
    enable_dp_attention: bool | None = False
    quantization: Word | None = None
    speculative_algorithm: str | None = None
    device: str = ""
    startup_time: Any = None
    """Seconds that each part of the start took, in all digits (observability/startup_time.py)."""
    moe_dp_size: Any = None
    moe_dense_tp_size: Any = None
    attn_cp_size: Any = None
    dcp_size: Any = None
    dwdp_size: Any = None
    enable_dp_lm_head: Any = None
    enable_eplb: Any = None
    ep_num_redundant_experts: Any = None
    init_expert_location: Any = None
    torchao_config: Any = None
    lora_paths: Any = None
    model_impl: Any = None
    json_model_override_args: Any = None

    @property
    def layout(self) -> ServerLayout:
        """How the server spreads the model."""
        attention_groups = self.attn_dp_size or 1
        has_old_fields = bool(self.enable_dp_attention) and attention_groups == 1
        values = {name: getattr(self, name) for name in FURTHER}
        return ServerLayout(
            tp=self.tp_size,
            pp=self.pp_size,
            ep=self.ep_size or 1,
            attention_groups=self.dp_size if has_old_fields else attention_groups,
            copies=1 if has_old_fields else self.dp_size,
            quantization=self.quantization or "",
            other_settings=tuple(
                f"{name}={value}"[:WORDS] for name, value in values.items() if value not in FURTHER[name]
            ),
            draft=self.speculative_algorithm or "",
        )


class Place(msgspec.Struct):
    """The rank that a checksum belongs to."""

    tp_rank: int = 0
    pp_rank: int = 0
    dp_rank: int = 0
    role: str = "target"


class RankChecksums(msgspec.Struct):
    """The checksums of one rank."""

    checksums: dict[str, str]
    parallelism_info: Place | list[Place] | None = None
    """One place, or one for each role."""


class Checked(msgspec.Struct):
    """The response of /weights_checker."""

    success: bool
    message: str = ""
    ranks: list[RankChecksums] | None = None


class Updated(msgspec.Struct):
    """The response of an update."""

    success: bool
    message: str = ""


class Meta(msgspec.Struct):
    """The part of a generation that is not text. A logprob is (value, token id, text); the first one has no value."""

    input_token_logprobs: list[tuple[float | None, int, Any]] = []
    output_token_logprobs: list[tuple[float | None, int, Any]] = []
    cached_tokens: int = 0


class Generated(msgspec.Struct):
    """One response of /generate."""

    meta_info: Meta


class SglangServer:
    """A running SGLang server. client: sends the requests."""

    engine = "sglang"

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self.url = client.url

    def model(self, *, seconds: float = ASK) -> ModelInfo:
        """Return the server's model info. Raises ServerError if it is no SGLang."""
        return self._since("/model_info", "/get_model_info", ModelInfo, seconds)

    def _since(self, path: str, old_path: str, kind: type[T], seconds: float) -> T:
        """Get a path, or the path that it had before 0.5.6."""
        try:
            return self._client.get(path, kind, timeout=seconds)
        except Rejected as error:
            if error.status != 404:
                raise
        return self._client.get(old_path, kind, timeout=seconds)

    def info(self, *, seconds: float) -> ServerInfo:
        """Return the server's description of itself, without version and layout if the scheduler does not answer."""
        model = self.model(seconds=seconds)
        try:
            info = self._since("/server_info", "/get_server_info", SglangServerInfo, seconds)
        except ServerError:
            info = SglangServerInfo()
        return ServerInfo(
            "sglang",
            version=info.version,
            model=model.model_path,
            weight_version=model.weight_version or "",
            dtype=info.dtype,
            device=info.device.partition(":")[0],
            architecture=(model.architectures or [""])[0],
            instance=_instance_id(info.startup_time),
            layout=info.layout,
        )

    def weight_version(self, *, seconds: float) -> str:
        """Return the weight version that the server reports."""
        return self.model(seconds=seconds).weight_version or ""

    def check_alive(self, *, seconds: float) -> None:
        """Have the server generate one token."""
        self.score([[8, 9]], decode=1, seconds=seconds)

    def checksums(self, *, seconds: float) -> Mapping[str, str]:
        """Return the server's checksums: 64 bits of SHA-256 on a CPU, another hash on a GPU. SGLang leaves out rotary caches."""
        response = self._client.post("/weights_checker", {"action": "checksum"}, Checked, timeout=seconds)
        if not response.success or not response.ranks:
            raise BadResponse(
                f"{self.url}/weights_checker answers without checksums: {response.message or 'no reason given'}"
            )
        by_place: dict[str, str] = {}
        for rank in response.ranks:
            rank_places = rank.parallelism_info
            places = rank_places if isinstance(rank_places, list) else [rank_places or Place()]
            for name, value in rank.checksums.items():
                place, plain_name = _split_role(name, places)
                rank_name = format_rank(place.tp_rank, place.pp_rank, place.dp_rank, place.role)
                by_place[f"{rank_name}/{plain_name}"] = value
        return by_place

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int, seconds: float) -> list[SequenceScores]:
        """Score sequences of token ids."""
        request = {
            "input_ids": [list(tokens) for tokens in sequences],
            "sampling_params": {"temperature": 0, "max_new_tokens": decode, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        responses = self._client.post("/generate", request, list[Generated], timeout=seconds)
        if len(responses) != len(sequences):
            raise BadResponse(f"{self.url}/generate answers {len(responses)} of {len(sequences)} sequences")
        scores = []
        for tokens, result in zip(sequences, (response.meta_info for response in responses), strict=True):
            if [token for _, token, _ in result.input_token_logprobs] != list(tokens):
                raise BadResponse(f"{self.url}/generate answers logprobs of other tokens than it was given")
            scores.append(
                SequenceScores(
                    tuple(_number(value) for value, _, _ in result.input_token_logprobs[1:]),
                    tuple(token for _, token, _ in result.output_token_logprobs),
                    tuple(_number(value) for value, _, _ in result.output_token_logprobs),
                    result.cached_tokens,
                )
            )
        return scores

    def scramble(self, *, seconds: float) -> None:
        """Have the server overwrite its weights with random numbers."""
        response = self._client.post("/weights_checker", {"action": "reset_tensors"}, Checked, timeout=seconds)
        if not response.success:
            raise BadResponse(f"{self.url}/weights_checker does not reset: {response.message}")

    def update(self, checkpoint: Path, version: str, *, seconds: float) -> ServerUpdateResult:
        """Have the server load a checkpoint from its disk and flush its cache."""
        request = {"model_path": str(checkpoint), "weight_version": version, "flush_cache": True}
        try:
            response = self._client.post("/update_weights_from_disk", request, Updated, timeout=seconds)
        except Rejected as error:
            return ServerUpdateResult(False, error.body)
        return ServerUpdateResult(response.success, response.message)


def _instance_id(startup_time: Any) -> str:
    """Return an identifier of a server's start: no two starts take the same time to all digits. "" if unreported."""
    keys = ("scheduler_e2e", "tokenizer_e2e")
    seconds = [startup_time.get(key) for key in keys] if isinstance(startup_time, dict) else [None]
    return " ".join(map(repr, seconds)) if all(isinstance(part, float) and part > 0 for part in seconds) else ""


def _number(value: float | None) -> float:
    # JSON has no NaN: SGLang sends null for it
    return float("nan") if value is None else value


def _split_role(name: str, places: Sequence[Place]) -> tuple[Place, str]:
    """Return the place of a tensor and its plain name: if a rank has several roles, the draft's names begin with its role.

    (srt/managers/scheduler_components/weight_updater.py)
    """
    for place in places:
        if len(places) > 1 and place.role != "target" and name.startswith(f"{place.role}."):
            return place, name.removeprefix(f"{place.role}.")
    return next((place for place in places if place.role == "target"), places[0] if places else Place()), name

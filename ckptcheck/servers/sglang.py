"""A running SGLang. Read against, and run with, SGLang 0.5.23 (srt/entrypoints/http_server.py, srt/managers/io_struct.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ckptcheck.engines.base import Scores
from ckptcheck.servers.base import About, Answered
from ckptcheck.servers.client import ASK, Client
from ckptcheck.servers.layout import Layout, Size, Word, rank_of
from ckptcheck.servers.trouble import Junk, Refused, ServerTrouble

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
"""Settings that move, rename or change weights → those of their values that do not (srt/arg_groups/fields)."""
WORDS = 80
"""Characters of a setting that are repeated."""


class ModelInfo(msgspec.Struct):
    """What /model_info says, which no scheduler is asked for."""

    model_path: str
    is_generation: bool
    weight_version: str | None = None
    architectures: list[str] | None = None


class ServerInfo(msgspec.Struct):
    """What /server_info says of versions and layout; the scheduler is asked for the rest of it.

    startup_time: seconds that the parts of its start took (observability/startup_time.py), in all digits.
    """

    version: str = ""
    dtype: Word = ""
    tp_size: Size = 0
    pp_size: Size = 1
    dp_size: Size = 1
    ep_size: Size | None = 1
    attn_dp_size: Size | None = 1  # older: dp_size, where enable_dp_attention is set
    enable_dp_attention: bool | None = False
    quantization: Word | None = None
    speculative_algorithm: str | None = None
    device: str = ""
    startup_time: Any = None
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
    def layout(self) -> Layout:
        """How it spreads the model."""
        groups = self.attn_dp_size or 1
        old = bool(self.enable_dp_attention) and groups == 1
        values = {name: getattr(self, name) for name in FURTHER}
        return Layout(
            tp=self.tp_size,
            pp=self.pp_size,
            ep=self.ep_size or 1,
            attention=self.dp_size if old else groups,
            copies=1 if old else self.dp_size,
            quantization=self.quantization or "",
            further=tuple(f"{name}={value}"[:WORDS] for name, value in values.items() if value not in FURTHER[name]),
            draft=self.speculative_algorithm or "",
        )


class Place(msgspec.Struct):
    """Which rank a checksum is of."""

    tp_rank: int = 0
    pp_rank: int = 0
    dp_rank: int = 0
    role: str = "target"


class Rank(msgspec.Struct):
    """The checksums of one rank. parallelism_info: one place, or a list of one for each role."""

    checksums: dict[str, str]
    parallelism_info: Place | list[Place] | None = None


class Checked(msgspec.Struct):
    """The answer of /weights_checker."""

    success: bool
    message: str = ""
    ranks: list[Rank] | None = None


class Updated(msgspec.Struct):
    """The answer of an update."""

    success: bool
    message: str = ""


class Meta(msgspec.Struct):
    """The part of a generation that is not text. A logprob comes as (value, token id, text); the first has no value."""

    input_token_logprobs: list[tuple[float | None, int, Any]] = []
    output_token_logprobs: list[tuple[float | None, int, Any]] = []
    cached_tokens: int = 0


class Generated(msgspec.Struct):
    """One answer of /generate."""

    meta_info: Meta


class SglangServer:
    """One server. client: speaks to it."""

    engine = "sglang"

    def __init__(self, client: Client) -> None:
        self._client = client
        self.url = client.url

    def model(self, *, seconds: float = ASK) -> ModelInfo:
        """Return what it serves. Raises ServerTrouble where it is no SGLang."""
        return self._since("/model_info", "/get_model_info", ModelInfo, seconds)

    def _since(self, path: str, before: str, kind: type[T], seconds: float) -> T:
        """Ask for a path, or for the name that it had before 0.5.6."""
        try:
            return self._client.get(path, kind, timeout=seconds)
        except Refused as refused:
            if refused.status != 404:
                raise
        return self._client.get(before, kind, timeout=seconds)

    def about(self, *, seconds: float) -> About:
        """Return what it says of itself; a scheduler that does not answer costs version and layout."""
        model = self.model(seconds=seconds)
        try:
            info = self._since("/server_info", "/get_server_info", ServerInfo, seconds)
        except ServerTrouble:
            info = ServerInfo()
        return About(
            "sglang",
            version=info.version,
            model=model.model_path,
            weights=model.weight_version or "",
            dtype=info.dtype,
            device=info.device.partition(":")[0],
            architecture=(model.architectures or [""])[0],
            instance=_start(info.startup_time),
            layout=info.layout,
        )

    def weight_version(self, *, seconds: float) -> str:
        """Return the weight version it reports."""
        return self.model(seconds=seconds).weight_version or ""

    def alive(self, *, seconds: float) -> None:
        """Have it generate one token."""
        self.score([[8, 9]], decode=1, seconds=seconds)

    def checksums(self, *, seconds: float) -> Mapping[str, str]:
        """Return its own checksums: 64 bits of SHA-256 on a CPU, another hash on a GPU; caches of rotary angles are left out."""
        checked = self._client.post("/weights_checker", {"action": "checksum"}, Checked, timeout=seconds)
        if not checked.success or not checked.ranks:
            raise Junk(f"{self.url}/weights_checker answers without checksums: {checked.message or 'no reason given'}")
        found: dict[str, str] = {}
        for rank in checked.ranks:
            info = rank.parallelism_info
            places = info if isinstance(info, list) else [info or Place()]
            for name, value in rank.checksums.items():
                place, own = _role(name, places)
                where = rank_of(place.tp_rank, place.pp_rank, place.dp_rank, place.role)
                found[f"{where}/{own}"] = value
        return found

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int, seconds: float) -> list[Scores]:
        """Score sequences of token ids."""
        asked = {
            "input_ids": [list(tokens) for tokens in sequences],
            "sampling_params": {"temperature": 0, "max_new_tokens": decode, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answers = self._client.post("/generate", asked, list[Generated], timeout=seconds)
        if len(answers) != len(sequences):
            raise Junk(f"{self.url}/generate answers {len(answers)} of {len(sequences)} sequences")
        scores = []
        for tokens, meta in zip(sequences, (answer.meta_info for answer in answers), strict=True):
            if [token for _, token, _ in meta.input_token_logprobs] != list(tokens):
                raise Junk(f"{self.url}/generate answers logprobs of other tokens than it was given")
            scores.append(
                Scores(
                    tuple(_number(value) for value, _, _ in meta.input_token_logprobs[1:]),
                    tuple(token for _, token, _ in meta.output_token_logprobs),
                    tuple(_number(value) for value, _, _ in meta.output_token_logprobs),
                    meta.cached_tokens,
                )
            )
        return scores

    def scramble(self, *, seconds: float) -> None:
        """Overwrite its weights with random numbers."""
        checked = self._client.post("/weights_checker", {"action": "reset_tensors"}, Checked, timeout=seconds)
        if not checked.success:
            raise Junk(f"{self.url}/weights_checker does not reset: {checked.message}")

    def update(self, checkpoint: Path, version: str, *, seconds: float) -> Answered:
        """Have it load a checkpoint from its disk; its cache is flushed with it."""
        asked = {"model_path": str(checkpoint), "weight_version": version, "flush_cache": True}
        try:
            updated = self._client.post("/update_weights_from_disk", asked, Updated, timeout=seconds)
        except Refused as refused:
            return Answered(False, refused.said)
        return Answered(updated.success, updated.message)


def _start(took: Any) -> str:
    """Return what tells one start from every other: to all digits no two take the same time. "" where it is not told."""
    parts = [took.get(name) for name in ("scheduler_e2e", "tokenizer_e2e")] if isinstance(took, dict) else [None]
    return " ".join(map(repr, parts)) if all(isinstance(part, float) and part > 0 for part in parts) else ""


def _number(value: float | None) -> float:
    return float("nan") if value is None else value  # JSON has no NaN, and a served NaN comes as null


def _role(name: str, places: Sequence[Place]) -> tuple[Place, str]:
    """Return whose a tensor is, and its name there: of several roles on one rank, those of drafts stand before their names.

    (srt/managers/scheduler_components/weight_updater.py)
    """
    for place in places:
        if len(places) > 1 and place.role != "target" and name.startswith(f"{place.role}."):
            return place, name.removeprefix(f"{place.role}.")
    return next((place for place in places if place.role == "target"), places[0] if places else Place()), name

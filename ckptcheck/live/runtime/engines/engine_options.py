"""The switches of an engine under neutral names; each engine translates them and reports those it did not apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import real_path

Logprobs = Literal["raw", "processed"]
Compilation = Literal["eager", "inductor", "graphs"]


@dataclass(frozen=True, slots=True)
class Switches:
    """Switches of an engine. None keeps the default of the checks: eager, deterministic, with raw logprobs."""

    prefix_cache: bool | None = None
    """Reuse the keys and values of earlier prompts."""
    logprobs: Logprobs | None = None
    """raw: logprobs of the model; processed: of the sampling distribution, after temperature, top-k and top-p."""
    chunked_prefill: bool | None = None
    """Compute prompts in chunks; False computes each prompt at once."""
    chunk: int | None = None
    """Tokens of a chunk."""
    async_scheduling: bool | None = None
    """Schedule the next step while the current one runs."""
    compilation: Compilation | None = None
    """eager, compiled by torch's inductor, or CUDA graphs captured without it."""
    precision_casts: bool | None = None
    """Inductor rounds between fused operations as eager does (TORCHINDUCTOR_EMULATE_PRECISION_CASTS)."""
    head_fp32: bool | None = None
    """The output head computes in float32."""
    sequences: int | None = None
    """The number of sequences that the engine computes at once."""
    text: bool | None = None
    """Load the checkpoint's tokenizer and generation config, as a server does."""
    speculative: int | None = None
    """Tokens per step that n-grams of the prompt propose, or with `draft` a draft model."""
    draft: str | None = None
    """mtp, if the model's own layers for multi-token prediction propose tokens; otherwise the folder of a draft
    model."""
    redundant_experts: int | None = None
    """Copies of experts that the engine holds beside the experts, over all ranks; a refit then also moves them (EPLB)."""

    def to_dict(self) -> dict[str, Any]:
        """Return the switches that are set.

        >>> Switches(prefix_cache=False, chunk=64).to_dict()
        {'prefix_cache': False, 'chunk': 64}
        """
        return {option.name: value for option in fields(self) if (value := getattr(self, option.name)) is not None}

    def __str__(self) -> str:
        """Return the switches that are set as NAME=VALUE, "as it comes" without any.

        >>> str(Switches(prefix_cache=False, logprobs="raw")), str(Switches())
        ('prefix_cache=off logprobs=raw', 'as it comes')
        """
        words = {True: "on", False: "off"}
        parts = [
            f"{name}={words[value] if isinstance(value, bool) else value}" for name, value in self.to_dict().items()
        ]
        return " ".join(parts) or "as it comes"


def parse_switches(texts: list[str]) -> Switches:
    """Parse ``NAME=VALUE`` texts of a user. Raises CkptcheckError for an unknown switch and for an invalid value.

    >>> parse_switches(["prefix_cache=off", "chunk=64", "logprobs=processed"]).to_dict()
    {'prefix_cache': False, 'logprobs': 'processed', 'chunk': 64}
    """
    values: dict[str, Any] = {}
    names = [option.name for option in fields(Switches)]
    for text in texts:
        name, separator, value = text.partition("=")
        name = name.replace("-", "_")
        if name not in names:
            raise CkptcheckError(f"there is no switch {name}", hint=f"choose one of {', '.join(names)}")
        if not separator:
            raise CkptcheckError(f"the switch {name} has no value", hint=f"write it as {name}=VALUE")
        values[name] = _parse_value(name, value)
    return Switches(**values)


def _parse_value(name: str, value: str) -> Any:
    choices: Mapping[str, tuple[str, ...]] = {
        "logprobs": ("raw", "processed"),
        "compilation": ("eager", "inductor", "graphs"),
    }
    if name == "draft":
        return _parse_draft(value)
    if name in choices:
        if value not in choices[name]:
            raise CkptcheckError(f"{name} is {' or '.join(choices[name])}, not {value}")
        return cast(Any, value)
    if name in ("chunk", "sequences", "speculative", "redundant_experts"):
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise CkptcheckError(f"{name} is a whole number, not {value}")
        return int(value)
    if value not in ("on", "off"):
        raise CkptcheckError(f"{name} is on or off, not {value}")
    return value == "on"


def _parse_draft(value: str) -> str:
    if value == "mtp":
        return value
    if not (Path(value) / "config.json").is_file():
        raise CkptcheckError(f"draft is mtp or the folder of a draft model, and {value} has no config.json")
    # the engine runs in another folder
    return str(real_path(value))


def ignored_switches(requested: Switches, applied: Mapping[str, Any], engine: str) -> dict[str, str]:
    """Return requested switch that a running engine does not have → why, with the engine's name in the sentence.

    applied: switch → value in the running engine. A switch that the engine does not report counts as ignored.
    """
    ignored = {}
    for name, value in requested.to_dict().items():
        if name not in applied:
            ignored[name] = f"{engine} has no such switch"
        elif applied[name] != value:
            ignored[name] = f"{engine} made it {applied[name]} by itself"
    return ignored

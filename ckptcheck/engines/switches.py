"""How an engine is set up, in words that are no engine's own; each engine says them in its own and names those it did not take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from ckptcheck.errors import CkptcheckError

Logprobs = Literal["raw", "processed"]
Compilation = Literal["eager", "inductor", "graphs"]


@dataclass(frozen=True, slots=True)
class Switches:
    """None everywhere: as the checks start an engine, which is eager, deterministic, with raw logprobs.

    prefix_cache: keep keys and values of prompts for later ones. logprobs: raw are those of the model, processed those of
    what is sampled from: divided by the temperature, cut by top-k and top-p. chunked_prefill: prompts are computed in
    pieces; False computes each whole. chunk: tokens of a piece. async_scheduling: the next step is planned while this one
    runs. compilation: eager, by torch's inductor, or graphs that are captured without it. precision_casts: inductor rounds
    between fused operations as eager does (TORCHINDUCTOR_EMULATE_PRECISION_CASTS). head_fp32: the output head computes in
    float32. sequences: most that are computed at once. text: with the checkpoint's tokenizer and generation config, as
    servers are. speculative: tokens that n-grams of the prompt propose for a step (speculative decoding without a draft model).
    """

    prefix_cache: bool | None = None
    logprobs: Logprobs | None = None
    chunked_prefill: bool | None = None
    chunk: int | None = None
    async_scheduling: bool | None = None
    compilation: Compilation | None = None
    precision_casts: bool | None = None
    head_fp32: bool | None = None
    sequences: int | None = None
    text: bool | None = None
    speculative: int | None = None

    def given(self) -> dict[str, Any]:
        """Return the switches that are set.

        >>> Switches(prefix_cache=False, chunk=64).given()
        {'prefix_cache': False, 'chunk': 64}
        """
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    def __str__(self) -> str:
        """Name what is set, "as it comes" where nothing is.

        >>> str(Switches(prefix_cache=False, logprobs="raw")), str(Switches())
        ('prefix_cache=off logprobs=raw', 'as it comes')
        """
        said = {True: "on", False: "off"}
        parts = [f"{name}={said[value] if isinstance(value, bool) else value}" for name, value in self.given().items()]
        return " ".join(parts) or "as it comes"


def parsed(texts: list[str]) -> Switches:
    """Read ``NAME=VALUE`` as a user writes them. Raises CkptcheckError for what is no switch or no value of it.

    >>> parsed(["prefix_cache=off", "chunk=64", "logprobs=processed"]).given()
    {'prefix_cache': False, 'logprobs': 'processed', 'chunk': 64}
    """
    values: dict[str, Any] = {}
    names = [each.name for each in fields(Switches)]
    for text in texts:
        name, given, value = text.partition("=")
        name = name.replace("-", "_")
        if name not in names:
            raise CkptcheckError(f"there is no switch {name}", hint=f"there are {', '.join(names)}")
        if not given:
            raise CkptcheckError(f"the switch {name} is given no value", hint=f"write it as {name}=VALUE")
        values[name] = _value(name, value)
    return Switches(**values)


def _value(name: str, value: str) -> Any:
    words: Mapping[str, tuple[str, ...]] = {
        "logprobs": ("raw", "processed"),
        "compilation": ("eager", "inductor", "graphs"),
    }
    if name in words:
        if value not in words[name]:
            raise CkptcheckError(f"{name} is {' or '.join(words[name])}, not {value}")
        return cast(Any, value)
    if name in ("chunk", "sequences", "speculative"):
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise CkptcheckError(f"{name} is a whole number, not {value}")
        return int(value)
    if value not in ("on", "off"):
        raise CkptcheckError(f"{name} is on or off, not {value}")
    return value == "on"


def untaken(asked: Switches, resolved: Mapping[str, Any], why: str) -> dict[str, str]:
    """Return the switches that an engine, once started, does not have as asked → what it has instead, and why.

    resolved: switch → what the engine came to. One that it says nothing of counts as not taken.
    """
    found = {}
    for name, value in asked.given().items():
        if name not in resolved:
            found[name] = f"{why} has no such switch"
        elif resolved[name] != value:
            found[name] = f"{why} made it {resolved[name]} by itself"
    return found

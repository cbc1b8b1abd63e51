"""The fake engine, serving: it generates, is set up by switches and updated under running requests, with every fault of that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.live.runtime.engines.base import Bucket, InflightResult, SequenceScores, UpdateResult
from ckptcheck.live.runtime.engines.engine_options import Switches, ignored_switches
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling, sampling_per_prompt
from ckptcheck.rollouts.metrics.sampling_distribution import penalize, processed
from tests.doubles import fake_model as model
from tests.doubles.fake_engine import FakeEngine

if TYPE_CHECKING:
    from numpy.typing import NDArray

FAULTS = (
    "overrun",  # goes on past its longest sequence
    "short",  # ends three tokens before it
    "drift",  # decoding is off from prefill, the more the further
    "rough",  # its prefill is a little off from its decoding, as rounding makes it
    "unsteady",  # every request is computed a little otherwise
    "batch",  # requests that are computed together disturb each other
    "half",  # processed logprobs are divided by the temperature twice
    "shifted",  # a token comes with the logprob of the one before it
    "weights",  # it computes with other weights than it was given
    "stale",  # an update does not reset the prefix cache
    "cached",  # what comes from the prefix cache is a little off
    "uncached",  # it says that nothing came from the prefix cache, and nothing does
    "refuses",  # it takes no update
    "grumbles",  # it takes an update under way and says that it has not
    "unversioned",  # it says nothing of versions
    "stamped",  # it gives all tokens the version of the end
    "mixed",  # after an update under way that keeps the caches, logprobs are a little those of the old weights
    "uncleared",  # after one that clears them as well
    "hasty",  # paused to wait for requests, it does not
    "undying",  # paused to abort requests, it lets them go on
    "cuts",  # logprobs are off where top-k or top-p cut something away
    "lost",  # a response under way ends at the update, as if it were at its length
    "aborts",  # it is aborted there, however it was paused
    "deaf",  # end tokens do not end a response
    "bos",  # conversations and texts get a second BOS
    "text-bos",  # texts do
    "router",  # tokens go to other experts
    "mute",  # it does not tell of routing
)
"""And NAME=VALUE: with this switch it computes something else."""
State = tuple["NDArray[Any]", "NDArray[Any]"]
EXPERTS = 4
LENGTH = 512


class FakeServing(FakeEngine):
    """ends: tokens that end a response. chat: what it makes of a conversation. untaken: NAME=VALUE of switches that it ignores.

    stock: of which distribution its logprobs would be if nobody said.
    """

    pause_modes: tuple[str, ...] = ("keep", "wait", "abort")

    def __init__(
        self,
        tensors: Mapping[str, NDArray[Any]],
        faults: Collection[str] = (),
        *,
        switches: Switches | None = None,
        length: int = 0,
        dtype: str = "float32",
        ends: Collection[int] = (),
        chat: Sequence[int] = (),
        untaken: Collection[str] = (),
        stock: str = "raw",
    ) -> None:
        self._flaws, self._asked = frozenset(faults), switches or Switches()
        self._length, self._ends, self._chat = length or LENGTH, frozenset(ends), tuple(chat)
        taken = {name: value for name, value in self._asked.to_dict().items() if f"{name}={value}" not in untaken}
        self._set = {"compilation": "eager", "async_scheduling": False, "logprobs": "raw", **taken}
        self._kept: dict[tuple[str, tuple[int, ...]], State] = {}
        self._requests, self._version = 0, "0"
        super().__init__(tensors)
        self.info = replace(self.info, dtype=dtype, facts={**self.info.facts, "stock_logprobs": stock})

    @property
    def ignored_switches(self) -> Mapping[str, str]:
        """Switches that it did not take."""
        return ignored_switches(self._asked, self._set, "fake")

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling], *, salt: str = ""
    ) -> list[Generation]:
        """Answer prompts; one that was asked before comes from the prefix cache."""
        asked = sampling_per_prompt(sampling, len(prompts))
        return [self._answered(prompt, one, salt, len(prompts)) for prompt, one in zip(prompts, asked, strict=True)]

    def _answered(self, prompt: Sequence[int], asked: Sampling, salt: str, together: int) -> Generation:
        key, caches = (salt, tuple(prompt)), "uncached" not in self._flaws and self._set.get("prefix_cache", True)
        cached = len(prompt) - 1 if caches and key in self._kept else 0
        state = self._kept.setdefault(key, self._state()) if caches else self._state()
        room = self._length - len(prompt) - 3 * ("short" in self._flaws)
        most = asked.max_tokens if "overrun" in self._flaws else min(asked.max_tokens, room)
        tokens = self._drawn(state, prompt, replace(asked, max_tokens=most))
        values = self._values(state, (*prompt, *tokens), len(prompt), together, asked, warm=bool(cached))
        stopped = bool(tokens) and tokens[-1] in self._ends and not asked.ignore_eos
        versions = () if "unversioned" in self._flaws else (self._version,) * len(tokens)
        return Generation(tokens, values, "stop" if stopped else "length", versions, cached)

    def _drawn(self, state: State, prompt: Sequence[int], asked: Sampling) -> tuple[int, ...]:
        import numpy as np

        draw = np.random.default_rng(asked.seed or 0)
        found: list[int] = []
        while len(found) < asked.max_tokens and not (found and found[-1] in self._ends and not asked.ignore_eos):
            row = model.logprobs(*state, [(found or list(prompt))[-1]])
            if asked.temperature == 0:
                found.append(int(row[0].argmax()))
            else:
                penalties = asked.presence_penalty, asked.frequency_penalty
                row = penalize(np.tile(row, (len(found) + 1, 1)), [*found, 0], *penalties)[-1:]
                weights = np.exp(processed(row, asked.temperature, asked.top_p, asked.top_k)[0])
                found.append(int(draw.choice(len(weights), p=weights / weights.sum())))
        return tuple(found)

    def _values(
        self, state: State, tokens: Sequence[int], start: int, together: int, asked: Sampling, *, warm: bool = False
    ) -> tuple[float, ...]:
        """Return logprobs of the tokens from `start` on, by decoding, with all that is wrong with it."""
        rows = model.logprobs(*state, tokens[start - 1 : -1])
        if self._set["logprobs"] == "processed" and asked.temperature:
            heat = asked.temperature ** (2 if "half" in self._flaws else 1)
            rows = penalize(rows, tokens[start:], asked.presence_penalty, asked.frequency_penalty)
            rows = processed(rows, heat, asked.top_p, asked.top_k)
        values = [float(rows[place, token]) for place, token in enumerate(tokens[start:])]
        if "shifted" in self._flaws:
            values = [values[0], *values[:-1]]
        off = 0.1 * ("batch" in self._flaws and together > 1) + self._off(warm=warm)
        off += 0.3 * ("cuts" in self._flaws and (asked.top_p < 1 or asked.top_k > 0))
        return tuple(value - off - 0.02 * place * ("drift" in self._flaws) for place, value in enumerate(values))

    def _off(self, *, warm: bool = False) -> float:
        """Return by how much the set-up or the hour moves all logprobs."""
        self._requests += 1
        named = {f"{name}={value}" for name, value in self._set.items()} | ({"cached"} if warm else set())
        wide = 0.004 * bool(self._set.get("head_fp32"))
        return wide + 0.02 * len(self._flaws & named) + 0.01 * self._requests * ("unsteady" in self._flaws)

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[SequenceScores]:
        """Score by prefill."""
        rough = 0.005 * ("rough" in self._flaws)
        return [
            replace(one, prompt_logprobs=tuple(value - self._off() - rough for value in one.prompt_logprobs))
            for one in super().score(sequences, decode=decode)
        ]

    def score_by_decode(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        """Decode given tokens; logprobs are raw."""
        raw, count = Sampling(0.0), len(sequences)
        return [self._values(self._state(), tokens, prompt, count, raw) for tokens in sequences]

    def _state(self) -> State:
        rows, head = super()._state()
        return (rows[::-1], head) if "weights" in self._flaws else (rows, head)

    def force_decode(self, prompt: Sequence[int], tokens: Sequence[int]) -> Generation:
        """Take the tokens up to the first end token."""
        kept = [token for token in tokens if token in self._ends]
        deaf = max(self._ends, default=-1) if "deaf" in self._flaws else -1
        if kept and kept[0] != deaf:
            tokens = tokens[: list(tokens).index(kept[0]) + 1]
            return Generation(tuple(tokens), (-1.0,) * len(tokens), "stop")
        return Generation(tuple(tokens), (-1.0,) * len(tokens), "length")

    def tokenize(self, text: str, messages: Sequence[Mapping[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of a text and of a conversation."""
        twice = (self._chat[0], *self._chat)
        return (
            twice if self._flaws & {"bos", "text-bos"} else self._chat,
            twice if "bos" in self._flaws else self._chat,
        )

    def score_full_vocab(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write whole distributions."""
        import numpy as np
        from safetensors.numpy import save_file

        path = folder / "full-engine.safetensors"
        tables = (model.logprobs(*self._state(), tokens[:-1]) for tokens in sequences)
        save_file({str(place): np.ascontiguousarray(table, np.float32) for place, table in enumerate(tables)}, path)
        return path

    def update_weights(
        self, parcels: Sequence[Bucket], transport: str, *, timeout: float | None = None
    ) -> UpdateResult:
        """Take an update, and forget what was cached."""
        if "refuses" in self._flaws:
            return UpdateResult(False, "ValueError: not now", 0.0)
        if "stale" not in self._flaws:
            self._kept.clear()
        return super().update_weights(parcels, transport, timeout=timeout)

    def reset_prefix_cache(self) -> None:
        """Forget what was cached."""
        super().reset_prefix_cache()
        self._kept.clear()

    def update_inflight(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        parcels: Sequence[Bucket],
        *,
        transport: str,
        pause: str,
        clear_cache: bool,
        after: int,
        version: str,
    ) -> InflightResult:
        """Answer up to the update with the old weights, and from there on with the new ones, or abort; wait: all with the old."""
        asked = sampling_per_prompt(sampling, len(prompts))
        waits = pause == "wait" and "hasty" not in self._flaws
        before = [
            self._answered(p, one if waits else replace(one, max_tokens=after), "", 1)
            for p, one in zip(prompts, asked, strict=True)
        ]
        old = self._version
        answer = self.update_weights(parcels, transport)
        self._version, self._kept = (version, {}) if answer.ok else (old, self._kept)
        if "grumbles" in self._flaws:
            answer = replace(answer, ok=False, message="the cache was not flushed")
        if waits:
            return InflightResult(answer, tuple(before))
        if (pause == "abort" and "undying" not in self._flaws) or "aborts" in self._flaws:
            return InflightResult(
                answer, tuple(replace(one, finish_reason="abort", weight_versions=()) for one in before)
            )
        if "lost" in self._flaws:
            return InflightResult(answer, tuple(before))
        found = []
        for prompt, one, first in zip(prompts, asked, before, strict=True):
            rest = self._answered((*prompt, *first.tokens), replace(one, max_tokens=one.max_tokens - after), "", 1)
            mixed = "uncleared" in self._flaws or ("mixed" in self._flaws and not clear_cache)
            late = tuple(value - 0.01 * mixed for value in rest.logprobs)
            versions = (*first.weight_versions, *rest.weight_versions)
            if "stamped" in self._flaws:
                versions = (self._version,) * len(versions)
            found.append(Generation((*first.tokens, *rest.tokens), (*first.logprobs, *late), "length", versions))
        return InflightResult(answer, tuple(found))

    def expert_routing(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Send every token to two of four experts."""
        if "mute" in self._flaws:
            return []
        step = 2 if "router" in self._flaws else 1
        return [
            [[(token + layer) % EXPERTS, (token + layer + step) % EXPERTS] for token in tokens] for layer in range(2)
        ]

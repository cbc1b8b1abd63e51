"""Probes whether the engine keeps to max_model_len and uses all of it (NeMo-RL's diagnostics 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ckptcheck.linter.report import Section
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.process.errors import RemoteError

LIMIT = 48
"""The max_model_len that the probe starts the engine with, in tokens."""


@dataclass(frozen=True)
class LengthResult:
    """The lengths that the engine accepted."""

    limit: int
    """max_model_len, in tokens."""
    prompt: int
    """Tokens of the prompt."""
    response: int
    """Tokens of the response."""
    finish: str
    """The engine's finish reason."""
    refusal: str = ""
    """The engine's message where it refused a request beyond the limit; "" where it accepted it and cut the response."""

    @property
    def section(self) -> Section:
        """One line with the lengths."""
        beyond = f"a request that goes beyond is refused: {self.refusal}" if self.refusal else "a response is cut there"
        return Section(
            f"max_model_len {self.limit}",
            lines=(f"prompt {self.prompt} + response {self.response} = {self.prompt + self.response}; {beyond}",),
        )


def probe(environment: ProbeEnvironment) -> ProbeRun:
    """Request more tokens than fit; if the engine refuses that, request exactly as many as fit."""
    engine = yield replace(environment.setup, length=LIMIT)
    prompt = tuple(environment.prompts[0] * LIMIT)[: LIMIT - 8]
    sampling, refusal = Sampling(0.0, max_tokens=4 * LIMIT, ignore_eos=True), ""
    try:
        generation = engine.generate([prompt], sampling)[0]
    except RemoteError as error:
        refusal = error.remote_message.strip().partition("\n")[0].partition(". ")[0] or error.exception_type
        generation = engine.generate([prompt], replace(sampling, max_tokens=LIMIT - len(prompt)))[0]
    return LengthResult(LIMIT, len(prompt), len(generation.tokens), generation.finish_reason, refusal)

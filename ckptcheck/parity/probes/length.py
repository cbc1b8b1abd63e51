"""Does the engine keep to max_model_len, and use all of it? NeMo-RL's diagnostics 1."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ckptcheck.engines.sampling import Sampling
from ckptcheck.host.trouble import VerbError
from ckptcheck.parity.probes.bench import Bench, Probe
from ckptcheck.report import Section

LIMIT = 48


@dataclass(frozen=True)
class LengthSeen:
    """prompt, response: tokens. limit: max_model_len. finish: the engine's word for why it ended.

    refused: what it said to a request that goes beyond the limit, "" where it took one and cut the response.
    """

    limit: int
    prompt: int
    response: int
    finish: str
    refused: str = ""

    @property
    def section(self) -> Section:
        """What came of it."""
        beyond = f"a request that goes beyond is refused: {self.refused}" if self.refused else "a response is cut there"
        return Section(
            f"max_model_len {self.limit}",
            lines=(f"prompt {self.prompt} + response {self.response} = {self.prompt + self.response}; {beyond}",),
        )


def probe(bench: Bench) -> Probe:
    """Ask for more than there is room for; where that is refused, for exactly what there is room for."""
    engine = yield replace(bench.setup, length=LIMIT)
    prompt = tuple(bench.prompts[0] * LIMIT)[: LIMIT - 8]
    asked, refused = Sampling(0.0, max_tokens=4 * LIMIT, ignore_eos=True), ""
    try:
        made = engine.generate([prompt], asked)[0]
    except VerbError as error:
        refused = error.said.strip().partition("\n")[0].partition(". ")[0] or error.kind
        made = engine.generate([prompt], replace(asked, max_tokens=LIMIT - len(prompt)))[0]
    return LengthSeen(LIMIT, len(prompt), len(made.tokens), made.finish, refused)

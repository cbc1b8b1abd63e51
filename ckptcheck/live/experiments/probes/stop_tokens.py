"""Probes whether every stop token of the checkpoint ends a response."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun


@dataclass(frozen=True)
class StopTokensResult:
    """What the engine did after each stop token."""

    stop_tokens: dict[int, str]
    """Id of a stop token → the file that names it."""
    ignored_tokens: tuple[int, ...]
    """Stop tokens after which the engine continued."""
    finish: dict[int, str]
    """Id of a stop token → the engine's finish reason."""


def probe(environment: ProbeEnvironment) -> ProbeRun:
    """Force each stop token within a response that has more tokens to come."""
    if not environment.stop_tokens:
        raise Skip("no file of the checkpoint says which token ends a response")
    engine = yield environment.setup.with_switches(text=True)
    ignored_tokens, finish = [], {}
    ordinary = next(
        token for token in range(8, 8 + len(environment.stop_tokens) + 1) if token not in environment.stop_tokens
    )
    for token in environment.stop_tokens:
        generation = engine.force_decode(environment.prompts[0], [ordinary, token, ordinary, ordinary])
        finish[token] = generation.finish_reason
        if len(generation.tokens) > 2:
            ignored_tokens.append(token)
    return StopTokensResult(dict(environment.stop_tokens), tuple(ignored_tokens), finish)

"""Asks servers that somebody else started what they serve, and has the same said by what we know.

Nothing is written unless the caller allows it. A server that refuses, hangs or answers nonsense is evidence, not trouble;
only an address where nobody listens is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcheck.engines.base import Scores
from ckptcheck.refit.attached import Attached, Seen, Written
from ckptcheck.servers.base import About, Answered, Server
from ckptcheck.servers.trouble import Gone, ServerTrouble
from ckptcheck.trainers.base import TrainerInfo

ALIVE = 60.0
"""Seconds in which a server generates one token, also between the requests of others."""
DECODE = 8
"""Tokens that are decoded greedily."""
MARK = "ckptcheck"
"""The weight version that an update of ours is given."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """sequences: token ids to score. seconds: for any one request. weights, logprobs: which checks to make."""

    sequences: tuple[tuple[int, ...], ...]
    seconds: float = 900.0
    weights: bool = True
    logprobs: bool = True


@dataclass(frozen=True)
class Truth:
    """What a trainer makes of the checkpoint: the logprobs of the sequences, each token after the first."""

    info: TrainerInfo
    scores: tuple[tuple[float, ...], ...]


def look(server: Server, asked: Asked, say: Say = lambda _: None) -> Seen:
    """Ask one server for all that it tells without being written to. Raises Gone where nobody listens (any more)."""
    say(f"asking {server.url}")
    seen = Seen(server.url, About(server.engine))
    try:
        server.alive(seconds=min(asked.seconds, ALIVE))
    except Gone:
        raise
    except ServerTrouble as trouble:
        if not _refuses(trouble):
            return replace(seen, about=_about(server, min(asked.seconds, ALIVE)), dead=trouble.message)
        seen = replace(seen, refused={"logprobs": _why(trouble)})
    seen = replace(seen, about=_about(server, asked.seconds))
    if asked.weights:
        seen = _with_checksums(seen, server, asked.seconds)
    if asked.logprobs and "logprobs" not in seen.refused:
        seen = _with_scores(seen, server, asked)
    return seen


def write(server: Server, seen: Seen, checkpoint: Path, asked: Asked, say: Say = lambda _: None) -> Seen:
    """Overwrite the server's weights, have it load the checkpoint from its own disk, and look again."""
    if seen.dead or not seen.checksums:
        return replace(seen, refused={**seen.refused, "update": seen.dead or seen.refused.get("checksums", "")})
    say(f"overwriting the weights of {server.url}: it serves noise until it has loaded {checkpoint}")
    try:
        server.scramble(seconds=asked.seconds)
    except ServerTrouble as trouble:
        return replace(seen, refused={**seen.refused, "update": _why(trouble)})
    scrambled: Mapping[str, str] = {}
    try:
        scrambled = server.checksums(seconds=asked.seconds)
        answer = server.update(checkpoint, MARK, seconds=asked.seconds)
        after = look(server, asked)
    except ServerTrouble as trouble:  # its weights are gone: whatever happens to it now has to be said
        return replace(seen, written=Written(Answered(False, _why(trouble)), seen.checksums, scrambled, {}))
    written = Written(answer, seen.checksums, scrambled, after.checksums, MARK, after.about.weights)
    return replace(after, written=written)


def attached(
    target: str,
    servers: Sequence[Seen],
    asked: Asked,
    *,
    reference: Seen | None = None,
    unfit: str = "",
    truth: Truth | None = None,
    untold: str = "",
    broken: Mapping[str, str] | None = None,
) -> Attached:
    """Put together what was seen."""
    return Attached(
        target,
        tuple(servers),
        asked.sequences,
        reference,
        unfit or _unlike(servers, reference),
        truth.info if truth else None,
        truth.scores if truth else (),
        untold,
        broken or {},
    )


def _unlike(servers: Sequence[Seen], reference: Seen | None) -> str:
    """Say why checksums of the reference mean nothing beside those of a server; "" where they do."""
    if reference is None:
        return ""
    ours = reference.about
    for seen in servers:
        theirs = seen.about
        pairs = {
            "version": (theirs.name, ours.name),
            "dtype": (theirs.dtype, ours.dtype),
            "ranks": (str(theirs.ranks or ""), str(ours.ranks or "")),
            "device": (theirs.device, ours.device),
        }
        for what, (there, here) in pairs.items():
            if there and here and there != here and "auto" not in (there, here):
                return f"{seen.url} has another {what} than the reference: {there}, not {here}"
    return ""


def _about(server: Server, seconds: float) -> About:
    try:
        return server.about(seconds=seconds)
    except Gone:
        raise
    except ServerTrouble:
        return About(server.engine)


def _with_checksums(seen: Seen, server: Server, seconds: float) -> Seen:
    try:
        return replace(seen, checksums=server.checksums(seconds=seconds))
    except Gone:
        raise
    except ServerTrouble as trouble:
        return replace(seen, refused={**seen.refused, "checksums": _why(trouble)})


def _with_scores(seen: Seen, server: Server, asked: Asked) -> Seen:
    try:
        scores: list[Scores] = server.score(asked.sequences, decode=DECODE, seconds=asked.seconds)
    except Gone:
        raise
    except ServerTrouble as trouble:
        return replace(seen, refused={**seen.refused, "logprobs": _why(trouble)})
    return replace(seen, scores=tuple(scores))


def _refuses(trouble: ServerTrouble) -> bool:
    """Whether the server said that it will not, rather than showed that it cannot."""
    return 400 <= getattr(trouble, "status", 0) < 500


def _why(trouble: ServerTrouble) -> str:
    return trouble.message + (f" ({trouble.hint})" if trouble.hint else "")

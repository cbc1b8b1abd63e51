"""Asks servers that somebody else started what they serve, and has the same said by what we know.

Nothing is written unless the caller allows it. A server that refuses, hangs, dies or answers nonsense is evidence, not
trouble; only an address where nobody listened from the start is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcheck.refit.attached import Attached, Seen, Written
from ckptcheck.refit.compared import uncompared
from ckptcheck.servers.base import About, Answered, Server
from ckptcheck.servers.trouble import Gone, Refused, ServerTrouble, Silent
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
    """Ask one server for all that it tells without being written to. What it does not tell is in ``refused``, with why."""
    say(f"asking {server.url}")
    seen = Seen(server.url, About(server.engine))
    patience = min(asked.seconds, ALIVE)
    trouble = _trouble(server, patience)
    if trouble is not None and _kills(trouble):
        return replace(seen, about=_about(server, patience), dead=trouble.message)
    if trouble is not None:
        seen = _refused(seen, "logprobs", _why(trouble))
    seen = replace(seen, about=_about(server, asked.seconds))
    wanted = {"checksums": asked.weights, "logprobs": asked.logprobs and trouble is None}
    for what in [name for name, wish in wanted.items() if wish]:
        try:
            if what == "checksums":
                seen = replace(seen, checksums=server.checksums(seconds=asked.seconds))
            else:
                scores = server.score(asked.sequences, decode=DECODE, seconds=asked.seconds)
                seen = replace(seen, scores=tuple(scores))
        except ServerTrouble as refusal:
            seen = _refused(seen, what, _why(refusal))
            if _kills(refusal) and (after := _trouble(server, patience)) is not None and _kills(after):
                return replace(seen, dead=after.message)
    return seen


def write(server: Server, seen: Seen, checkpoint: Path, asked: Asked, say: Say = lambda _: None) -> Iterator[Seen]:
    """Overwrite the server's weights, have it load the checkpoint from its own disk, and look again.

    Yields what has to be said should nothing come after it, so that whoever is interrupted can say it; the last is the outcome.
    """
    if seen.dead or not seen.checksums:
        why = seen.dead or seen.refused.get("checksums") or f"{server.url} gives no checksums"
        yield _refused(seen, "update", why)
        return
    say(f"overwriting the weights of {server.url}: it serves noise until it has loaded {checkpoint}")
    yield _lost(seen, "the update was broken off")
    why = f"{server.url} answers that it overwrote its weights, and all are as they were"
    failed: ServerTrouble | None = None
    try:
        server.scramble(seconds=asked.seconds)
    except ServerTrouble as trouble:
        failed, why = trouble, _why(trouble)
    if failed is not None and _refuses(failed):
        yield _refused(seen, "update", why)
        return
    scrambled: Mapping[str, str] = {}
    unread = ""
    try:
        scrambled = server.checksums(seconds=asked.seconds)
    except ServerTrouble as trouble:  # its weights are gone all the same: it has to load
        unread = _why(trouble)
    if scrambled == seen.checksums:
        yield _refused(seen, "update", why)
        return
    if failed is not None:
        yield _lost(seen, why)
        return
    try:
        answer = server.update(checkpoint, MARK, seconds=asked.seconds)
    except ServerTrouble as trouble:
        yield _lost(seen, _why(trouble))
        return
    after = look(server, asked)
    if answer.ok and (told := after.dead or unread or after.refused.get("checksums", "")):
        answer = Answered(False, told)
    yield replace(after, written=Written(answer, seen.checksums, scrambled, after.checksums, MARK, after.about.weights))


def attached(
    source: str | None,
    servers: Sequence[Seen],
    asked: Asked,
    *,
    reference: Seen | None = None,
    unfit: str = "",
    truth: Truth | None = None,
    untold: str = "",
    broken: Mapping[str, str] | None = None,
    traits: frozenset[str] = frozenset(),
    architecture: str = "",
) -> Attached:
    """Put together what was seen. source: what they should serve, None where they are held against each other alone.

    traits, architecture: of it, see engines/known.toml.
    """
    evidence = Attached(
        source or servers[0].url,
        tuple(servers),
        asked.sequences,
        reference,
        unfit,
        truth.info if truth else None,
        truth.scores if truth else (),
        untold,
        traits=traits,
        architecture=architecture,
    )
    return replace(evidence, broken=broken or uncompared(evidence, source))


def _about(server: Server, seconds: float) -> About:
    try:
        return server.about(seconds=seconds)
    except ServerTrouble:
        return About(server.engine)


def _trouble(server: Server, seconds: float) -> ServerTrouble | None:
    """Return what keeps it from generating a token."""
    try:
        server.alive(seconds=seconds)
    except ServerTrouble as trouble:
        return trouble
    return None


def _refused(seen: Seen, what: str, why: str) -> Seen:
    return replace(seen, refused={**seen.refused, what: why})


def _lost(seen: Seen, why: str) -> Seen:
    """Its weights are gone, or may be: whatever happens to it now has to be said."""
    return replace(seen, written=Written(Answered(False, why), seen.checksums, {}, {}))


def _refuses(trouble: ServerTrouble) -> bool:
    """Whether the server said that it will not, rather than showed that it cannot."""
    return isinstance(trouble, Refused) and 400 <= trouble.status < 500


def _kills(trouble: ServerTrouble) -> bool:
    """Whether a server that lives would not have answered so. An answer in a form that is not known is an answer."""
    return isinstance(trouble, Silent | Gone) or (isinstance(trouble, Refused) and trouble.status >= 500)


def _why(trouble: ServerTrouble) -> str:
    return trouble.message + (f" ({trouble.hint})" if trouble.hint else "")

"""Asks running servers for what the rules judge: checksums, logprobs, an update, the identity of their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import EvidenceError
from ckptcheck.live.refit.running_servers.trace import ServerState, UpdateTrial
from ckptcheck.live.refit.weight_identity import identify_engine, list_weight_parts
from ckptcheck.live.runtime.servers.base import Server, ServerInfo, ServerUpdateResult, SummingServer
from ckptcheck.live.runtime.servers.errors import Rejected, RequestTimeout, ServerError, Unreachable
from ckptcheck.live.runtime.trainers.base import Weight

ALIVE = 60.0
"""Seconds within which a server must generate one token, even if it also serves others."""
DECODE = 8
"""Number of tokens to decode greedily."""
VERSION = "ckptcheck"
"""The weight version that our own update sets."""

Log = Callable[[str], None]
EXTENSION = "ckptcheck_worker."
"""How the name of our extension begins."""


@dataclass(frozen=True)
class ProbeSettings:
    """What to ask servers."""

    sequences: tuple[tuple[int, ...], ...]
    """Token ids to score."""
    seconds: float = 900.0
    """Time limit of one request."""
    weights: bool = True
    """Whether to ask for checksums."""
    logprobs: bool = True
    """Whether to ask for logprobs."""


def probe_server(server: Server, settings: ProbeSettings, log: Log = lambda _: None) -> ServerState:
    """Ask one server for everything that does not change it. ``refusals`` says what it does not give, and why."""
    log(f"asking {server.url}")
    state = ServerState(server.url, ServerInfo(server.engine))
    alive_limit = min(settings.seconds, ALIVE)
    error = _check_alive(server, alive_limit)
    if error is not None and _is_fatal(error):
        return replace(state, info=_read_info(server, alive_limit), dead_reason=error.message)
    if error is not None:
        state = _add_refusal(state, "logprobs", _format_error(error))
    state = replace(state, info=_read_info(server, settings.seconds))
    questions = {"checksums": settings.weights, "logprobs": settings.logprobs and error is None}
    for question in [name for name, is_asked in questions.items() if is_asked]:
        try:
            if question == "checksums":
                state = replace(state, checksums=server.checksums(seconds=settings.seconds))
            else:
                scores = server.score(settings.sequences, decode=DECODE, seconds=settings.seconds)
                state = replace(state, scores=tuple(scores))
        except ServerError as refusal:
            state = _add_refusal(state, question, _format_error(refusal))
            if _is_fatal(refusal) and (error := _check_alive(server, alive_limit)) is not None and _is_fatal(error):
                return replace(state, dead_reason=error.message)
    return state


def overwrite_and_update(
    server: Server, state: ServerState, checkpoint: Path, settings: ProbeSettings, log: Log = lambda _: None
) -> Iterator[ServerState]:
    """Overwrite the server's weights, have it load the checkpoint from its own disk, and probe it again.

    Yields the state for the report after each stage, in case an interruption follows; the last one is the outcome.
    """
    if state.dead_reason or not state.checksums:
        reason = state.dead_reason or state.refusals.get("checksums") or f"{server.url} gives no checksums"
        yield _add_refusal(state, "update", reason)
        return
    log(f"overwriting the weights of {server.url}: it serves noise until it has loaded {checkpoint}")
    yield _lose_weights(state, "the update was interrupted")
    reason = f"{server.url} answers that it overwrote its weights, but all are unchanged"
    scramble_error: ServerError | None = None
    try:
        server.scramble(seconds=settings.seconds)
    except ServerError as error:
        scramble_error, reason = error, _format_error(error)
    if scramble_error is not None and _is_refusal(scramble_error):
        yield _add_refusal(state, "update", reason)
        return
    scrambled: Mapping[str, str] = {}
    unread_reason = ""
    try:
        scrambled = server.checksums(seconds=settings.seconds)
    # the weights are gone even if the checksums cannot be read, so the server must load the checkpoint
    except ServerError as error:
        unread_reason = _format_error(error)
    if scrambled == state.checksums:
        yield _add_refusal(state, "update", reason)
        return
    if scramble_error is not None:
        yield _lose_weights(state, reason)
        return
    try:
        result = server.update(checkpoint, VERSION, seconds=settings.seconds)
    except ServerError as error:
        yield _lose_weights(state, _format_error(error))
        return
    after = probe_server(server, settings)
    if result.ok and (failure := after.dead_reason or unread_reason or after.refusals.get("checksums", "")):
        result = ServerUpdateResult(False, failure)
    update = UpdateTrial(result, state.checksums, scrambled, after.checksums, VERSION, after.info.weight_version)
    yield replace(after, update_trial=update)


def _read_info(server: Server, seconds: float) -> ServerInfo:
    try:
        return server.info(seconds=seconds)
    except ServerError:
        return ServerInfo(server.engine)


def _check_alive(server: Server, seconds: float) -> ServerError | None:
    """Return the error that keeps a server from generating a token, None if it does."""
    try:
        server.check_alive(seconds=seconds)
    except ServerError as error:
        return error
    return None


def _add_refusal(state: ServerState, question: str, reason: str) -> ServerState:
    return replace(state, refusals={**state.refusals, question: reason})


def _lose_weights(state: ServerState, reason: str) -> ServerState:
    """Return the state of a server whose weights are gone, or may be."""
    return replace(state, update_trial=UpdateTrial(ServerUpdateResult(False, reason), state.checksums, {}, {}))


def _is_refusal(error: ServerError) -> bool:
    """Whether the server refused the request (4xx), rather than failed at it."""
    return isinstance(error, Rejected) and 400 <= error.status < 500


def _is_fatal(error: ServerError) -> bool:
    """Whether the error means that the server is dead. A response in an unknown form comes from a living server."""
    return isinstance(error, RequestTimeout | Unreachable) or (isinstance(error, Rejected) and error.status >= 500)


def _format_error(error: ServerError) -> str:
    return error.message + (f" ({error.hint})" if error.hint else "")


def has_extension(state: ServerState) -> bool:
    """Whether a server that lives says that its workers have the extension."""
    return not state.dead_reason and state.info.extension.startswith(EXTENSION)


def identify_server(server: Server, state: ServerState, source: Checkpoint, *, seconds: float) -> str:
    """Return the identity of what a server holds under the names of a checkpoint.

    Raises EvidenceError if it stores weights in another form than the checkpoint, or does not answer.
    """
    layout = state.info.layout
    if layout.pp > 1 or layout.copies > 1:
        raise EvidenceError("its weights are spread over pipeline stages or copies")
    if not isinstance(server, SummingServer):
        raise EvidenceError("its workers cannot be asked for sums")
    weights = [Weight(name, tensor.shape, tensor.dtype) for name, tensor in source.tensors.items()]
    if source.components.is_tied:
        weights = [weight for weight in weights if weight.name != source.components.lm_head]
    try:
        held = server.describe_tensors(seconds=seconds)
        ranks = 1 + max((rank for rank, _ in held), default=0)
        parts = list_weight_parts(held, weights, source, ranks)
        sums = server.sum_parts(parts, ranks, seconds=seconds)
    except ServerError as error:
        raise EvidenceError(error.message, error.hint) from error
    return identify_engine(state.url, parts, sums, weights, source).identity

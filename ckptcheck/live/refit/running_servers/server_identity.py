"""Asks a running server for the identity of its weights, where its workers have ckptcheck's extension.

vLLM takes it with ``--worker-extension-cls ckptcheck_worker.vllm_worker.Extension`` in dev mode. Nothing is written, and no tensor
leaves the server: each rank sums the parts of weights that it holds.
"""

from __future__ import annotations

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import EvidenceError
from ckptcheck.live.refit.running_servers.trace import ServerState
from ckptcheck.live.refit.weight_identity import identify_engine, list_weight_parts
from ckptcheck.live.runtime.servers.base import Server, SummingServer
from ckptcheck.live.runtime.servers.errors import ServerError
from ckptcheck.live.runtime.trainers.base import Weight

EXTENSION = "ckptcheck_worker."
"""How the name of our extension begins."""


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

"""Compares servers that somebody else started with a checkpoint and with each other (``ckptcheck attach``)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.live.refit.trial_state import Timeouts
from ckptcheck.live.runtime.engines.known_issues import traits_of_weights
from ckptcheck.runners.runner import run_in_threads
from ckptcheck.text.file_io import real_path
from ckptcheck.text.formatting import join_truncated

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.refit.running_servers.probe import ProbeSettings
    from ckptcheck.live.refit.running_servers.trace import ServerEvidence, ServerState
    from ckptcheck.live.runtime.process.exchange import TensorExchange
    from ckptcheck.live.runtime.servers.base import Server
    from ckptcheck.live.runtime.servers.client import ServerClient
    from ckptcheck.live.runtime.trainers.base import Trainer, TrainerInfo

API_KEY_VARIABLE = "CKPTCHECK_API_KEY"
"""Environment variable with the API key of the servers. An option would show in the list of processes."""
MOST_ASKED = 64
"""Servers to ask at a time. Each answer is a wait for the network and the server."""
SMALLEST_VOCABULARY = 512
"""Token ids below this exist in every model; used where no checkpoint says how many rows the embedding has."""

StartTrainer = Callable[["Checkpoint", "TensorExchange", str], "Trainer"]
"""Takes a checkpoint, an exchange and the dtype to compute in; starts a trainer."""


@dataclass(frozen=True)
class AttachOptions:
    """Which servers to ask, and what may be done with them."""

    addresses: Sequence[str]
    """URLs of the servers."""
    start_trainer: StartTrainer
    """Starts the trainer whose logprobs the servers' are compared with."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """score: for each request, also an update. start: for the engine and the trainer that ckptcheck starts."""
    allow_write: bool = False
    """Overwrite the servers' weights and have them load the checkpoint."""
    allow_remote: bool = False
    """Accept servers on other machines."""
    check_weights: bool = True
    """Compare checksums of the weights with those of an engine that is started here."""
    check_logprobs: bool = True
    """Compare logprobs with the trainer's and among the servers."""
    engine_python: Path | None = None
    """A Python that has the engine; None: the one that ckptcheck installed."""

    def seconds(self, kind: str, source: Checkpoint | None) -> float:
        """Return the time limit for a phase. kind: start, score, sync, as of a trial."""
        nbytes = sum(tensor.nbytes for tensor in source.tensors.values()) if source is not None else 0
        return self.timeouts.seconds(kind, nbytes)


def attach_to_servers(source: Checkpoint | None, options: AttachOptions, log: Callable[[str], None]) -> ServerEvidence:
    """Probe the servers, and start the engine and the trainer that they are compared with.

    After an interruption the evidence holds what was measured before it, and says what was not compared. Raises CkptcheckError
    if too few servers are left to compare because no program listens at an address, and for options that contradict each other.
    """
    from ckptcheck.live.refit.running_servers import probe
    from ckptcheck.live.refit.running_servers.comparability import find_uncompared
    from ckptcheck.live.refit.running_servers.trace import ServerEvidence
    from ckptcheck.live.refit.scoring_inputs import scoring_sequences
    from ckptcheck.live.runtime.servers.client import ServerClient
    from ckptcheck.live.runtime.servers.dedupe import refuse_same_instance, refuse_same_place

    if source is None and len(options.addresses) == 1:
        raise CkptcheckError(
            "there is nothing to compare one server with",
            "name the checkpoint it should serve, or a second server",
        )
    if options.allow_write and source is None:
        raise CkptcheckError("--allow-write needs the checkpoint that the servers are to load")
    if options.allow_write and not options.check_weights:
        raise CkptcheckError(
            "--allow-write needs the servers' checksums, which show that everything was loaded",
            "leave out --no-check-weight-update-equal",
        )
    folder = real_path(source.source.local) if source is not None and source.source.local is not None else None
    if source is not None and folder is None:
        raise CkptcheckError(f"{source.target} is not on this disk, and an engine loads from there")
    request_timeout = options.seconds("score", source)
    probe_settings = probe.ProbeSettings(
        scoring_sequences(_vocabulary_size(source)), request_timeout, options.check_weights, options.check_logprobs
    )
    clients = [
        ServerClient(url, remote=options.allow_remote, key=os.environ.get(API_KEY_VARIABLE))
        for url in options.addresses
    ]
    refuse_same_place(clients)
    servers, lost = _detect_engines(clients, min(request_timeout, probe.ALIVE), may_lack=source is not None)
    states: list[ServerState] = []
    target = str(source.target) if source is not None else None
    evidence = ServerEvidence(
        target or clients[0].url,
        (),
        probe_settings.sequences,
        traits=_traits(source) if source is not None else frozenset(),
        architecture=_architecture(source) if source is not None else "",
    )
    try:
        ask = partial(probe.probe_server, settings=probe_settings, log=log)
        for _, state in run_in_threads(ask, servers, min(MOST_ASKED, len(servers))):
            states.append(state)
        states += lost
        refuse_same_instance({server.url: server.info.instance for server in states})
        if options.allow_write and source is not None and folder is not None:
            _refuse_other_architecture(source, states)
            for index, server in enumerate(servers):
                for state in probe.overwrite_and_update(server, states[index], folder, probe_settings, log):
                    states[index] = state
        if options.check_weights and source is not None:
            evidence = replace(evidence, source_identity=_ask_for_identities(source, servers, states, options, log))
        if options.check_weights and folder is not None:
            reference, reason = _probe_reference(folder, states, probe_settings, options, log)
            evidence = replace(evidence, reference=reference, reference_skipped=reason)
        if options.check_logprobs and source is not None:
            trainer, scores, reason = _score_with_trainer(source, states, probe_settings, options, log)
            evidence = replace(evidence, trainer=trainer, trainer_scores=scores, trainer_skipped=reason)
    except KeyboardInterrupt as error:
        if not states:
            raise
        interrupted = {"the servers": str(error) or "interrupted"}
        return replace(evidence, servers=tuple(states), not_compared=interrupted)
    evidence = replace(evidence, servers=tuple(states))
    return replace(evidence, not_compared=find_uncompared(evidence, target))


def _ask_for_identities(
    source: Checkpoint,
    servers: Sequence[Server],
    states: list[ServerState],
    options: AttachOptions,
    log: Callable[[str], None],
) -> str:
    """Ask the servers whose workers have our extension for the identity of their weights, and note it in their states.

    Returns the identity of the checkpoint; "" if no server has the extension.
    """
    from ckptcheck.compare.identity import identify_checkpoint
    from ckptcheck.live.refit.running_servers.probe import has_extension, identify_server

    extended = [index for index in range(len(servers)) if has_extension(states[index])]
    for index in extended:
        log(f"asking {servers[index].url} for the identity of its weights")
        try:
            named = identify_server(servers[index], states[index], source, seconds=options.seconds("score", source))
            states[index] = replace(states[index], identity=named)
        except EvidenceError as error:
            states[index] = replace(states[index], identity_gap=error.message)
    source_identity = identify_checkpoint(source).identity if extended else ""
    for index in extended:
        if states[index].identity not in ("", source_identity):
            gap = "it holds other weights than the checkpoint, or stores them in another form: the checksums say which"
            states[index] = replace(states[index], identity_gap=gap)
    return source_identity


def _detect_engines(
    clients: Sequence[ServerClient], seconds: float, *, may_lack: bool
) -> tuple[list[Server], list[ServerState]]:
    """Ask every address at once which engine is there; return the servers, and the states of those that do not answer.

    may_lack: there is something to compare a single server with. Raises the error of an address that does not answer where it
    leaves nothing to compare, and of one where another program answers.
    """
    from ckptcheck.live.refit.running_servers.trace import ServerState
    from ckptcheck.live.runtime.servers.base import ServerInfo
    from ckptcheck.live.runtime.servers.detect_engine import detect_engine
    from ckptcheck.live.runtime.servers.errors import RequestTimeout, Unreachable

    def detect(client: ServerClient) -> Server | RequestTimeout | Unreachable:
        try:
            return detect_engine(client, seconds=seconds)
        except (RequestTimeout, Unreachable) as error:
            return error

    found: list[Server] = []
    lost: list[ServerState] = []
    errors: list[CkptcheckError] = []
    for client, answer in run_in_threads(detect, clients, min(MOST_ASKED, len(clients))):
        if isinstance(answer, (RequestTimeout, Unreachable)):
            errors.append(answer)
            lost.append(ServerState(client.url, ServerInfo(""), dead_reason=answer.message))
        else:
            found.append(answer)
    if errors and len(found) < (1 if may_lack else 2):
        raise errors[0]
    return found, lost


def _traits(source: Checkpoint) -> frozenset[str]:
    """Return the traits of the expected weights that decide whether a known engine bug shows."""
    weights = traits_of_weights((name, tensor.dtype) for name, tensor in source.tensors.items())
    return weights | {"tied"} if source.components.is_tied else weights


def _architecture(source: Checkpoint) -> str:
    return (source.config.architecture if source.config is not None else None) or ""


def _vocabulary_size(source: Checkpoint | None) -> int:
    if source is None:
        return SMALLEST_VOCABULARY
    embedding = source.components.embedding
    if embedding is None:
        raise CkptcheckError(f"{source.target} has no token embedding that could be found")
    # SGLang reports id 0 for the last one (logprob_result_processor.py)
    return source.tensors[embedding].shape[0] - 1


def _refuse_other_architecture(source: Checkpoint, states: Sequence[ServerState]) -> None:
    """Raise CkptcheckError if a server has another architecture than the checkpoint: loading it may kill the server."""
    ours = _architecture(source)
    for server in states:
        theirs = server.info.architecture
        if ours and theirs and ours != theirs:
            raise CkptcheckError(f"{server.url} serves a {theirs} and {source.target} is a {ours}: nothing was written")


def _probe_reference(
    folder: Path,
    states: Sequence[ServerState],
    probe_settings: ProbeSettings,
    options: AttachOptions,
    log: Callable[[str], None],
) -> tuple[ServerState | None, str]:
    """Start the first server's engine with the checkpoint in the same layout; return its state, or why there is none."""
    from ckptcheck.live.refit.running_servers import probe
    from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
    from ckptcheck.live.runtime.servers.reference import ReferenceServer

    candidates = sorted(
        (server for server in states if server.checksums), key=lambda server: bool(server.info.layout.other_settings)
    )
    template = next(iter(candidates), None)
    if template is None:
        reasons = (
            reason for server in states for reason in (server.dead_reason, server.refusals.get("checksums")) if reason
        )
        return None, next(reasons, "no server gave checksums of its weights")
    info, layout = template.info, template.info.layout
    if layout.other_settings:
        return (
            None,
            f"{template.url} is set to {join_truncated(layout.other_settings)}, which moves weights, "
            "and the engine started here is not",
        )
    if layout.ranks > (os.cpu_count() or 1):
        return (
            None,
            f"{template.url} has {layout.ranks:,} ranks, and this machine has {os.cpu_count() or 1} CPUs to start as many",
        )
    device = info.device or "cpu"
    scratch = Path(tempfile.mkdtemp(prefix="ckptcheck-reference-"))
    log(f"starting {info.engine} with {folder}")
    try:
        with ReferenceServer(
            info.engine, folder, dtype=info.dtype or "auto", layout=layout, device=device,
            python=options.engine_python, scratch=(scratch,), timeout=options.timeouts.seconds("start", 0),
        ) as reference:  # fmt: skip
            return probe.probe_server(reference.server, probe_settings, log), ""
    except (WorkerDied, RemoteError, CkptcheckError) as error:
        return None, f"no {info.engine} could be started with it to compare: {error.message}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _score_with_trainer(
    source: Checkpoint,
    states: Sequence[ServerState],
    probe_settings: ProbeSettings,
    options: AttachOptions,
    log: Callable[[str], None],
) -> tuple[TrainerInfo | None, tuple[tuple[float, ...], ...], str]:
    """Have a trainer score the sequences; return the trainer and its logprobs, or why there are none."""
    from ckptcheck.live.runtime.process.deadlines import time_budget
    from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied
    from ckptcheck.live.runtime.process.exchange import TensorExchange

    if not any(server.scores for server in states):
        reasons = (
            reason for server in states for reason in (server.dead_reason, server.refusals.get("logprobs")) if reason
        )
        return None, (), next(reasons, "no server gave logprobs")
    log(f"scoring {source.target} in a trainer")
    dtype = next((server.info.dtype for server in states if server.info.dtype in ("float32", "bfloat16")), "bfloat16")
    try:
        with TensorExchange() as exchange, time_budget(options.seconds("start", source)):
            trainer = options.start_trainer(source, exchange, dtype)
            try:
                return trainer.info, tuple(map(tuple, trainer.score(probe_settings.sequences))), ""
            finally:
                trainer.close()
    except (WorkerDied, RemoteError, CkptcheckError) as error:
        return None, (), f"no trainer scored it: {error.message}"

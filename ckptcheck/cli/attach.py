"""``ckptcheck refit --attach``: servers that somebody else started, held against a checkpoint and against each other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.engines.known import traits_of
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import few
from ckptcheck.refit.timeouts import Timeouts

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.host.exchange import Exchange
    from ckptcheck.refit.attach import Asked, Truth
    from ckptcheck.refit.attached import Attached, Seen
    from ckptcheck.trainers.base import Trainer

KEY = "CKPTCHECK_API_KEY"
"""Variable with the key of the servers: an argument would show in the list of processes."""
ANY = 512
"""Rows of the embedding that every model has, for servers of which no checkpoint is known."""

StartTrainer = Callable[["Checkpoint", "Exchange", str], "Trainer"]
"""Starts a trainer with a checkpoint and the dtype it computes in."""


@dataclass(frozen=True)
class Wanted:
    """What the user asked for. write: servers may be written to; remote: they may be on other machines.

    python: with the engine, for the reference. trainer: starts what gives the logprobs. timeouts: score for any one request, an
    update among them; start for what is started here.
    """

    addresses: Sequence[str]
    trainer: StartTrainer
    timeouts: Timeouts = field(default_factory=Timeouts)
    write: bool = False
    remote: bool = False
    weights: bool = True
    logprobs: bool = True
    python: Path | None = None

    def seconds(self, kind: str, source: Checkpoint | None) -> float:
        """Return how long something may take. kind: start, score, sync, as of a trial."""
        nbytes = sum(tensor.nbytes for tensor in source.tensors.values()) if source is not None else 0
        return self.timeouts.seconds(kind, nbytes)


def attach(source: Checkpoint | None, wanted: Wanted, say: Callable[[str], None]) -> Attached:
    """Ask the servers, and what they are held against. What was seen before an interruption is kept, with what it broke off.

    Raises CkptcheckError where nobody listens at an address, and for what cannot be done.
    """
    from ckptcheck.refit import attach as attaching
    from ckptcheck.refit import sequences
    from ckptcheck.servers.client import Client
    from ckptcheck.servers.distinct import refuse_same_instance, refuse_same_place
    from ckptcheck.servers.recognize import recognize

    if source is None and len(wanted.addresses) == 1:
        raise CkptcheckError(
            "one server by itself can be held against nothing",
            "name the checkpoint it should serve, or a second server",
        )
    if wanted.write and source is None:
        raise CkptcheckError("--allow-write needs the checkpoint that the servers are to load")
    if wanted.write and not wanted.weights:
        raise CkptcheckError(
            "--allow-write shows by the servers' checksums that everything was loaded",
            "leave out --no-check-weight-update-equal",
        )
    folder = source.source.local.resolve() if source is not None and source.source.local is not None else None
    if source is not None and folder is None:
        raise CkptcheckError(f"{source.target} is not on this disk, and an engine loads from there")
    patience = wanted.seconds("score", source)
    asked = attaching.Asked(sequences.sequences(_rows(source)), patience, wanted.weights, wanted.logprobs)
    clients = [Client(url, remote=wanted.remote, key=os.environ.get(KEY)) for url in wanted.addresses]
    refuse_same_place(clients)
    servers = [recognize(client, seconds=min(patience, attaching.ALIVE)) for client in clients]
    seen: list[Seen] = []
    reference, unfit, truth, untold = None, "", None, ""
    broken: dict[str, str] = {}
    try:
        for server in servers:
            seen.append(attaching.look(server, asked, say))  # noqa: PERF401 - what was seen before Ctrl-C is kept
        refuse_same_instance({server.url: server.about.instance for server in seen})
        if wanted.write and source is not None and folder is not None:
            _same_model(source, seen)
            for place, server in enumerate(servers):
                for known in attaching.write(server, seen[place], folder, asked, say):
                    seen[place] = known
        if wanted.weights and folder is not None:
            reference, unfit = _reference(folder, seen, asked, wanted, say)
        if wanted.logprobs and source is not None:
            truth, untold = _truth(source, seen, asked, wanted, say)
    except KeyboardInterrupt as error:
        if not seen:
            raise
        broken = {"the servers": str(error) or "interrupted"}
    return attaching.attached(
        str(source.target) if source is not None else None,
        seen,
        asked,
        reference=reference,
        unfit=unfit,
        truth=truth,
        untold=untold,
        broken=broken,
        traits=_traits(source) if source is not None else frozenset(),
        architecture=_architecture(source) if source is not None else "",
    )


def _traits(source: Checkpoint) -> frozenset[str]:
    """Say of the weights that servers should have what decides whether a known fault shows."""
    weights = traits_of((name, tensor.dtype) for name, tensor in source.tensors.items())
    return weights | {"tied"} if source.anatomy.tied else weights


def _architecture(source: Checkpoint) -> str:
    return (source.config.architecture if source.config is not None else None) or ""


def _rows(source: Checkpoint | None) -> int:
    if source is None:
        return ANY
    embedding = source.anatomy.embedding
    if embedding is None:
        raise CkptcheckError(f"{source.target} has no token embedding that could be found")
    return source.tensors[embedding].shape[0] - 1  # SGLang reports id 0 for the last one (logprob_result_processor.py)


def _same_model(source: Checkpoint, seen: Sequence[Seen]) -> None:
    """Refuse to write a checkpoint into a server of another architecture: that may kill it."""
    ours = _architecture(source)
    for server in seen:
        theirs = server.about.architecture
        if ours and theirs and ours != theirs:
            raise CkptcheckError(f"{server.url} serves a {theirs} and {source.target} is a {ours}: nothing was written")


def _reference(
    folder: Path, seen: Sequence[Seen], asked: Asked, wanted: Wanted, say: Callable[[str], None]
) -> tuple[Seen | None, str]:
    """Start the engine of the first server with the checkpoint, laid out as that; return what it says, or why there is none."""
    from ckptcheck.host.trouble import HostDied, VerbError
    from ckptcheck.refit import attach as attaching
    from ckptcheck.servers.reference import Reference

    told = sorted((server for server in seen if server.checksums), key=lambda server: bool(server.about.layout.further))
    like = next(iter(told), None)
    if like is None:
        whys = (why for server in seen for why in (server.dead, server.refused.get("checksums")) if why)
        return None, next(whys, "no server gave checksums of its weights")
    about, layout = like.about, like.about.layout
    if layout.further:
        return (
            None,
            f"{like.url} is set to {few(layout.further)}, which moves weights, and the engine started here is not",
        )
    if layout.ranks > (os.cpu_count() or 1):
        return (
            None,
            f"{like.url} has {layout.ranks:,} ranks, and this machine has {os.cpu_count() or 1} CPUs to start as many",
        )
    device = about.device or "cpu"
    scratch = Path(tempfile.mkdtemp(prefix="ckptcheck-reference-"))
    say(f"starting {about.engine} with {folder}")
    try:
        with Reference(
            about.engine, folder, dtype=about.dtype or "auto", layout=layout, device=device,
            python=wanted.python, scratch=(scratch,), timeout=wanted.timeouts.seconds("start", 0),
        ) as reference:  # fmt: skip
            return attaching.look(reference.server, asked, say), ""
    except (HostDied, VerbError, CkptcheckError) as trouble:
        return None, f"no {about.engine} could be started with it to compare: {trouble.message}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _truth(
    source: Checkpoint, seen: Sequence[Seen], asked: Asked, wanted: Wanted, say: Callable[[str], None]
) -> tuple[Truth | None, str]:
    """Have a trainer score the sequences; return what it says, or why there is nothing."""
    from ckptcheck.host.exchange import Exchange
    from ckptcheck.host.patience import within
    from ckptcheck.host.trouble import HostDied, VerbError
    from ckptcheck.refit.attach import Truth

    if not any(server.scores for server in seen):
        whys = (why for server in seen for why in (server.dead, server.refused.get("logprobs")) if why)
        return None, next(whys, "no server gave logprobs")
    say(f"scoring {source.target} in a trainer")
    dtype = next((server.about.dtype for server in seen if server.about.dtype in ("float32", "bfloat16")), "bfloat16")
    try:
        with Exchange() as exchange, within(wanted.seconds("start", source)):
            trainer = wanted.trainer(source, exchange, dtype)
            try:
                return Truth(trainer.info, tuple(trainer.score(asked.sequences))), ""
            finally:
                trainer.close()
    except (HostDied, VerbError, CkptcheckError) as trouble:
        return None, f"no trainer scored it: {trouble.message}"

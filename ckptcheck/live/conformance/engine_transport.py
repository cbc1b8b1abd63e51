"""A transport of vLLM or SGLang under the kit: the real engine, and a sender that the kit plays."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count as count_up
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.conformance.faults import (
    NEW,
    OLD,
    Event,
    Fault,
    Interruption,
    Parcel,
    ReceiverLost,
    ReceiverState,
    Reply,
    Subject,
    send_all,
)
from ckptcheck.live.conformance.own_transport import BUCKETS, split_evenly
from ckptcheck.live.conformance.weights import move_values, read_weights, write_checkpoint, write_safetensors
from ckptcheck.live.refit.inflight import InflightRequest, InflightUpdate
from ckptcheck.live.runtime.engines.base import Bucket, TensorDigests, UpdateResult
from ckptcheck.live.runtime.engines.capabilities import why_sleep_frees_nothing
from ckptcheck.live.runtime.engines.process_group import create_rendezvous
from ckptcheck.live.runtime.engines.transports import find_transport
from ckptcheck.live.runtime.process.deadlines import time_budget
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.refit.live_trial import TrialEngine
    from ckptcheck.live.runtime.engines.remote import RemoteEngine
    from ckptcheck.live.runtime.process.client import WorkerClient

TIMEOUT = 60.0
"""Seconds that one update may take."""
GROUP_TIMEOUT = 15.0
"""Seconds that one member of a process group waits for another."""
PROMPT = tuple(range(5, 29))
"""The prompt of the request that runs during an update; every vocabulary has these ids."""


class EngineTransport(Subject):
    """A transport of an engine. Starts the engine twice: cold with each of the two sets of weights.

    Args:
        ckpt: the weights to send, on this disk.
        settings: the engine.
        transport: its name.
        dtype: the compute dtype of the engine.
        folder: for the files of buckets and checkpoints; the caller removes it.

    Raises CkptcheckError if the kit cannot play the sender, or if the engine does not start.
    """

    def __init__(self, ckpt: Checkpoint, settings: TrialEngine, transport: str, dtype: str, folder: Path) -> None:
        self._row = find_transport(settings.name, transport)
        if self._row.sender == "ipc" or self._row.is_between_gpus:
            raise CkptcheckError(
                f"the kit cannot play the sender of {transport}, which needs the GPUs of a trainer",
                "choose a transport that carries files, or gloo",
            )
        assert ckpt.source.local is not None
        self._settings, self._dtype, self._folder = settings, dtype, folder
        self.target = f"{settings.name} {transport}"
        weights = read_weights(ckpt)
        self._weights = (weights, move_values(weights))
        self._checkpoints = tuple(
            write_checkpoint(self._weights[values], ckpt.source.local, folder / f"weights-{values}")
            for values in (OLD, NEW)
        )
        self.buckets: Sequence[Sequence[str]] = split_evenly(
            {name: tensor.patterns.nbytes for name, tensor in weights.items()}, BUCKETS
        )
        self._files: dict[tuple[int, int, bool], Bucket] = {}
        self._numbers = count_up(1)
        self._version: str | None = None
        self._sender: WorkerClient | None = None
        self._engine: RemoteEngine[Any] = self._start(NEW)
        self._scratch: frozenset[tuple[int, str]] = frozenset()
        try:
            self._scratch = self._find_scratch()
            expected_new = self.read_state().digests
            self._engine.restart(self._checkpoints[OLD])
            self._expected = {OLD: self.read_state().digests, NEW: expected_new}
        except BaseException:
            self.close()
            raise
        info = self._engine.info
        self.title = f"{info.name} {info.version} {info.dtype}, {len(weights)} tensors in {len(self.buckets)} buckets"

    @property
    def has_wire(self) -> bool:
        """Whether a bucket can be announced and then lost, because its bytes travel apart from the announcement."""
        return self._row.sender == "group"

    @property
    def pause_modes(self) -> Sequence[str]:
        """The ways in which the engine treats running requests during an update."""
        return self._engine.pause_modes if self._row.supports_inflight else ("",)

    def find_obstacle(self, fault: Fault) -> str:
        """Return why this transport cannot have this fault; "" if it can."""
        if fault.kind == "generation" and not self._row.supports_inflight:
            return f"ckptcheck updates by {self._row.name} only where no request runs"
        if fault.kind in ("two-updates", "sleep") and self._row.joins_buckets:
            return "one call takes all buckets, so nothing can happen between two of them"
        if fault.kind == "sleep" and not self._row.has_session:
            return "the engine has no calls that begin and end an update"
        return ""

    def update(self, fault: Fault | None, events: Sequence[Event], version: str) -> Reply:
        """Send one update with the engine's own call."""
        if fault is not None and fault.kind == "generation":
            return self._update_while_generating(fault.place, events, version)
        if fault is not None and fault.kind == "sleep":
            return replace(self._send(events, version), note=why_sleep_frees_nothing(self._engine.info))
        if fault is not None and fault.kind == "two-updates" and self.has_wire:
            # a refused second update gets no weights, and the sender has to know that beforehand
            first = [event for event in events if not (isinstance(event, Parcel) and event.values == OLD)]
            reply = self._update_by_group(first, version)
            if reply.refusal or not reply.has_ended or reply.has_died:
                return reply
            if not self._update_by_group(send_all(len(self.buckets), OLD), f"{version}-between").ok:
                return reply
        return self._send(events, version)

    def _send(self, events: Sequence[Event], version: str) -> Reply:
        if self.has_wire:
            return self._update_by_group(events, version)
        return self._ask_engine(self._list_entries(events), version)

    def _update_by_group(self, events: Sequence[Event], version: str) -> Reply:
        """Broadcast from a sender of the kit while the engine receives."""
        group = create_rendezvous(self._engine.info.ranks, f"conformance-{next(self._numbers)}", timeout=GROUP_TIMEOUT)
        announced = self._list_entries(_announce(events, len(self.buckets)), address_only=True)
        announced = [replace(entry, address={**group, **entry.address}) for entry in announced]
        sent = msgspec.to_builtins(self._list_entries([event for event in events if _is_sent(event)]))
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(
                contextvars.copy_context().run, self._start_sender().call, "send", timeout=TIMEOUT, group=group, buckets=sent
            )  # fmt: skip
            reply = self._ask_engine(announced, version)
            return self._hear_sender(sending, reply)

    def _hear_sender(self, sending: Future[Any], reply: Reply) -> Reply:
        """Add the sender's own error to the engine's answer, and end a sender that waits in vain."""
        try:
            sending.result(timeout=GROUP_TIMEOUT + 5)
        except TimeoutError:
            self._end_sender()
            return replace(reply, note="the sender was left waiting")
        except CkptcheckError as error:
            if not isinstance(error, RemoteError):
                self._end_sender()
            if reply.ok:
                return replace(reply, ok=False, message=f"the sender: {error.message}")
        return reply

    def _ask_engine(self, entries: Sequence[Bucket], version: str) -> Reply:
        try:
            result = self._engine.update_weights(entries, self._row.name, timeout=TIMEOUT, version=version)
        except WorkerTimeout:
            return Reply(False, f"it did not answer within {TIMEOUT:,.0f} s", has_ended=False)
        except WorkerDied as error:
            return Reply(False, error.message, has_died=True)
        except CkptcheckError as error:
            return Reply(False, error.message)
        return self._to_reply(result)

    def _to_reply(self, result: UpdateResult) -> Reply:
        self._version = result.weight_version
        is_heard = not result.message.startswith("SenderDied") and "; SenderDied" not in result.message
        return Reply(
            result.ok, result.message if is_heard else "", is_heard=is_heard and ": SenderDied" not in result.message,
            refusal=result.refusal,
        )  # fmt: skip

    def _list_entries(self, events: Sequence[Event], *, address_only: bool = False) -> list[Bucket]:
        """Return the buckets and the events between them. address_only: buckets without their files."""
        entries, is_second = [], False
        for event in events:
            if isinstance(event, Parcel):
                bucket = self._write_bucket(event)
                address = {} if address_only else dict(bucket.address)
                entries.append(replace(bucket, address={**address, "is_second": True} if is_second else address))
                continue
            is_second = event.kind == "begin" or (is_second and event.kind != "end")
            entries.append(Bucket({"interrupt": event.kind, "seconds": event.seconds}, (), (), (), 0))
        return entries

    def _write_bucket(self, parcel: Parcel) -> Bucket:
        """Return a bucket, with its file written once. A truncated tensor is announced with its whole shape."""
        key = (parcel.bucket, parcel.values, parcel.is_cut)
        names = list(self.buckets[parcel.bucket])
        weights = {name: self._weights[parcel.values][name] for name in names}
        if key not in self._files:
            from ckptcheck.compare.diagnosis import TensorBits

            content = dict(weights)
            if parcel.is_cut:
                name = max(
                    (each for each in names if weights[each].shape and weights[each].shape[0] > 1), key=names.index
                )
                content[name] = TensorBits(content[name].dtype, content[name].patterns[: content[name].shape[0] // 2])
            path = self._folder / f"bucket-{'-'.join(str(int(part)) for part in key)}.safetensors"
            nbytes = write_safetensors(content, path)
            self._files[key] = Bucket(
                {"kind": "file", "path": str(path), "tensors": len(names), "bytes": nbytes},
                tuple(names),
                tuple(tensor.dtype for tensor in weights.values()),
                tuple(tensor.shape for tensor in weights.values()),
                nbytes,
            )
        bucket = self._files[key]
        if not parcel.lacks_tensor:
            return bucket
        return replace(bucket, names=bucket.names[:-1], dtypes=bucket.dtypes[:-1], shapes=bucket.shapes[:-1])

    def _update_while_generating(self, pause: str, events: Sequence[Event], version: str) -> Reply:
        update = InflightUpdate(pause, PROMPT, version)
        try:
            with time_budget(TIMEOUT):
                result = update.refit(self._engine, self._list_entries(events), self._row.name)
        except WorkerTimeout:
            return Reply(False, "it did not answer in time", has_ended=False)
        except WorkerDied as error:
            return Reply(False, error.message, has_died=True)
        except CkptcheckError as error:
            return Reply(False, error.message)
        assert update.request is not None
        return _judge_response(self._to_reply(result), update.request)

    def read_state(self) -> ReceiverState:
        """Digest the tensors of the engine. Raises ReceiverLost if it does not run."""
        with _engine_must_answer():
            tensors: TensorDigests = self._engine.digest_tensors()
        kept = {_name(*key): entry for key, entry in tensors.items() if key not in self._scratch}
        return ReceiverState(
            {name: "" if entry.opaque else entry.digest for name, entry in kept.items()},
            frozenset(name for name, entry in kept.items() if entry.kind == "derived"),
        )

    def _find_scratch(self) -> frozenset[tuple[int, str]]:
        """Return the derived tensors that a forward pass changes."""
        before = self._engine.digest_tensors()
        self._engine.score([list(PROMPT)], decode=1)
        after = self._engine.digest_tensors()
        return frozenset(
            key
            for key, entry in after.items()
            if entry.kind == "derived" and (key not in before or before[key].digest != entry.digest)
        )

    def expected_state(self, values: int) -> Mapping[str, str]:
        """Return the tensors of a cold load of these weights."""
        return self._expected[values]

    def write_marks(self) -> int:
        """Write marks over every weight. Raises ReceiverLost if the engine does not run."""
        with _engine_must_answer():
            return len(self._engine.scramble_weights().names)

    def find_marks(self) -> Sequence[str]:
        """Return the tensors that still hold marks. Raises ReceiverLost if the engine does not run."""
        with _engine_must_answer():
            return [_name(*key) for key in self._engine.find_unwritten()]

    def version(self) -> str | None:
        """Return the version that the engine reported with its last answer; None if it reports none."""
        return self._version

    def end_update(self) -> bool:
        """End an update that a fault left open; return whether the engine could."""
        if not self._row.has_session:
            return False
        try:
            with time_budget(TIMEOUT):
                self._engine.end_update()
        except CkptcheckError:
            return False
        return True

    def restart(self) -> None:
        """Start the engine anew. Raises CkptcheckError if it does not start."""
        self._engine.close()
        self._end_sender()
        self._engine = self._start(OLD)

    def close(self) -> None:
        """End the engine and the sender; may be called twice."""
        self._engine.close()
        self._end_sender()

    def _start(self, values: int) -> RemoteEngine[Any]:
        from ckptcheck.live.runtime.engines import registry
        from ckptcheck.live.runtime.engines.engine_options import parse_switches
        from ckptcheck.live.runtime.engines.remote import RemoteEngine

        settings = self._settings
        engine = registry.start_engine(
            settings.name, self._checkpoints[values], dtype=self._dtype, ranks=settings.tp, mode=settings.mode,
            switches=parse_switches(list(settings.switches)), transport=self._row.name, python=settings.python,
            gpus=settings.gpus, scratch=(self._folder,),
        )  # fmt: skip
        assert isinstance(engine, RemoteEngine)
        return engine

    def _start_sender(self) -> WorkerClient:
        """Return the sender, which runs in the engine's own Python: that has torch."""
        from ckptcheck.live.runtime.environments.interpreter import find_interpreter
        from ckptcheck.live.runtime.process.client import WorkerClient

        if self._sender is None:
            interpreter = find_interpreter(self._settings.name, self._settings.python)
            self._sender = WorkerClient(
                interpreter.python, "ckptcheck_worker.bucket_sender", name="the sender", env=interpreter.variables,
                scratch=(self._folder,),
            )  # fmt: skip
            self._sender.call("prepare", timeout=TIMEOUT)
        return self._sender

    def _end_sender(self) -> None:
        if self._sender is not None:
            self._sender.close(0)
            self._sender = None


@contextlib.contextmanager
def _engine_must_answer() -> Iterator[None]:
    """Limit the calls of the block. Raises ReceiverLost if the engine does not answer in time, or not at all."""
    try:
        with time_budget(TIMEOUT):
            yield
    except CkptcheckError as error:
        raise ReceiverLost(error.message) from error


def _announce(events: Sequence[Event], buckets: int) -> list[Event]:
    """Return the engine's instructions for an update: all buckets of the sender, and the faults at the engine."""
    died = any(isinstance(event, Interruption) and event.kind == "sender-dies" for event in events)
    if died:
        return list(send_all(buckets))
    return [event for event in events if isinstance(event, Parcel) or event.kind != "delay"]


def _is_sent(event: Event) -> bool:
    """Return whether an event concerns the sender."""
    if isinstance(event, Parcel):
        return not event.is_lost
    return event.kind in ("delay", "sender-dies")


def _name(rank: int, name: str) -> str:
    return f"rank {rank} {name}" if rank else name


def _judge_response(reply: Reply, request: InflightRequest) -> Reply:
    """Add the outcome of the response that ran during the update to the answer."""
    if request.is_truncated:
        return replace(
            reply,
            misreport=f"the response ended after {request.tokens} of {request.requested_tokens} tokens,"
            f' and the engine gives the reason "{request.finish}"',
        )
    if not request.has_versions:
        if not request.is_observable:
            return replace(
                reply, undetectable="tokens carry no version, and logprobs do not show which weights computed them"
            )
        if request.first_new_token is not None:
            return replace(
                reply,
                misreport=f"logprobs show new weights from token {request.first_new_token} on, and no token carries a version",
            )
        return replace(reply, note="the old weights computed the whole response")
    if request.has_version_mismatch:
        return replace(
            reply,
            misreport=f"logprobs show new weights from token {request.first_new_token} on, "
            f"and the engine reports them from token {request.reported_new_token}",
        )
    if request.reported_new_token is None:
        return replace(reply, note=f'the response ended with the reason "{request.finish}", all of the old version')
    return replace(reply, note=f"tokens from {request.reported_new_token} on carry the new version")

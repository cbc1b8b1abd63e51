"""Records the tensors that reach a model's own load_weights during an update: name, dtype, shape and digest, in order.

Every transport of vLLM and SGLang ends in that method of the served model, so it is the border between the transport and the
loader. The parameters at the moment when it has everything and returns are the border between the loader and the code
after it. Between `record` and `read` a recorder replaces the method. Runs in the process of a rank.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from . import tensors
from .shard_digest import digests, format_words, sum_shard

METHOD = "load_weights"
_recorders: list[Recorder] = []


class Recorder:
    """A model's load_weights that records its arguments, and changes nothing.

    expected: the names that will come; after the last of them it digests the parameters. is_brief: do not digest the
    arriving tensors.
    """

    def __init__(self, model: Any, expected: Collection[str] = (), is_brief: bool = False) -> None:
        self.load = getattr(model, METHOD)
        self._awaited, self._is_brief = set(expected), is_brief
        self.loaded: list[list[str]] = []
        self.seconds = 0.0
        self._model, self._is_own = model, METHOD in vars(model)
        self._entries: list[list[Any]] = []
        self._words: list[Any] = []
        self._is_on = True

    def __call__(self, weights: Any, *arguments: Any, **named: Any) -> Any:
        """Record (name, tensor) of the weights, and load them."""
        if not self._is_on:
            return self.load(weights, *arguments, **named)
        awaited = bool(self._awaited)
        if isinstance(weights, (list, tuple)):
            self._note_all(weights)
            answer = self.load(weights, *arguments, **named)
        else:
            answer = self.load(self._note_each(weights), *arguments, **named)
        # a bucket that comes again after the last one may write once more
        if self.loaded or (awaited and not self._awaited):
            self._digest_parameters()
        return answer

    def _digest_parameters(self) -> None:
        """Digest the parameters as the loader leaves them, and measure how long the load waits for the digests."""
        began = time.monotonic()
        named = self._model.named_parameters(remove_duplicate=False)
        held = [(name, tensor) for name, tensor in named if _is_readable(tensor) and tensor.numel()]
        values = digests([tensor for _, tensor in held])
        self.loaded = [[name, value, tensors.storage_id(tensor)] for (name, tensor), value in zip(held, values)]
        self.seconds += time.monotonic() - began

    def _note_all(self, weights: Iterable[tuple[str, Any]]) -> None:
        self._awaited.difference_update(name for name, _ in weights)
        if self._is_brief:
            return
        readable = [(name, tensor) for name, tensor in weights if _is_readable(tensor)]
        if any(tensor.device.type != "cpu" for _, tensor in readable):
            for name, tensor in readable:
                self._note(name, tensor)
            return
        for (name, tensor), digest in zip(readable, digests([tensor for _, tensor in readable])):
            self._entries.append([*_describe(name, tensor), digest])

    def _note_each(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            self._awaited.discard(name)
            if not self._is_brief and _is_readable(tensor):
                self._note(name, tensor)
            yield name, tensor

    def _note(self, name: str, tensor: Any) -> None:
        """Record a tensor now, because its memory may be reused; on a GPU its digest is fetched at the end."""
        self._entries.append([*_describe(name, tensor), len(self._words)])
        self._words.append((sum_shard(tensor), tensor.nbytes))

    def finish(self) -> list[list[Any]]:
        """Give the model its method back, and return [name, dtype, shape, digest] of each arrived tensor."""
        self._is_on = False
        # another wrapper around this recorder stays in place
        if vars(self._model).get(METHOD) is self:
            setattr(self._model, METHOD, self.load) if self._is_own else delattr(self._model, METHOD)
        values = format_words(self._words)
        return [
            [*entry[:-1], values[entry[-1]] if isinstance(entry[-1], int) else entry[-1]] for entry in self._entries
        ]


def record(model: Any, expected: Collection[str] = (), is_brief: bool = False) -> None:
    """Record from now on the tensors that reach a model's load_weights (see `Recorder`); forget earlier records."""
    for recorder in _recorders:
        recorder.finish()
    _recorders.clear()
    recorder = Recorder(model, expected, is_brief)
    _recorders.append(recorder)
    setattr(model, METHOD, recorder)


def read(rank: int) -> dict[str, Any]:
    """Return the records since `record`, and stop recording.

    entries: [name, dtype, shape, digest] of each arrived tensor. loaded: [name, digest, storage] of the parameters
    after the last arrival; [] if not all came. seconds: that the load waited for these digests.
    """
    entries = [entry for recorder in _recorders for entry in recorder.finish()]
    loaded = [entry for recorder in _recorders for entry in recorder.loaded]
    seconds = sum(recorder.seconds for recorder in _recorders)
    _recorders.clear()
    return {"rank": rank, "entries": entries, "loaded": loaded, "seconds": seconds}


def _is_readable(tensor: Any) -> bool:
    return hasattr(tensor, "element_size") and tensor.device.type != "meta"


def _describe(name: str, tensor: Any) -> list[Any]:
    return [name, tensors.dtype_name(tensor), list(tensor.shape)]

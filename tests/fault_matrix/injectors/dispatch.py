"""Puts a fault into a model that an engine serves, and takes it out. Runs in the process of a rank."""

from __future__ import annotations

from typing import Any

import delivery
import inside
import loading
from ckptcheck_worker import arrivals
from undo import replace, undo_all

KEPT: dict[str, Any] = {}
"""What a fault remembers from one sync to the next."""


class Load:
    """The model's load_weights with a fault; one call of it is one bucket."""

    def __init__(self, original: Any, model: Any, rank: int, request: dict[str, Any]) -> None:
        self._original, self._model, self.rank, self.kept = original, model, rank, KEPT
        self._change = {**delivery.FAULTS, **loading.FAULTS}[request["inject"]]
        self._arguments, self._buckets, self.sync = request["arguments"], request["buckets"], request["sync"]
        self._number, self._more = -1, ((), {})

    def __call__(self, weights: Any, *more: Any, **named: Any) -> Any:
        self._number, self._more = self._number + 1, (more, named)
        return self._change(self, list(weights), **self._arguments)

    @property
    def last(self) -> bool:
        """Whether this is the last bucket."""
        return self._number == self._buckets - 1

    def is_bucket(self, place: int) -> bool:
        """Whether this is the bucket of that number, from the end if it is negative."""
        return self._number == place % self._buckets

    def deliver(self, stream: Any) -> Any:
        """Have the model load what is left of the bucket."""
        return self._original(iter(stream), *self._more[0], **self._more[1])

    def parameter(self, name: str) -> Any:
        """Return a parameter by the end of its name."""
        return inside.find_tensor(self._model, name)


def inject(model: Any, rank: int, request: dict[str, Any]) -> None:
    """Put a fault in. request: {"at", "inject", "arguments", "buckets", "sync"}; rank: of this process."""
    import torch

    name, arguments = request["inject"], dict(request["arguments"])
    if request["at"] == "engine":
        if arguments.pop("on_rank", rank) == rank:
            with torch.inference_mode():
                inside.FAULTS[name](model, **arguments)
    else:
        # what is noted of arrivals lies between a transport and a loader, and so do their faults
        recorder = vars(model).get("load_weights")
        is_inside = name in loading.FAULTS and isinstance(recorder, arrivals.Recorder)
        owner, attribute = (recorder, "load") if is_inside else (model, "load_weights")
        replace(owner, attribute, Load(getattr(owner, attribute), model, rank, request))


def heal(forget: bool) -> None:
    """Take all faults out. forget: also what they remember."""
    import torch

    with torch.inference_mode():
        undo_all()
    if forget:
        KEPT.clear()

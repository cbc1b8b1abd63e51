"""What can be wrong with a weight update: the faults that the fake engine can have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "dropped",  # the checkpoint tensor `name` is not written
    "partial",  # it is not written, and the memory of its place was allocated anew
    "swapped",  # it is written where `other` belongs, and the other way round
    "stale",  # from the second update on it is written with what the first one sent
    "restored",  # after the update the engine's tensor `name` is what it was at the start
    "cast",  # it passes through bfloat16
    "scaled",  # it is written doubled from the second update on: the second load is not like the first
    "lost",  # the checkpoint tensor `name` never arrives
    "altered",  # it arrives doubled, later as it did first
    "bucket",  # the first tensor of every bucket but the first loses its last element
    "unsent",  # the engine's tensor `name` changes though nothing was sent for it
    "rotary",  # the rotary cache changes
    "rank",  # the engine's tensor `name`, or the checkpoint's, is not written on the last rank
    "derived",  # the packed head is not made anew
    "scalar",  # nor is the scale that it keeps on the host
    "lazy",  # nor is the number that its first forward pass made of that
    "unscaled",  # that scale is gone; `name` = sleep: after a sleep it is 1
    "unscaled buffer",  # the buffer with a scale keeps that of before; `name` = one: it is 1
    "heads",  # an integer on the host changes
    "emptied",  # the engine's parameter `name` is empty afterwards: it computes with a packed copy
    "unmarked",  # the engine's tensor `name` is not overwritten with a mark; without a name none is, which it says
    "spilled",  # overwriting parameters changes the rotary cache too
    "renamed",  # the engine's tensor `name` is afterwards called `other`, or is gone
    "moved",  # the engine's tensor `name` lies elsewhere afterwards
    "draft",  # the draft model is not updated
    "stops",  # nothing is written from the checkpoint tensor `name` on, and success is said
    "silent",  # nothing is written, and success is said
    "lying",  # all is written, and failure is said
    "version",  # the weight version goes down
    "ignores",  # a name that matches nothing is no error
    "encoder",  # what it keeps of an image outlives the update
    "cache",  # the prefix cache is not reset when asked
    "path",  # logprobs are off though all weights are right; `other`: a factor that says by how much
    "decode",  # so are those of decoding, and prefill is right
    "noisy",  # they are others every second time, and after every update, by rounding; with since = 0 from the start on
    "blind",  # logprobs are right though weights are not
    "leak",  # every update takes memory
    "sleep",  # the rotary cache is lost in sleep, or the engine's tensor `name`
    "awake",  # sleep releases nothing
    "copy",  # slot `name` of the experts is not written
    "places",  # experts are written to the slots of the start
    "misplaced",  # moving experts exchanges two slots
    "misrouted",  # after a move tokens go to other slots than the map says
    "unmoved",  # nothing moves
    "mapless",  # it does not say where experts lie
    "died",  # the process dies in the method `name`
    "hung",  # it hangs there
]


@dataclass(frozen=True)
class Fault:
    """One fault; from which update on it shows, counted from 1, and on which rank alone ("cast" and "scaled")."""

    kind: FaultKind
    name: str = ""
    other: str = ""
    since: int = 1
    rank: int | None = None

"""All probes by the names that a user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import EXPERTS
from ckptcheck.errors import CkptcheckError
from ckptcheck.parity.probes import decode, ends, head, inflight, length, padding, routing, semantics, setups, stale
from ckptcheck.parity.probes.runner import Make

PROBES: Mapping[str, Make] = {
    "decode": decode.probe,
    "semantics": semantics.probe,
    "padding": padding.probe,
    "routing": routing.probe,
    "stale": stale.probe,
    "inflight": inflight.probe,
    "length": length.probe,
    "prefix-cache": setups.prefix_cache,
    "chunks": setups.chunks,
    "scheduling": setups.scheduling,
    "ends": ends.probe,
    "prompt": ends.prompt,
    "head": head.probe,
    "graphs": setups.graphs,
    "inductor": setups.inductor,
    "casts": setups.casts,
}
"""In the order in which they are tried where nothing else decides: those that many set-ups share first, the dearest last."""


def chosen(only: Sequence[str], without: Sequence[str]) -> dict[str, Make]:
    """Return the probes that are asked for. Raises CkptcheckError for a name that is none."""
    for name in (*only, *without):
        if name not in PROBES:
            raise CkptcheckError(f"there is no probe {name}", hint=f"there are {', '.join(PROBES)}")
    return {name: make for name, make in PROBES.items() if (not only or name in only) and name not in without}


def has_experts(ckpt: Checkpoint) -> bool:
    """Say whether there is anything to route."""
    config = ckpt.config
    return config is not None and any(config.get(key) for key in EXPERTS)

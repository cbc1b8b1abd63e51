"""Which CPUs each rank of an engine computes on, where it has no GPU."""

from __future__ import annotations

import os

BINDING = {"vllm": "VLLM_CPU_OMP_THREADS_BIND", "sglang": "SGLANG_CPU_OMP_THREADS_BIND"}


def binding(engine: str, ranks: int) -> dict[str, str]:
    """Return the variable that gives each rank of an engine CPUs of its own; none for one rank.

    By themselves both engines refuse more ranks than the machine has NUMA nodes. Off the CPU they do not look at it.
    """
    return {BINDING[engine]: _shares(ranks)} if ranks > 1 else {}


def _shares(ranks: int) -> str:
    """Share the CPUs of this process as both engines want it said: ``0,2|1,3``."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    shares = [cpus[rank::ranks] or [cpus[rank % len(cpus)]] for rank in range(ranks)]
    return "|".join(",".join(map(str, share)) for share in shares)

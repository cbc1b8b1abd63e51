"""Assigns CPUs to the ranks of an engine that runs without a GPU."""

from __future__ import annotations

import os

VARIABLES = {"vllm": "VLLM_CPU_OMP_THREADS_BIND", "sglang": "SGLANG_CPU_OMP_THREADS_BIND"}


def cpu_affinity_variables(engine: str, ranks: int) -> dict[str, str]:
    """Return the environment variable that assigns separate CPUs to each rank of an engine; none for one rank.

    Without it both engines refuse more ranks than the machine has NUMA nodes. On GPUs they ignore it.
    """
    return {VARIABLES[engine]: _cpu_lists(ranks)} if ranks > 1 else {}


def _cpu_lists(ranks: int) -> str:
    """Split the CPUs of this process over the ranks, in the format of both engines: ``0,2|1,3``."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    lists = [cpus[rank::ranks] or [cpus[rank % len(cpus)]] for rank in range(ranks)]
    return "|".join(",".join(map(str, cpu_list)) for cpu_list in lists)

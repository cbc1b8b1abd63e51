"""Two terabytes on many nodes, simulated: the plan and the joining are the real ones, the reading is that of modelled nodes.

The checkpoint lies in sparse files, whose headers are real. Its plan is cut into the shares of each number of nodes as `--part`
cuts it. A modelled node has READS requests under way. A request waits LATENCY (a log-normal time; one of a hundred takes ten times
as long) and then gets its bytes at CONNECTION, all requests of a node together at NETWORK; scanning takes SCAN of a node's
processors. Nodes do not hinder each other: the store is as fast as they ask. The slowest node decides. Results that are joined are
those of a batch of the same form, scanned once. Planning and joining are processor time, in one process.
"""

from __future__ import annotations

import heapq
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.runners.parts import find_share
from ckptcheck.values.scan_plan import ScanPlan, plan_scan
from ckptcheck.values.value_pass import READ_BYTES, REMOTE_READS, BatchResult, run_value_pass
from tests.benchmarks.figures import line
from tests.paths import ROOT

LAYERS = 119
"""Layers of the checkpoint: 2.0 TB."""
NODES = (1, 4, 16, 64)
READS = REMOTE_READS
"""Requests of a node that are under way."""
LATENCY, SPREAD, LATE = 0.03, 0.5, 0.01
"""Median seconds of a request before its first byte; the deviation of its logarithm; the share that takes ten times as long."""
CONNECTION, NETWORK, SCAN = 100e6, 1.5e9, 3e9
"""Bytes per second: of one request, of a node's network, and of a node's processors that scan."""
PARALLEL_HEADERS = 16


class Replay:
    """A runner that computes one batch of each form, and gives its result to all others of that form."""

    def __init__(self) -> None:
        self.computed: dict[Any, BatchResult] = {}

    def run(self, work: Any, units: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each unit with the result of its form, in order."""
        for unit in units:
            form = tuple((piece.nbytes, piece.dtype, piece.row, piece.sampled, piece.elements) for piece in unit.pieces)
            if form not in self.computed:
                self.computed[form] = work.compute(unit)
            yield unit, self.computed[form]


def simulate_node(sizes: Sequence[int], dice: random.Random) -> float:
    """Return the seconds in which a node reads and scans pieces of these sizes."""
    free = [0.0] * READS
    network = scanned = 0.0
    for size in sizes:
        begun = heapq.heappop(free)
        latency = LATENCY * dice.lognormvariate(0, SPREAD) * (10 if dice.random() < LATE else 1)
        network = max(network, begun + latency) + size / NETWORK  # the network sends one piece after the other
        arrived = max(network, begun + latency + size / CONNECTION)
        scanned = max(scanned, arrived) + size / SCAN
        heapq.heappush(free, arrived)
    return scanned


def simulate(plan: ScanPlan, nodes: int, seed: int = 0) -> float:
    """Return the seconds after which the slowest of so many nodes has read its share."""
    sizes = [batch.nbytes for batch in plan.batches]
    shares = (find_share(sizes, index, nodes) for index in range(nodes))
    return max(simulate_node(sizes[begin:end], random.Random(f"{seed} {nodes} {begin}")) for begin, end in shares)


def main() -> None:
    """Measure, simulate and print."""
    sys.path.insert(0, str(ROOT / "fixtures"))
    import large

    with tempfile.TemporaryDirectory() as work:
        large.write(Path(work) / "big", LAYERS)
        begun = time.process_time()
        ckpt = open_checkpoint(str(Path(work) / "big"), jobs=1)
        ckpt.read_headers()
        headers = len(ckpt.shards) / PARALLEL_HEADERS * LATENCY * 2
        plan = _plan(ckpt)
        planned = time.process_time() - begun + headers
        replay = Replay()
        run_value_pass(ckpt.source, plan, runner=replay)  # computes one batch of each form
        begun = time.process_time()
        run_value_pass(ckpt.source, plan, runner=replay)
        joined = time.process_time() - begun
        print(f"scale: {plan.nbytes / 1e12:.2f} TB, {len(plan.batches):,} requests, {len(replay.computed):,} forms")
        line("every node: headers and plan, seconds", f"{planned:.0f}", "")
        line("joining all results, seconds (rules not counted)", f"{joined:.0f}", "")
        alone = 0.0
        for nodes in NODES:
            seconds = simulate(plan, nodes)
            alone = alone or seconds
            whole = planned + seconds + joined
            line(f"{nodes} nodes: reading, seconds; with plan and joining", f"{seconds:.0f}/{whole:.0f}", "")
        line("64 nodes: reading, of what 64 times one node would be", f"{alone / NODES[-1] / seconds:.2f}", "≥ 0.8")


def _plan(ckpt: Checkpoint) -> ScanPlan:
    return plan_scan(ckpt.source, ckpt.shards, {}, {}, READ_BYTES)


if __name__ == "__main__":
    main()

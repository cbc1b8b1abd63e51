"""A live weight sync of SmolLM2 in float32 (0.54 GB), transformers → vLLM: what checking it costs beside what it costs itself.

Also how fast tensors are digested beside the least that any check of all bytes costs: reading them once (a sum). Needs
``make engines``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.sync import send_weights
from ckptcheck.live.runtime.engines.vllm import VllmEngine, VllmOptions
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.transformers import start_transformers
from tests.benchmarks.checkpoints import find_smollm2
from tests.benchmarks.figures import line

ROUNDS = 3
BUCKET = 64 << 20
SIZE = 1 << 29


def digests() -> None:
    """Digest half a gigabyte, in tensors as models have them, and sum the same words."""
    import torch

    from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import digest

    weights = [torch.randn(1536, 2048) for _ in range(SIZE // (4 * 1536 * 2048))]
    whole = sum(weight.nbytes for weight in weights)
    times: dict[str, list[float]] = {"sum": [], "digest": []}
    for _ in range(ROUNDS):
        times["sum"].append(_seconds(lambda: [weight.view(torch.int64).sum() for weight in weights]))
        times["digest"].append(_seconds(lambda: [digest(weight) for weight in weights]))
    share = statistics.median(a / b for a, b in zip(times["digest"], times["sum"], strict=True))
    line("digests of 0.5 GB on the CPU / one sum of the same bytes", f"{share:.1f}", "≤ 12")
    line("digests, GB/s", f"{whole / 1e9 / statistics.median(times['digest']):.1f}", "")


def syncs(source: Path) -> None:
    """Sync again and again, with other weights each time."""
    ckpt = open_checkpoint(str(source))
    need = 2 * sum(tensor.nbytes for tensor in ckpt.tensors.values())
    ratios, updates, checks, extra, sent = [], [], [], [], []
    with TensorExchange(need=need) as exchange, VllmEngine(source, VllmOptions()) as engine:
        trainer = start_transformers(ckpt, exchange)
        try:
            for number in range(ROUNDS):
                trainer.perturb(0.01, seed=number)
                sent.append(_seconds(trainer.digests))
                sync = _seconds(lambda: send_weights(trainer, engine, BUCKET, "reload", ""))
                process = engine._call_ranks("memory_bytes")[0][0]
                before = _resident(process, peak=False)
                _forget_peak(process)
                check = _seconds(engine.digest_tensors)
                extra.append(_resident(process, peak=True) - before)
                ratios.append(check / sync)
                updates.append(sync)
                checks.append(check)
                for path in exchange.folder.iterdir():
                    path.unlink()
        finally:
            trainer.close()
    line("check of a sync (digests of all that vLLM holds) / the sync", f"{statistics.median(ratios):.2f}", "≤ 1")
    line(
        "export and update, check, and the trainer's digests, s",
        f"{statistics.median(updates):.2f}, {statistics.median(checks):.2f}, {statistics.median(sent):.2f}",
        "",
    )
    line("memory that the check takes from vLLM at its peak, MB", f"{max(extra) / 1e6:.0f}", f"≤ {BUCKET / 1e6:.0f}")


def _forget_peak(process: int) -> None:
    """Have Linux count the peak anew (proc_pid_clear_refs(5))."""
    Path(f"/proc/{process}/clear_refs").write_text("5")


def _resident(process: int, *, peak: bool) -> int:
    name = "VmHWM" if peak else "VmRSS"
    rows = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * int(next(row.split()[1] for row in rows if row.startswith(name)))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    print(f"\nrefit: SmolLM2-135M in float32, {os.cpu_count()} cores; {ROUNDS} rounds, medians")
    digests()
    try:
        for engine in ("vllm", "megatron"):
            find_interpreter(engine)
    except CkptcheckError as missing:
        print(f"  no live sync: {missing.message} (make engines)")
        return
    source = find_smollm2()
    if source is not None:
        syncs(source)


if __name__ == "__main__":
    main()

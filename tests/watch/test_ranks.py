"""What one rank finds is raised on all ranks, and a rank that hears nothing goes on."""

from __future__ import annotations

import multiprocessing
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.watch import SyncError, Watch, ranks
from tests.watch.toy import NAMES, Engine, Trainer

pytest.importorskip("torch")


def run_rank(rank: int, folder: Path, checks: bool, answers: Any) -> None:
    """Sync five times; at the fourth the engine loses a tensor. The ranks meet after each step, as those of a job do."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    if not checks:
        ranks.PATIENCE = timedelta(seconds=0.2)
    trainer, engine = Trainer(), Engine()
    said: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        watch = Watch(engine, on="raise", enabled=checks and rank == 0)
        for step in range(5):
            try:
                with watch(step=step) as sync:
                    engine.deaf = (NAMES[0],) if step == 3 else ()
                    engine.update(sync.sent(trainer.export()))
            except SyncError as error:
                said.append(f"step {step}: {error} {error.report is not None}")
                break
            trainer.step()
            dist.barrier()
    answers.put((rank, said, [str(each.message) for each in warned]))


@pytest.mark.parametrize("checks", [True, False])
def test_all_ranks_end_together(tmp_path: Path, checks: bool) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=run_rank, args=(rank, tmp_path, checks, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict[int, tuple[list[str], list[str]]]()
    for _ in processes:
        rank, said, warned = answers.get(timeout=120)
        found[rank] = said, warned
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    if checks:
        (mine,), (theirs,) = found[0][0], found[1][0]
        assert mine.startswith("step 3: HIS001 step 3: 1 tensor of the engine did not change")
        assert theirs == mine.replace(" True", " False")
    else:
        for said, warned in found.values():
            assert not said
            assert [each.partition(" (")[0] for each in warned] == [
                "ckptcheck.watch: the ranks cannot exchange what they found"
            ]

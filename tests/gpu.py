"""Refits and probes live on GPUs, and what the refits cost: ``make gpu``. docs/refit.md has the plan and the expected output.

    CKPTCHECK_VLLM_PYTHON=… CKPTCHECK_SGLANG_PYTHON=… CKPTCHECK_TRAINER_PYTHON=… python -m tests.gpu [--size GB]

Each names a Python that has that engine, or megatron-core and transformers, for GPUs; what is not named is left out. Prints a
table: seconds of the sync and of the check, and GB/s of both; then what each probe that a CPU cannot answer says. Exits 1 where
the verdict of a refit is not clean, or a probe has an error; 2 where nothing could run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.paths import ROOT

sys.path[:0] = [str(ROOT / "fixtures")]
COSTS = "cost of the syncs, and of checking them"
NOT_RUN = "Probes that could not run"
HEAD = ("cell", "sent", "sync s", "GB/s", "update s", "check s", "GB/s", "verdict")


@dataclass(frozen=True)
class Cell:
    """gpus: how many it needs; the engine is on the last of them. switch: of the engine's set-up. quantize: packed on the way."""

    engine: str
    transport: str
    trainer: str = "megatron"
    gpus: int = 1
    switch: str = ""
    quantize: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.trainer, "→", self.engine, self.transport, self.switch, self.quantize)))


# SGLang 0.5.23 cannot load packed weights a second time on a GPU (refit/feasibility.py), so only vLLM's are packed.
CELLS = (
    Cell("vllm", "reload"),
    Cell("vllm", "ipc"),
    Cell("vllm", "ipc", trainer="transformers"),
    Cell("vllm", "ipc", switch="compilation=graphs"),
    Cell("vllm", "ipc", switch="speculative=3"),
    Cell("vllm", "reload", quantize="fp8"),
    Cell("vllm", "nccl", gpus=2),
    Cell("sglang", "tensor"),
    Cell("sglang", "flattened_bucket"),
    Cell("sglang", "tensor", switch="compilation=graphs"),
    Cell("sglang", "tensor", switch="speculative=3"),
    Cell("sglang", "nccl", gpus=2),
)


PROBES = ("scheduling", "graphs", "inductor", "casts", "head")
"""What a CPU build of an engine skips, or answers for half of the question: async scheduling, CUDA graphs and inductor."""


DUE = frozenset({"REF001", "REF003", "REF004", "REF008", "REF010", "REF012", "REF013"})
"""Rules that have to pass in every cell, save those of `overdue`."""


def overdue(cell: Cell, report: dict[str, Any]) -> set[str]:
    """Return the rules that did not pass and had to. Where buckets are one stream, their sizes are nothing (REF008); and on a
    GPU logprobs may be off by what rounding explains (REF010), which the rule then says itself.
    """
    from ckptcheck.live.runtime.engines.transports import find_transport

    excused = {"REF008"} if find_transport(cell.engine, cell.transport).joins_buckets else set()
    excused |= {
        each["code"] for each in report["skipped"] if "another process may choose other kernels" in each["reason"]
    }
    return set(DUE) - set(report["passed"]) - excused


def gpus() -> int:
    """Return how many GPUs NVIDIA's driver lists."""
    try:
        said = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return len(said.splitlines())


def held() -> int:
    """Return the MiB that are taken on all GPUs, by whomever."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(int(line) for line in said.splitlines() if line.strip().isdigit())


def python(side: str) -> str | None:
    """Return the Python that the user names for vllm, sglang or the trainer."""
    return os.environ.get(f"CKPTCHECK_{side.upper()}_PYTHON")


def lacking(cell: Cell) -> str:
    """Say what a cell needs and is not there, "" where all is."""
    if (there := gpus()) < cell.gpus:
        return f"needs {cell.gpus} GPU{'s' * (cell.gpus > 1)}, and {there} {'is' if there == 1 else 'are'} here"
    for side in (cell.engine, "trainer"):
        if python(side) is None and side == "trainer":
            return "CKPTCHECK_TRAINER_PYTHON names no Python that has megatron-core and transformers for GPUs"
        if python(side) is None:
            return f"CKPTCHECK_{side.upper()}_PYTHON names no Python that has {side} for GPUs"
    return ""


def refit(source: Path, cell: Cell, *more: str, stderr: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command; its report is JSON. stderr: as of subprocess."""
    command = [
        *(sys.executable, "-m", "ckptcheck", "refit", str(source), "--format", "json", "--dtype", "bfloat16"),
        *("--set", "device=cuda", "--engine", cell.engine, "--transport", cell.transport, "--trainer", cell.trainer),
        *("--set", f"engine-python={python(cell.engine)}", "--set", f"trainer-python={python('trainer')}"),
        *(("--switch", cell.switch) if cell.switch else ()),
        *(("--quantize", cell.quantize) if cell.quantize else ()),
        *(("--set", f"engine-gpus={cell.gpus - 1}") if cell.gpus > 1 else ()),
    ]
    return subprocess.run([*command, *more], stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)


def probe(source: Path, engine: str) -> subprocess.CompletedProcess[str]:
    """Run the probes that need a GPU; the report is JSON."""
    command = [
        *(sys.executable, "-m", "ckptcheck", "parity", "probe", str(source), "--format", "json", "--dtype", "bfloat16"),
        *(
            "--engine",
            engine,
            "--set",
            f"engine-python={python(engine)}",
            "--set",
            f"trainer-python={python('trainer')}",
        ),
        *(word for name in PROBES for word in ("--only", name)),
    ]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def probe_lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each outcome of a report on probes, what could not be measured first."""
    for section in report.get("sections", ()):
        if section["title"] == NOT_RUN:
            yield from (f"not measured: {line}" for line in section["lines"])
    yield from (f"not measured: {each['code']}: {each['reason']}" for each in report.get("skipped", ()))
    yield from (f"{each['severity']}: {each['code']}: {each['message']}" for each in report.get("findings", ()))
    if passed := report.get("passed"):
        yield f"passed: {', '.join(passed)}"


def attach(source: Path, engine: str, url: str) -> subprocess.CompletedProcess[str]:
    """Hold a server that runs already against the checkpoint, with everything on GPUs; the report is JSON."""
    command = [
        *(sys.executable, "-m", "ckptcheck", "attach", url, "--source", str(source), "--format", "json"),
        *(
            "--set",
            "device=cuda",
            "--set",
            f"engine-python={python(engine)}",
            "--set",
            f"trainer-python={python('trainer')}",
        ),
    ]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def row(cell: Cell, report: dict[str, Any]) -> tuple[str, ...]:
    """Sum a report up: its last sync at the engine's own speed, which is the first one after the last step (trial_syncs.py)."""
    verdict = report["verdict"]
    if report.get("error"):
        verdict += f": {report['error']}"
    if report["findings"]:
        verdict += f" ({', '.join(sorted({finding['code'] for finding in report['findings']}))})"
    table = next((section for section in report.get("sections", ()) if section["title"] == COSTS), None)
    if table is None:
        return (str(cell), *["–"] * (len(HEAD) - 2), verdict)
    syncs = [dict(zip(table["columns"], each, strict=True)) for each in table["rows"]]
    last = next(each for each in syncs if each["step"] == syncs[-1]["step"])
    sent = report["counts"]["bytes"] / len(table["rows"]) / 1e9
    rates = [f"{sent / last[name]:.1f}" if last[name] else "–" for name in ("sync s", "check s")]
    seconds = [f"{last[name]:.2f}" for name in ("sync s", "update s", "check s")]
    return (str(cell), f"{sent:.2f} GB", seconds[0], rates[0], *seconds[1:], rates[1], verdict)


def figures() -> None:
    """Print how fast digests are beside the memory, by the trainer's torch."""
    command = [python("trainer") or sys.executable, str(ROOT / "tests" / "benchmarks" / "device.py")]
    subprocess.run(command, check=False)


def models(size: float, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield a real model and a random mixture of experts of so many GB, by name."""
    import smollm2
    import wide

    real = smollm2_folder()
    if not (real / smollm2.DONE).is_file():
        real.parent.mkdir(parents=True, exist_ok=True)
        smollm2.build(real)
    yield "SmolLM2-135M-Instruct", real
    yield f"random Qwen3-MoE, {size:g} GB", wide.write(folder / "moe", size)


def smollm2_folder() -> Path:
    """Return where the real model lies."""
    import smollm2

    return smollm2.default_folder()


def _print_probes(source: Path, engine: str) -> bool:
    """Print what the probes of an engine say; return whether they failed."""
    done = probe(source, engine)
    lines = list(probe_lines(json.loads(done.stdout))) if done.stdout else ["not measured: exit 2"]
    print(f"\nprobes of {engine}\n" + "\n".join(f"  {line}" for line in lines), flush=True)
    return done.returncode != 0


def main() -> None:
    """Run what can be run here."""
    parser = argparse.ArgumentParser(description="Refits and probes live on GPUs.")
    parser.add_argument("--size", type=float, default=4.0, help="GB of the random mixture of experts")
    asked = parser.parse_args()
    figures()
    there = [cell for cell in CELLS if not lacking(cell)]
    for cell in CELLS:
        if why := lacking(cell):
            print(f"  left out: {cell}: {why}")
    engines = dict.fromkeys(cell.engine for cell in CELLS)
    for engine in (each for each in engines if each not in {cell.engine for cell in there}):
        print(f"  left out: probes of {engine} ({', '.join(PROBES)}): {lacking(Cell(engine, ''))}")
    if not there:
        print("nothing ran")
        sys.exit(2)
    failed = 0
    folder = Path(tempfile.mkdtemp(prefix="ckptcheck-gpu-"))
    try:
        for name, source in models(asked.size, folder):
            print(f"\n{name}\n\n| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)
            for cell in there:
                done = refit(source, cell)
                failed += done.returncode != 0
                shown = row(cell, json.loads(done.stdout)) if done.stdout else (str(cell), "could not check (exit 2)")
                print("| " + " | ".join(shown) + " |", flush=True)
            if source == smollm2_folder():
                failed += sum(_print_probes(source, engine) for engine in sorted({cell.engine for cell in there}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

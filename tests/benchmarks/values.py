"""A scan of values: a checkpoint in the page cache, all rules on, against the fastest numpy can read the same bytes.

The ceiling is one thread's ``numpy.max`` over the mapped bytes as uint64, in pieces of 512 KiB. Every figure is a ratio of
times measured one after the other in this process; the median of the rounds counts.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.values import pattern_max
from ckptcheck.values.detectors.row_stats import compute_row_stats
from ckptcheck.values.value_pass import ValuePass
from tests.benchmarks.figures import line
from tests.benchmarks.headers import ROOT

ROUNDS = 15
HIDDEN, VOCABULARY = 4096, 32768
PIECE = 1 << 19


def write(folder: Path, gigabytes: float) -> int:
    """Write a Llama in bf16 with random weights, in shards of four layers; return its bytes of data."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    values = (random.standard_normal(1 << 25, dtype=np.float32) * 0.02).view(np.uint32) >> 16
    block = values.astype(np.uint16).tobytes()
    layers = max(2, round((gigabytes * 1e9 - 4 * VOCABULARY * HIDDEN) / (2 * 12 * HIDDEN * HIDDEN)))
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "o": (HIDDEN, HIDDEN)}
    groups: list[dict[str, tuple[int, ...]]] = [
        {
            "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
            "lm_head.weight": (VOCABULARY, HIDDEN),
            "model.norm.weight": (HIDDEN,),
        }
    ]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        part = {f"{at}.self_attn.{name}_proj.weight": shape for name, shape in shapes.items()}
        part |= {f"{at}.mlp.{name}_proj.weight": (8 * HIDDEN // 3, HIDDEN) for name in ("gate", "up")}
        part |= {f"{at}.mlp.down_proj.weight": (HIDDEN, 8 * HIDDEN // 3)}
        part |= {f"{at}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        groups.append(part)
    weight_map, size, shift = {}, 0, 0
    for number, part in enumerate(groups):
        name = f"model-{number + 1:05}-of-{len(groups):05}.safetensors"
        header, reached = {"__metadata__": {"format": "pt"}}, 0
        for tensor, shape in part.items():
            nbytes = 2 * int(np.prod(shape))
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [reached, reached + nbytes]}  # type: ignore[dict-item]
            reached += nbytes
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor, shape in part.items():
                if "norm" in tensor:  # from 0.94 to 1.24, as training leaves them
                    file.write(random.integers(0x3F70, 0x3FA0, shape[0], dtype=np.uint16).tobytes())
                    continue
                left = 2 * int(np.prod(shape))
                while left:  # each tensor begins elsewhere in the block, so that no two are the same
                    piece = block[shift % len(block) :][:left]
                    file.write(piece)
                    left -= len(piece)
                    shift += len(piece) + 2 * 4099
        size += reached
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": layers,
        "intermediate_size": 8 * HIDDEN // 3, "num_attention_heads": 32, "vocab_size": VOCABULARY, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return size


def ceiling(folder: Path, part: int = 0, of: int = 1) -> None:
    """Read every byte once, as fast as numpy can; or those of every `of`-th file."""
    for path in sorted(folder.glob("*.safetensors"))[part::of]:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            words = np.frombuffer(mapped, np.uint64, path.stat().st_size // 8)
            for start in range(0, words.size, PIECE // 8):
                words[start : start + PIECE // 8].max()
            del words


def two_ceilings(folder: Path) -> None:
    """The same in two processes: what two cores of this machine can do at all."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=ceiling, args=(folder, part, 2)) for part in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


RULES = rule_loader.load_rules()


def scan(folder: Path, jobs: int) -> None:
    """Scan with all rules; stop if it finds anything or cannot finish."""
    reader = ValuePass(jobs=jobs)
    ckpt = open_checkpoint(str(folder), value_reader=reader)
    try:
        reader.start(ckpt)
        report = run_rules(ckpt, RULES)
    finally:
        reader.close()
    if report.verdict != "clean":
        sys.exit(f"the benchmark's checkpoint is not clean: {report.findings[:2]} {report.crashed[:2]}")


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _against_torch(folder: Path) -> None:
    import torch

    torch.set_num_threads(1)
    ckpt = open_checkpoint(str(folder))
    name = ckpt.components.embedding
    assert name is not None
    shard = ckpt.shards[ckpt.tensor_to_file[name]]
    raw = bytearray(ckpt.source.read(shard.name, shard.data_start, shard.tensors[name].nbytes))
    weight = torch.frombuffer(raw, dtype=torch.bfloat16).reshape(VOCABULARY, HIDDEN)
    bits = np.frombuffer(raw, np.uint8)
    from ckptcheck.values.chunk_scan import scan_chunk

    naive = [seconds(lambda: (weight.isnan().any(), weight.abs().max())) for _ in range(ROUNDS)]
    ours = [seconds(lambda: scan_chunk(bits, "BF16")) for _ in range(ROUNDS)]
    line(
        "torch isnan().any() + abs().max() / our scan, one thread",
        f"{statistics.median(naive) / statistics.median(ours):.1f}",
        "≥ 8",
    )
    norms = [seconds(lambda: weight.float().norm(dim=1)) for _ in range(ROUNDS)]
    rows = [seconds(lambda: compute_row_stats(ckpt, name)) for _ in range(ROUNDS)]
    line(
        "NeMo-RL's row norms / our full row statistics, reading included",
        f"{statistics.median(norms) / statistics.median(rows):.1f}",
        "≥ 2",
    )


def _memory(folder: Path) -> float:
    """Peak anonymous memory of a scan in a process of its own, workers included, in MB."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); sys.path.insert(0, '.')\n"
        "from pathlib import Path; from tests.benchmarks.values import scan, anonymous\n"
        "import threading; peak = [0.0]; over = threading.Event()\n"
        "def watch():\n"
        "    while not over.wait(0.01): peak[0] = max(peak[0], anonymous())\n"
        "thread = threading.Thread(target=watch); thread.start(); scan(Path(sys.argv[1]), 2); over.set(); thread.join()\n"
        "print(peak[0])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(ROOT)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(result.stdout.split()[-1])


def anonymous() -> float:
    """Anonymous memory of this process and its children now, in MB (Linux)."""
    total = 0
    me = Path("/proc/self")
    children = (me / "task").glob("*/children")
    pids = ["self", *(pid for path in children for pid in path.read_text().split())]
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += sum(int(row.split()[1]) for row in status.splitlines() if row.startswith("RssAnon"))
    return total / 1000


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "ckpt"
        size = write(folder, 4)
        ceiling(folder)
        print(
            f"\nvalues: {size / 1e9:.1f} GB of bf16 in the page cache, all rules on; {ROUNDS} rounds, medians; the kernel is "
            + ("compiled" if pattern_max.is_compiled() else "numpy: see ckptcheck doctor")
        )
        times: dict[str, list[float]] = {"ceiling": [], "two ceilings": [], "one": [], "two": [], "numpy": []}
        for _ in range(ROUNDS):
            times["ceiling"].append(seconds(lambda: ceiling(folder)))
            times["two ceilings"].append(seconds(lambda: two_ceilings(folder)))
            times["one"].append(seconds(lambda: scan(folder, 1)))
            times["two"].append(seconds(lambda: scan(folder, 2)))
            with mock.patch.object(pattern_max, "_load_kernel", return_value=None):
                times["numpy"].append(seconds(lambda: scan(folder, 2)))
        for what, name, goal in (
            ("speed of the whole scan / one thread's ceiling, --jobs 1", "one", "≥ 0.35"),
            ("speed of the whole scan / one thread's ceiling, --jobs 2", "two", "≥ 0.4"),
            ("the same where nothing was compiled, numpy's two maxima", "numpy", ""),
            ("two processes that only take numpy.max / one thread's ceiling", "two ceilings", ""),
        ):
            share = statistics.median(a / b for a, b in zip(times["ceiling"], times[name], strict=True))
            line(what, f"{share:.2f}", goal)
        line("scan with --jobs 2, GB/s", f"{size / 1e9 / statistics.median(times['two']):.1f}", "")
        _against_torch(folder)
        peaks = [f"{_memory(folder):.0f}"]
        for gigabytes in (1, 16):
            other = Path(work) / str(gigabytes)
            write(other, gigabytes)
            peaks.append(f"{_memory(other):.0f}")
        line("peak anonymous memory at 4, 1 and 16 GB, MB", "/".join(peaks), "≤ 300")


if __name__ == "__main__":
    main()

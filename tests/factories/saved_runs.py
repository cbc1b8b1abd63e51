"""Writes the saves of a run as trainers lay them out, without torch: weights that move a little, Adam's moments, counters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.factories import dcp
from tests.factories.dcp import Call, Global, Raw, write_pickle
from tests.factories.torch_archives import write_archive

Array = NDArray[np.float32]
SHAPES = {"model.embed_tokens.weight": (96, 32), "model.norm.weight": (32,), "lm_head.weight": (96, 32)} | {
    f"model.layers.{layer}.{name}.weight": shape
    for layer in range(3)
    for name, shape in {"self_attn.q_proj": (32, 32), "mlp.up_proj": (64, 32), "input_layernorm": (32,)}.items()
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96, "rope_theta": 10000.0,
}  # fmt: skip


def draw_weights(step: int, *, each: int = 10) -> dict[str, Array]:
    """Return the weights at a step: those of the beginning, and a small move for each save since."""
    start = np.random.default_rng(1)
    weights = {name: start.standard_normal(shape).astype("<f4") for name, shape in SHAPES.items()}
    for number in range(each, step + 1, each):
        draw = np.random.default_rng([2, number])
        weights = {
            name: (value + 0.01 * draw.standard_normal(value.shape)).astype("<f4") for name, value in weights.items()
        }
    return weights


def draw_moments(step: int) -> dict[str, Array]:
    """Return Adam's first moments at a step."""
    draw = np.random.default_rng([3, step])
    return {name: draw.standard_normal(shape).astype("<f4") for name, shape in SHAPES.items()}


def write_torch_file(path: Path, value: Any) -> None:
    """Write a torch.save file of dictionaries, lists, numbers and numpy arrays, which become tensors."""
    storages: list[Array] = []

    def encode(entry: Any) -> Any:
        if isinstance(entry, np.ndarray):
            storages.append(entry)
            number = str(len(storages) - 1)
            persistent = Raw(
                dcp.write_opcodes(("storage", Global("torch", "FloatStorage"), number, "cpu", entry.size)) + b"Q"
            )
            strides = tuple(step // entry.itemsize for step in entry.strides)
            arguments = (persistent, 0, entry.shape, strides, False, Call(Global("collections", "OrderedDict")))
            return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
        if isinstance(entry, Mapping):
            return {key: encode(inner) for key, inner in entry.items()}
        if isinstance(entry, list):
            return [encode(inner) for inner in entry]
        if isinstance(entry, float):
            return Raw(b"G" + np.array(entry, ">f8").tobytes())
        return entry

    pickle = write_pickle(encode(value))
    records = {"data.pkl": pickle, "byteorder": b"little"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        write_archive(records | {f"data/{number}": storage.tobytes() for number, storage in enumerate(storages)})
    )


def write_trainer_save(run: Path, step: int, *, weights_of: int | None = None, moments_of: int | None = None) -> Path:
    """Write ``checkpoint-N`` as transformers' Trainer does. weights_of, moments_of: the step whose bytes it has; None: its own."""
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(draw_weights(weights_of or step), folder / "model.safetensors", {"format": "pt"})
    moments = draw_moments(moments_of or step)
    state = {
        number: {"step": np.array(float(step), "<f4"), "exp_avg": value, "exp_avg_sq": value * value}
        for number, value in enumerate(moments.values())
    }
    write_torch_file(
        folder / "optimizer.pt", {"state": state, "param_groups": [{"lr": 1e-4, "params": list(range(len(moments)))}]}
    )
    write_torch_file(folder / "scheduler.pt", {"last_epoch": step, "_step_count": step + 1, "_last_lr": [1e-4]})
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    log = [{"step": at, "learning_rate": 1e-4, "loss": 2.0} for at in range(5, step + 1, 5)]
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": log}), encoding="utf-8")
    return folder


def write_rank_files(run: Path, step: int, *, ranks: int = 2, stale: tuple[int, int] | None = None) -> Path:
    """Write ``global_step_N/actor`` as verl's FSDP workers do: a file of weights, of moments and of counters for each rank.

    stale: a rank, and the step whose files it writes instead.
    """
    folder = run / f"global_step_{step}" / "actor"
    for rank in range(ranks):
        of = stale[1] if stale is not None and stale[0] == rank else step
        weights, moments = draw_weights(of), draw_moments(of)
        share = {name: value[rank::ranks].copy() for name, value in weights.items()}
        name = f"world_size_{ranks}_rank_{rank}.pt"
        write_torch_file(folder / f"model_{name}", share)
        state = {name: {"exp_avg": value[rank::ranks].copy()} for name, value in moments.items()}
        write_torch_file(folder / f"optim_{name}", {"state": state, "param_groups": [{"lr": 1e-6}]})
        write_torch_file(folder / f"extra_state_{name}", {"lr_scheduler": {"last_epoch": of, "_step_count": of + 1}})
    (run / "latest_checkpointed_iteration.txt").write_text(str(step), encoding="ascii")
    return folder

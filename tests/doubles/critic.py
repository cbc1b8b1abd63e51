"""Runs in Megatron's interpreter: a critic on megatron-core and the same one in transformers, trained on the same batches.

The models, and how they get along without a GPU, are those of the fixtures. Every verb works in forked processes: autograd
keeps threads, which a fork loses.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")
sys.path.append(str(Path(__file__).parents[2] / "fixtures"))

import megatron.core.dist_checkpointing as checkpointing  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron_cpu import build, fill, without_cuda  # noqa: E402
from megatron_layout import VOCABULARY, Layout, arguments, hugging_face, megatron_names  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from transformers import AutoConfig, AutoModelForTokenClassification  # noqa: E402

BATCHES, SIZE, LENGTH = 2, 2, 12
SAVED = "iter_0000100"


class OnCpu(TorchFunctionMode):
    """The schedules make their counters with ``device="cuda"``."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        return function(*arguments, **(named | {"device": "cpu"} if named.get("device") == "cuda" else named))


def batches() -> list[tuple[Any, Any]]:
    """Tokens [B, S] and returns [B, S - 1], the same on every rank and in every process."""
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randint(0, VOCABULARY, (SIZE, LENGTH), generator=generator),
            torch.randn(SIZE, LENGTH - 1, generator=generator),
        )
        for _ in range(BATCHES)
    ]


def values_of(output: Any) -> Any:
    """Output [B, S, 1] → the values of all tokens but the last, [B, S - 1]."""
    return output[:, :-1].squeeze(-1)


def forked(world: int, work: Callable[[int], Any]) -> list[Any]:
    """Do work(rank) in a process each and return what they return. Raises RuntimeError with the traceback of the first to fail."""
    ranks: dict[int, int] = {}
    for rank in range(world):
        if (process := os.fork()) == 0:
            try:
                Path(f"rank-{rank}.json").write_text(json.dumps(work(rank)))
                os._exit(0)
            except BaseException:
                Path(f"rank-{rank}.txt").write_text(traceback.format_exc())
            finally:
                os._exit(1)
        ranks[process] = rank
    while ranks:
        process, status = os.wait()
        rank = ranks.pop(process)
        if status:
            for other in ranks:  # they would wait for it for ever
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            raise RuntimeError(f"rank {rank}: {Path(f'rank-{rank}.txt').read_text()}")
    return [json.loads(Path(f"rank-{rank}.json").read_text()) for rank in range(world)]


def reference(folder: str, layers: int) -> dict[str, Any]:
    """Write a Qwen3 to folder/gpt and its critic to folder/critic; return what that computes, its gradients in folder/gradients."""

    def work(_: int) -> dict[str, Any]:
        there = Path(folder)
        hugging_face(Layout(layers=layers)).save_pretrained(there / "gpt")
        model = AutoModelForTokenClassification.from_pretrained(there / "gpt", num_labels=1, dtype=torch.float32).eval()
        with torch.no_grad():
            model.score.weight.copy_(
                0.1 * torch.randn(model.score.weight.shape, generator=torch.Generator().manual_seed(11))
            )
            model.score.bias.zero_()  # Megatron's head has none
        model.save_pretrained(there / "critic")
        outputs = [(model(tokens).logits, returns) for tokens, returns in batches()]
        found = [values_of(output) for output, _ in outputs]
        losses = [
            torch.nn.functional.mse_loss(values, returns) for values, (_, returns) in zip(found, outputs, strict=True)
        ]
        loss = torch.stack(losses).mean()
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        save_file(gradients, there / "gradients")
        return {
            "shape": list(outputs[0][0].shape),
            "values": [values.tolist() for values in found],
            "loss": loss.item(),
        }

    return forked(1, work)[0]


def train(folder: str, layout: dict[str, Any]) -> list[dict[str, Any]]:
    """Build the critic of folder, run it forward and backward, save it, load it, load it from a GPT; what each rank saw."""
    chosen = Layout(critic=True, **layout)
    meeting = str(Path.cwd() / f"meeting-{os.getpid()}-{len(os.listdir())}")
    return forked(chosen.world, lambda rank: _rank(rank, chosen, Path(folder), meeting))


def _rank(rank: int, layout: Layout, folder: Path, meeting: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(meeting, layout.world), rank=rank, world_size=layout.world)
    without_cuda()
    OnCpu().__enter__()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.chunks if layout.chunks > 1 else None,
    )
    model_parallel_cuda_manual_seed(1)
    config = AutoConfig.from_pretrained(folder / "gpt")
    weights = megatron_names(load_file(folder / "gpt/model.safetensors"), config)
    critic, gpt = _built(config, layout, weights), _built(config, replace(layout, critic=False), weights)
    seen = _learned(critic, layout)
    seen["heads"] = [
        [name for name, _ in chunk.named_parameters() if not name.startswith(("decoder.", "embedding."))]
        for chunk in critic
    ]
    seen["last"] = [chunk.post_process for chunk in critic]
    seen["gradients"] = _compared(critic, folder, config)
    work = folder / f"pp{layout.pp}-{layout.chunks}"
    seen["again"] = _saved_and_loaded(critic, config, layout, work / "critic")
    seen["from_gpt"] = _loaded_from(gpt, critic, config, layout, work / "gpt")
    dist.barrier()
    return seen


def _built(config: Any, layout: Layout, weights: dict[str, Any]) -> list[Any]:
    chunks = [build(config, layout, chunk if layout.chunks > 1 else None) for chunk in range(layout.chunks)]
    for chunk in chunks:
        fill(chunk, weights, layout)
    return chunks


def _learned(models: list[Any], layout: Layout) -> dict[str, Any]:
    """Run all batches by Megatron's own schedule; gradients stay in the models."""
    shapes: list[list[int]] = []
    values: list[Any] = []

    def forward(data: Iterator[tuple[Any, Any]], model: Any) -> Any:
        tokens, returns = next(data)
        positions = torch.arange(LENGTH).expand(SIZE, -1)
        return model(tokens, positions, None), partial(loss_of, returns)

    def loss_of(returns: Any, output: Any) -> Any:
        shapes.append(list(output.shape))
        values.append(values_of(output).tolist())
        loss = torch.nn.functional.mse_loss(values_of(output), returns)
        return loss, {"loss": loss.item()}

    losses = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=[iter(batches()) for _ in models] if len(models) > 1 else iter(batches()),
        model=models if len(models) > 1 else models[0],
        num_microbatches=BATCHES,
        seq_length=LENGTH,
        micro_batch_size=SIZE,
        forward_only=False,
    )
    return {"shapes": shapes, "values": values, "losses": [part["loss"] for part in losses]}


def _whole_name(model: Any, name: str) -> str:
    """Number a layer over the whole model."""
    numbers = [layer.layer_number - 1 for layer in model.decoder.layers]
    return re.sub(r"(?<=^decoder\.layers\.)\d+", lambda found: str(numbers[int(found[0])]), name)


def _compared(models: list[Any], folder: Path, config: Any) -> dict[str, list[float]]:
    """Name over the whole model → how far its gradient is from transformers', and the largest there."""
    theirs = load_file(folder / "gradients")
    head = theirs["score.weight"]
    expected = megatron_names(theirs | {"lm_head.weight": theirs["model.embed_tokens.weight"]}, config)
    expected["value_head.weight"] = head
    found = {}
    for model in models:
        for local, weight in model.named_parameters():
            name = _whole_name(model, local)
            found[name] = [(weight.grad - expected[name]).abs().max().item(), expected[name].abs().max().item()]
    return found


def _sharded(models: list[Any], config: Any, layout: Layout) -> dict[str, Any]:
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    state: dict[str, Any] = {"args": arguments(config, layout), "checkpoint_version": 3.0, "iteration": 100}
    for chunk, model in enumerate(models):
        state[f"model{chunk}" if len(models) > 1 else "model"] = model.sharded_state_dict(metadata=metadata)
    return state


def _save(models: list[Any], config: Any, layout: Layout, run: Path) -> None:
    (run / SAVED).mkdir(parents=True, exist_ok=True)
    dist.barrier()
    checkpointing.save(_sharded(models, config, layout), str(run / SAVED))
    dist.barrier()
    (run / "latest_checkpointed_iteration.txt").write_text("100", encoding="ascii")


def _fresh(config: Any, layout: Layout) -> list[Any]:
    """Build the chunks with weights that no checkpoint holds."""
    models = [build(config, layout, chunk if layout.chunks > 1 else None) for chunk in range(layout.chunks)]
    with torch.no_grad():
        for model in models:
            for weight in model.parameters():
                weight.fill_(-7.0)
    return models


def _load(models: list[Any], config: Any, layout: Layout, run: Path) -> dict[str, Any]:
    """Load what there is; say what was asked for in vain, what nobody asked for, and what torch missed."""
    asked = {name: part for name, part in _sharded(models, config, layout).items() if name.startswith("model")}
    state, left, absent = checkpointing.load(asked, str(run / SAVED), strict="return_all")
    missed: set[str] = set()
    for chunk, model in enumerate(models):
        part = state[f"model{chunk}" if len(models) > 1 else "model"]
        result = model.load_state_dict(part, strict=False)
        missed |= {name for name in result.missing_keys if not name.endswith("_extra_state")} | set(
            result.unexpected_keys
        )
    return {"absent": sorted(absent), "left": sorted(left), "missed": sorted(missed)}


def _different(ones: list[Any], others: list[Any]) -> list[str]:
    pairs = [
        (_whole_name(one, name), weight, dict(other.named_parameters())[name])
        for one, other in zip(ones, others, strict=True)
        for name, weight in one.named_parameters()
    ]
    assert pairs
    return [name for name, weight, its in pairs if not torch.equal(weight, its)]


def _saved_and_loaded(critic: list[Any], config: Any, layout: Layout, run: Path) -> dict[str, Any]:
    _save(critic, config, layout, run)
    again = _fresh(config, layout)
    seen = _load(again, config, layout, run)
    return seen | {"different": _different(critic, again)}


def _loaded_from(gpt: list[Any], critic: list[Any], config: Any, layout: Layout, run: Path) -> dict[str, Any]:
    _save(gpt, config, replace(layout, critic=False), run)
    started = _fresh(config, layout)
    seen = _load(started, config, layout, run)
    return seen | {"different": _different(critic, started)}


RPC_METHODS = {"reference": reference, "train": train}

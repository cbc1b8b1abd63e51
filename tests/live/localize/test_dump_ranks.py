"""Dumps of a real model that runs on several ranks: every rank is compared, and a fault is named where it was planted."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import live
import pytest

from ckptcheck.checkpoint.distributed_tensor import Placement
from ckptcheck.checkpoint.torch_file import read_torch_file
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.localize.dumps import compare_dumps

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "localization"]
FIRST, SECOND = list(range(40, 60)), list(range(100, 120))
LAYERS = 3
MEGATRON = {
    "self_attn.o_proj": "self_attention.linear_proj",
    "mlp.down_proj": "mlp.linear_fc2",
    "post_attention_layernorm": "pre_mlp_layernorm",
    "input_layernorm": "input_layernorm",
}
"""Modules that have one counterpart in Megatron; the fused ones are left out."""


class Recorder:
    """Writes what the modules of one rank are given and give, as msProbe's PrecisionDebugger does (tensor, L0)."""

    def __init__(self, folder: Path, rank: int, rename: Callable[[str], str | None], fault: tuple[str, float] | None):
        self.place = folder / "step0" / f"rank{rank}"
        self.tensors = self.place / "dump_tensor_data"
        self.tensors.mkdir(parents=True)
        self.data: dict[str, Any] = {}
        self.handles: list[Any] = []
        self.rename, self.fault, self.turns, self.distributed = rename, fault, False, False

    def watch(self, module: Any, name: str) -> None:
        # first of all hooks, it sees the DTensors that parallelize_module turns into local tensors
        hook = lambda *call: self._keep(name, *call)  # noqa: E731
        self.handles.append(module.register_forward_hook(hook, with_kwargs=True, prepend=self.distributed))

    def _keep(self, name: str, module: Any, arguments: Any, keywords: Any, output: Any) -> Any:
        changed = output * self.fault[1] if self.fault and name == self.fault[0] else None
        if (written := self.rename(name)) is not None:
            call = f"Module.{written}.{type(module).__name__}.forward.0"
            self.data[call] = {
                "input_args": [self._save(value, f"{call}.input.{n}") for n, value in enumerate(arguments)],
                "input_kwargs": {key: self._save(value, f"{call}.kwargs.{key}") for key, value in keywords.items()},
                "output": [self._save(output if changed is None else changed, f"{call}.output.0")],
            }
        return changed

    def _save(self, value: Any, name: str) -> Any:
        if not torch.is_tensor(value):
            return None
        value = value.to_local() if hasattr(value, "to_local") and not self.distributed else value
        if self.turns and value.dim() == 3 and value.is_floating_point():
            value = value.transpose(0, 1)  # Megatron: [tokens, batch, width]
        if hasattr(value, "trigger_wait"):
            value.trigger_wait()
        # a clone of a partial sum is the whole of it
        torch.save(value.detach() if self.distributed else value.detach().clone(), self.tensors / f"{name}.pt")
        told = {"type": "torch.Tensor", "dtype": str(value.dtype), "shape": list(value.shape)}
        return told | {"data_name": f"{name}.pt"}

    def finish(self) -> None:
        for handle in self.handles:
            handle.remove()
        (self.place / "dump.json").write_text(json.dumps({"task": "tensor", "level": "L0", "data": self.data}))


@cache
def load(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def run_rank(rank: int, how: str, ranks: int, port: int, source: Path, setups: dict[Path, dict[str, Any]]) -> None:
    """Run the model on one of several ranks, and dump it. how: tensor or pipeline. setups: folder → arguments of `run_one`."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for out, setup in setups.items():
        run_one(rank, how, ranks, source, out, **setup)
        dist.barrier()
    dist.destroy_process_group()


def run_one(
    rank: int,
    how: str,
    ranks: int,
    source: Path,
    out: Path,
    prompts: Any = (FIRST,),
    padding: str = "",
    fault: tuple[str, float] | None = None,
    fault_rank: int | None = None,
    distributed: bool = False,
) -> None:
    """Run one forward of one rank and dump it.

    prompts: one for each data-parallel rank. fault: module, and factor of its output. distributed: DTensors are written as they
    are.
    """
    model = load.__wrapped__(source) if how == "tensor" else load(source)
    fault = fault if fault_rank in (rank, None) else None
    with torch.no_grad():
        if how == "pipeline":
            run_stage(rank, ranks, model, out, fault, prompts[0])
            return
        if how == "tensor":
            shard(model, ranks)
        recorder = Recorder(out, rank, lambda name: name, fault)
        recorder.distributed = distributed
        for name, module in model.named_modules():
            if name:
                recorder.watch(module, name)
        model(**batch(prompts[rank % len(prompts)], padding))
        recorder.finish()


def batch(prompts: list[int] | list[list[int]], padding: str) -> dict[str, Any]:
    """Return the input of one rank. padding: left or right fills several sequences up with token 0."""
    rows = prompts if isinstance(prompts[0], list) else [prompts]
    width = max(map(len, rows))
    fill = [[0] * (width - len(row)) for row in rows]
    ids = [space + row if padding == "left" else row + space for row, space in zip(rows, fill, strict=True)]
    kept = [[0] * len(space) + [1] * len(row) if padding == "left" else [1] * len(row) + [0] * len(space)
            for row, space in zip(rows, fill, strict=True)]  # fmt: skip
    mask = torch.tensor(kept)
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
    }


def shard(model: Any, ranks: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model.model.layers:
        plan = {f"self_attn.{which}_proj": ColwiseParallel() for which in "qkv"}
        plan |= {f"mlp.{which}_proj": ColwiseParallel() for which in ("gate", "up")}
        plan |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
        parallelize_module(layer, mesh, plan)


def run_stage(rank: int, ranks: int, model: Any, out: Path, fault: Any, prompt: list[int]) -> None:
    """Run one stage of a pipeline, and dump it under Megatron's names: each stage counts its layers from 0."""
    import torch.distributed as dist

    share = LAYERS // ranks
    mine = range(rank * share, (rank + 1) * share)

    def rename(name: str) -> str | None:
        if name == "model.embed_tokens":
            return "0.module.module.embedding.word_embeddings"
        if name == "model.norm":
            return "0.module.module.decoder.final_layernorm"
        number, _, part = name.removeprefix("model.layers.").partition(".")
        local = f"0.module.module.decoder.layers.{int(number) - mine[0]}" if number.isdigit() else ""
        return local if not part else f"{local}.{MEGATRON[part]}" if part in MEGATRON else None

    recorder = Recorder(out, rank, rename, fault)
    recorder.turns = True
    for name, module in model.named_modules():
        number = name.removeprefix("model.layers.").partition(".")[0]
        if (number.isdigit() and int(number) in mine) or name in ("model.embed_tokens", "model.norm"):
            recorder.watch(module, name)
    ids = torch.tensor([prompt])
    hidden = torch.zeros(1, len(prompt), model.config.hidden_size)
    if rank:
        dist.recv(hidden, rank - 1)
    else:
        hidden = model.model.embed_tokens(ids)
    turns = model.model.rotary_emb(hidden, torch.arange(len(prompt))[None])
    mask = torch.full((len(prompt), len(prompt)), float("-inf")).triu(1)[None, None]
    for number in mine:
        made = model.model.layers[number](hidden, attention_mask=mask, position_embeddings=turns)
        hidden = made[0] if isinstance(made, tuple) else made
    if rank < ranks - 1:
        dist.send(hidden, rank + 1)
    else:
        model.model.norm(hidden)
    recorder.finish()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**live.BASE | {"num_hidden_layers": LAYERS, "initializer_range": 0.1})
    folder = tmp_path_factory.mktemp("ranks") / "llama"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


DOWN = "model.layers.1.mlp.down_proj"


def run_together(how: str, ranks: int, source: Path, folder: Path) -> tuple[Path, Path]:
    """Run the model on several processes, once as it is and once with a fault; return the folders of both dumps."""
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fault = {"fault": (DOWN, 1.05), "fault_rank": 1 if how == "tensor" else None}
    setups: dict[Path, dict[str, Any]] = {folder / "cut": {}, folder / "faulty": fault}
    if how == "tensor":
        setups |= {folder / "kept": {"distributed": True}, folder / "kept-faulty": fault | {"distributed": True}}
    mp.spawn(run_rank, (how, ranks, port, source, setups), ranks)
    return folder / "cut", folder / "faulty"


@pytest.fixture(scope="module")
def tensor_parallel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return run_together("tensor", 2, source, tmp_path_factory.mktemp("tensor"))


@pytest.fixture(scope="module")
def pipeline(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return run_together("pipeline", LAYERS, source, tmp_path_factory.mktemp("pipeline"))


Run = Callable[..., Path]


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Run:
    """Run data-parallel ranks, which need nothing of each other, and return the folder of the dump."""

    def started(name: str, ranks: int, **setup: Any) -> Path:
        for rank in range(ranks):
            run_one(rank, "data", ranks, source, tmp_path / name, **setup)
        return tmp_path / name

    return started


def judge(here: Path, there: Path, source: Path | None = None) -> tuple[dict[str, Finding], Report]:
    report = run_rules(compare_dumps(here, there, source, "float32", None), RULES)
    assert not report.crashed
    return {finding.code: finding for finding in report.findings}, report


@pytest.mark.parametrize("with_config", [True, False])
@pytest.mark.slow
def test_one_of_two_tensor_parallel_ranks_is_wrong(
    run: Run, source: Path, tensor_parallel: tuple[Path, Path], with_config: bool
) -> None:
    whole, (cut, faulty) = run("trainer", 1), tensor_parallel
    config = source if with_config else None
    found, report = judge(whole, cut, config)
    assert (found, report.skipped) == ({}, ())
    assert report.counts["tensors"] == LAYERS * 12 + 3
    found, _ = judge(whole, faulty, config)
    assert found["LOC001"].key == found["LOC006"].key == DOWN
    assert "rank 1 and rank 0 of faulty hold the same output after a reduction" in found["LOC006"].message
    assert "rank 1: 1.05 times what it should be" in found["LOC006"].message
    found, _ = judge(cut, faulty, config)
    assert found["LOC006"].key == DOWN


@pytest.mark.slow
def test_dtensors_are_read_with_their_placement(
    run: Run, source: Path, tensor_parallel: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, folder = run("trainer", 1), tensor_parallel[0].parent
    tensors = folder / "kept" / "step0" / "rank1" / "dump_tensor_data"
    partial = read_torch_file(tensors / f"Module.{DOWN}.Linear.forward.0.output.0.pt")
    assert partial.placements == (Placement("partial", reduction="sum"),)
    assert (partial.mesh, partial.coordinates) == ((2,), (1,))
    columns = read_torch_file(tensors / "Module.model.layers.0.self_attn.q_proj.Linear.forward.0.output.0.pt")
    assert columns.placements[0].kind == "shard"
    assert columns.column_shards == 2
    for config in (source, None):
        found, report = judge(whole, folder / "kept", config)
        assert (found, report.skipped) == ({}, ())
        assert report.counts["tensors"] == LAYERS * 12 + 3
        found, _ = judge(whole, folder / "kept-faulty", config)
        assert found["LOC001"].key == DOWN
    # without rank 1 a partial sum says nothing
    shutil.copytree(folder / "kept", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "step0" / "rank1")
    _, report = judge(whole, tmp_path / "half", source)
    assert f"{2 * LAYERS} partial sums of rank 0, whose other ranks are not in the dump" in str(report.skipped)


@pytest.mark.slow
def test_a_broken_dtensor_is_a_sentence(tensor_parallel: tuple[Path, Path], tmp_path: Path) -> None:
    tensors = tensor_parallel[0].parent / "kept" / "step0" / "rank1" / "dump_tensor_data"
    raw = (tensors / f"Module.{DOWN}.Linear.forward.0.output.0.pt").read_bytes()
    draw = random.Random(0)
    for _ in range(300):
        broken = bytearray(raw)
        for _ in range(3):
            broken[draw.randrange(len(raw))] = draw.randrange(256)
        (tmp_path / "x.pt").write_bytes(broken)
        with contextlib.suppress(CkptcheckError):
            read_torch_file(tmp_path / "x.pt")


@pytest.mark.slow
def test_one_of_two_data_parallel_ranks_is_wrong(run: Run, source: Path) -> None:
    prompts = [FIRST, SECOND]
    right = run("trainer", 2, prompts=prompts)
    for given in (prompts, [SECOND, FIRST]):
        name = f"engine{given[0][0]}"
        found, report = judge(right, run(name, 2, prompts=given))
        assert (found.keys() - {"LOC007"}, report.skipped) == (set(), ())
        assert ("LOC007" in found) == (given is not prompts)
    found, _ = judge(right, run("faulty", 2, prompts=prompts, fault=(DOWN, 1.05), fault_rank=1))
    assert found.keys() == {"LOC001"}
    assert found["LOC001"].key == DOWN
    assert "on rank 1 ↔ rank 1 alone, while rank 0 ↔ rank 0 agree" in found["LOC001"].message


def test_copies_of_one_prompt_are_no_shards(run: Run, source: Path) -> None:
    right = run("trainer", 1)
    found, _ = judge(right, run("engine", 2, fault=(DOWN, 1.05), fault_rank=1))
    assert found["LOC001"].key == DOWN
    assert "on rank 0 ↔ rank 1 alone, while rank 0 ↔ rank 0 agree" in found["LOC001"].message


@pytest.mark.slow
def test_a_fault_in_a_later_pipeline_stage_has_the_models_number(run: Run, pipeline: tuple[Path, Path]) -> None:
    whole = run("engine", 1)
    found, report = judge(pipeline[0], whole)
    assert found.keys() == {"LOC002"}
    assert report.counts["tensors"] == LAYERS * 6 + 2
    assert [code for code, _ in report.skipped] == ["LOC001"]
    found, _ = judge(pipeline[1], whole)
    assert found["LOC001"].key == DOWN


@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_and_order_are_no_fault(run: Run, source: Path, padding: str) -> None:
    short, long = FIRST[:13], SECOND
    padded = run("trainer", 1, prompts=[[long, short]], padding=padding)
    packed = run("engine", 2, prompts=[short, long])
    found, report = judge(padded, packed)
    assert found.keys() == {"LOC002", "LOC007"}
    assert "trainer has 7 tokens that engine has not (padding); ckptcheck" in str(report.findings)
    found, _ = judge(padded, run("faulty", 2, prompts=[short, long], fault=(DOWN, 1.05), fault_rank=0))
    assert found["LOC001"].key == DOWN
    assert "on rank 0 ↔ rank 0 alone, while rank 0 ↔ rank 1 agree" in found["LOC001"].message


def test_a_response_after_the_prompt_is_left_out(run: Run, source: Path) -> None:
    found, _ = judge(run("trainer", 1, prompts=[FIRST + SECOND[:5]]), run("engine", 1))
    assert found.keys() == {"LOC002", "LOC007"}
    assert "trainer has 5 tokens that engine has not (further tokens, as a response is)" in found["LOC007"].message


@pytest.mark.parametrize("prompt", [[1, *FIRST], [*FIRST[:9], 7, *FIRST[10:]], SECOND])
def test_other_tokens_are_no_fault_of_a_weight(run: Run, source: Path, prompt: list[int]) -> None:
    found, report = judge(run("trainer", 1), run("engine", 1, prompts=[prompt]))
    assert found.keys() == {"LOC007"}
    assert report.counts["tensors"] == 0

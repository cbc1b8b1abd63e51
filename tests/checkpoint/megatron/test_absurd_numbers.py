"""Layer numbers, arguments and counts beyond any model: rules answer, and quickly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint.layout import parse_layout
from ckptcheck.checkpoint.megatron.structure import missing_objects
from ckptcheck.linter.runner import run_rules
from tests.checkpoint.megatron.test_megatron import IT
from tests.factories import dcp
from tests.factories.dcp import Global, Instance, write_pickle
from tests.factories.torch_archives import write_archive
from tests.test_rules import RULES, open_with_values


def run_in_time(folder: Path) -> Any:
    begun = time.process_time()
    report = run_rules(open_with_values(folder), RULES)
    assert not report.crashed
    assert time.process_time() - begun < 5
    return report


@pytest.mark.parametrize("number", ["4000000000", "99999999999999", "9" * 4400])
@pytest.mark.parametrize(
    "name",
    [
        "decoder.layers.{}.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.experts.local_experts.{}.linear_fc1.weight",
        "mtp.layers.{}.enorm.weight",
        "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_x.bucket_idx_{}.param",
        "rng_state/shard_0_{}",
    ],
)
def test_a_number_in_a_name(name: str, number: str, copied: Any) -> None:
    folder = copied("dense")
    table = dcp.read_table(folder / IT / ".metadata")
    first, absurd = next(iter(table.shapes)), name.format(number)
    for part in (table.dtypes, table.shapes, table.chunks):
        part[absurd] = part[first]  # type: ignore[index]
    dcp.write_metadata(folder / IT / ".metadata", table)
    run_in_time(folder)


@pytest.mark.parametrize("value", [1 << 20, 1 << 62, 10**300])
@pytest.mark.parametrize("base", ["dense", "legacy-moe-ep2"])
def test_numbers_among_the_arguments(value: int, base: str, copied: Any) -> None:
    folder = copied(base)
    names = (
        "num_layers", "mtp_num_layers", "num_experts", "padded_vocab_size", "tensor_model_parallel_size",
        "pipeline_model_parallel_size", "expert_model_parallel_size",
    )  # fmt: skip
    arguments = dict.fromkeys(names, value) | {"expert_tensor_parallel_size": 7}
    pickled = write_pickle({"args": Instance(Global("argparse", "Namespace"), arguments), "model": {}})
    for name in ("common.pt", *(path.relative_to(folder / IT) for path in (folder / IT).glob("mp_rank_*/*.pt"))):
        (folder / IT / name).write_bytes(write_archive({"data.pkl": pickled, "byteorder": b"little"}))
    run_in_time(folder)


def test_stacks_and_objects_of_a_million_members_each() -> None:
    begun = time.process_time()
    names = [f"stack{number}.{layer}.a.weight" for number in range(3000) for layer in (0, 1, 2, 999_999)]
    assert parse_layout(dict.fromkeys(names)).gaps == {}
    missing = missing_objects(f"object{number}/shard_0_1000000" for number in range(300))
    assert sum(len(shards) for _, shards in missing.values()) <= 1 << 20
    assert time.process_time() - begun < 5

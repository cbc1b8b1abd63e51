"""Every causal-LM architecture that transformers can build: no error on sound ones, and damage is seen on all kinds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import damage
import pytest

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config_class import learned_version
from ckptcheck.checkpoint.layout import parse_layout
from ckptcheck.checkpoint.megatron.structure import structure_of
from ckptcheck.checkpoint.megatron.tensor import GlobalTensor
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass

pytestmark = pytest.mark.zoo
RULES = rule_loader.load_rules()

JUSTIFIED = {
    # transformers drops the layer of multi-token prediction when it saves, and leaves the number in the config: an
    # engine with speculative decoding would build a draft layer without weights. That is what the rule is there to say.
    "CFG003": {"BailingHybridForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV4ForCausalLM", "Glm4MoeForCausalLM"},
    # transformers 5.24 saves the vision tower under a name at which vLLM 0.32 stops, and says that it may: an info
    "CFG052": {"Gemma3ForConditionalGeneration"},
}


def scan(folder: Path) -> Report:
    return run_rules(open_checkpoint(str(folder), value_reader=ValuePass(jobs=1)), RULES)


def test_the_zoo_is_the_one_the_names_were_learned_from(zoo: Path) -> None:
    built = json.loads((zoo / "zoo.json").read_text(encoding="utf-8"))
    assert len(built["built"]) >= 150
    assert built["transformers"].split(".")[0] == learned_version().split(".")[0]


def test_sound_checkpoints_of_every_architecture(zoo: Path, zoo_architectures: list[str]) -> None:
    seen: dict[str, set[str]] = {}
    for architecture in zoo_architectures:
        report = scan(zoo / architecture)
        assert not report.crashed, (architecture, report.crashed)
        # Some start a matrix at zero, or constant; that the whole is untrained is seen, and said. None has a tokenizer.
        assert all("freshly initialised" in why or "no tokenizer" in why for _, why in report.skipped), architecture
        assert len(report.passed) >= 20, architecture
        for finding in report.findings:
            assert finding.severity != "error", (architecture, finding)
            if finding.code == "EMB003":  # PyTorch starts the row of padding_idx at zero: an info, and no more
                assert finding.severity == "info"
                continue
            seen.setdefault(finding.code, set()).add(architecture)
    assert seen == JUSTIFIED


def test_sound_models_saved_by_torch_distributed_checkpoint(zoo: Path, zoo_architectures: list[str]) -> None:
    """The same names without a config, as a folder of torch.distributed.checkpoint has them."""
    (rule,) = (rule for rule in RULES if rule.code == "MEG018")
    for architecture in zoo_architectures:
        tensors = open_checkpoint(str(zoo / architecture)).tensors
        assert isinstance(tensors, dict)
        weights = {f"model.{name}": GlobalTensor(name, found.dtype, found.shape, ()) for name, found in tensors.items()}
        seen: Any = SimpleNamespace(
            form="dcp",
            weights=weights,
            args={},
            structure=structure_of(weights),
            layout=parse_layout(weights),
            place=None,
        )
        assert [problem.message for problem in rule.check(seen)] == [], architecture


def damaged(zoo: Path, architecture: str, tmp_path: Path) -> tuple[Path, Checkpoint]:
    shutil.rmtree(tmp_path / architecture, ignore_errors=True)
    folder = damage.linked_copy(zoo / architecture, tmp_path / architecture)
    return folder, open_checkpoint(str(folder))


def lose_last_layer(folder: Path, ckpt: Checkpoint) -> bool:
    stack = ckpt.components.stack
    if stack is None:
        return False
    last = stack.full_name(max(ckpt.components.layers)) + "."
    damage.drop_tensors(folder, {name for name in ckpt.tensors if name.startswith(last)})
    return True


def lose_middle_layer(folder: Path, ckpt: Checkpoint) -> bool:
    stack = ckpt.components.stack
    if stack is None:
        return False
    damage.drop_tensors(folder, {name for name in ckpt.tensors if name.startswith(stack.full_name(1) + ".")})
    return True


def lose_matrix(folder: Path, ckpt: Checkpoint) -> bool:
    """Drop one matrix of a layer that has at least two siblings of its kind."""
    stack = ckpt.components.stack
    if stack is None:
        return False
    kinds = [frozenset(names) for names in ckpt.components.layers.values()]
    for layer, names in sorted(ckpt.components.layers.items(), reverse=True):
        matrices = [
            name
            for name in sorted(names)
            if "{}" not in name and len(ckpt.tensors[stack.full_name(layer, name)].shape) > 1
        ]
        if kinds.count(frozenset(names)) >= 3 and matrices:
            return damage.drop_tensors(folder, {stack.full_name(layer, matrices[len(matrices) // 2])}) == 1
    return False


def lose_expert(folder: Path, ckpt: Checkpoint) -> bool:
    stack = ckpt.components.stack
    experts = [
        name for name in ckpt.tensors if ".experts.2." in name and stack is not None and name.startswith(stack.prefix)
    ]
    if not experts or ckpt.config is None or ckpt.config.integer("zero_expert_num"):
        return False
    prefix = experts[-1].split(".experts.2.")[0] + ".experts.2."
    return damage.drop_tensors(folder, {name for name in ckpt.tensors if name.startswith(prefix)}) > 0


def lose_embedding(folder: Path, ckpt: Checkpoint) -> bool:
    name = ckpt.components.embedding
    return name is not None and damage.drop_tensors(folder, {name}) == 1


def change_config(folder: Path, ckpt: Checkpoint, names: tuple[str, ...], by: int) -> bool:
    if ckpt.config is None or ckpt.config.text is not ckpt.config.value or (old := ckpt.config.integer(*names)) is None:
        return False
    damage.edit_json(folder / "config.json", {ckpt.config.key_path(*names): old + by})
    return True


def declare_more_layers(folder: Path, ckpt: Checkpoint) -> bool:
    return ckpt.components.stack is not None and change_config(folder, ckpt, ckpt.components.depth_names, 1)


def declare_fewer_layers(folder: Path, ckpt: Checkpoint) -> bool:
    return ckpt.components.stack is not None and change_config(folder, ckpt, ckpt.components.depth_names, -1)


def declare_larger_vocabulary(folder: Path, ckpt: Checkpoint) -> bool:
    return ckpt.components.embedding is not None and change_config(folder, ckpt, ("vocab_size",), 7)


def rename_layers(folder: Path, ckpt: Checkpoint) -> bool:
    """Give the checkpoint to another architecture."""
    stack = ckpt.components.stack
    if stack is None or stack.prefix == "transformer.h":
        return False
    damage.edit_json(folder / "config.json", {"architectures": ["GPT2LMHeadModel"]})
    return True


@pytest.mark.parametrize(
    ("damage_done", "codes", "least"),
    [
        (lose_last_layer, {"CFG003"}, 0.98),
        (lose_middle_layer, {"CFG003"}, 0.98),
        (lose_matrix, {"CFG003"}, 0.98),
        (lose_expert, {"CFG003"}, 0.98),
        (lose_embedding, {"CFG003"}, 0.98),
        (declare_more_layers, {"CFG003"}, 0.98),
        (declare_fewer_layers, {"CFG004"}, 0.98),
        (declare_larger_vocabulary, {"CFG012"}, 0.98),
        (rename_layers, {"CFG016"}, 0.98),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_damage_is_seen(
    zoo: Path,
    zoo_architectures: list[str],
    tmp_path: Path,
    damage_done: Callable[[Path, Checkpoint], bool],
    codes: set[str],
    least: float,
) -> None:
    seen, missed = [], []
    for architecture in zoo_architectures:
        folder, ckpt = damaged(zoo, architecture, tmp_path)
        if damage_done(folder, ckpt):
            found = {finding.code for finding in scan(folder).findings if finding.severity == "error"}
            (seen if found & codes else missed).append(architecture)
        shutil.rmtree(folder)
    assert len(seen) >= 20
    assert len(seen) / (len(seen) + len(missed)) >= least, missed

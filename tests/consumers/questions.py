"""Generates what consumers are asked: configs with lists full of traps, and the modules that they are held against."""

from __future__ import annotations

import random
from typing import Any

DENSE = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
LATENT = {"gate_up_proj": ["gate_proj", "up_proj"], "fused_qkv_a_proj_with_mqa": ["q_a_proj", "kv_a_proj_with_mqa"]}

KINDS = {
    "qkv_proj": "QKVParallelLinear",
    "gate_up_proj": "MergedColumnParallelLinear",
    "o_proj": "RowParallelLinear",
    "down_proj": "RowParallelLinear",
    "gate": "ReplicatedLinear",
    "shared_expert_gate": "ReplicatedLinear",
    "fused_qkv_a_proj_with_mqa": "ReplicatedLinear",
    "q_b_proj": "ColumnParallelLinear",
    "kv_b_proj": "ColumnParallelLinear",
    "qkv": "QKVParallelLinear",
    "eh_proj": "ReplicatedLinear",
}
LAYER = (
    "self_attn.qkv_proj",
    "self_attn.o_proj",
    "mlp.gate_up_proj",
    "mlp.down_proj",
    "mlp.gate",
    "mlp.experts",
    "mlp.shared_expert_gate",
    "mlp.shared_experts.gate_up_proj",
    "mlp.shared_experts.down_proj",
    "self_attn.fused_qkv_a_proj_with_mqa",
    "self_attn.q_b_proj",
    "self_attn.kv_b_proj",
    "eh_proj",
)
CLASSES = (
    "Linear", "linear", "RoutedExperts", "FusedMoE", "ParallelLMHead", "QKVParallelLinear", "ReplicatedLinear", "column",
    "VocabParallelEmbedding", "Experts", "re:.*Linear", "re:Replicated.*",
)  # fmt: skip
BROKEN = ("re:[", "re:(", "re:*x", 5, None, "re:a(?P<x", "re:")


def modules(draw: random.Random, experts: str) -> list[dict[str, Any]]:
    """Some modules of two layers, a head and an embedding, perhaps below a prefix."""
    root = draw.choice(["model.", "model.", "language_model.model.", "layers_of.model.", ""])
    names = [f"{root}layers.{layer}.{part}" for layer in draw.sample([0, 1, 2, 10, 11], 2) for part in LAYER]
    found = []
    for name in [*draw.sample(names, 9), f"{root}visual.blocks.0.attn.qkv", "vision_tower.proj.o_proj"]:
        last = name.rsplit(".", 1)[-1]
        role = "experts" if last == "experts" else "linear"
        found.append({"name": name, "kind": experts if role == "experts" else KINDS[last], "role": role})
    head = draw.choice(["lm_head", "language_model.lm_head"])
    found.append({"name": head, "kind": "ParallelLMHead", "role": "head"})
    found.append({"name": f"{root}embed_tokens", "kind": "VocabParallelEmbedding", "role": "embedding"})
    return found


def below(name: str, fused: dict[str, list[str]]) -> list[str]:
    """A module's names in a checkpoint: its shards, its experts, or itself."""
    parent, _, last = name.rpartition(".")
    if last == "experts":
        return [f"{name}.{n}.{shard}" for n in (0, 1) for shard in ("gate_proj", "up_proj", "down_proj")]
    shards = {**DENSE, **LATENT, **fused}.get(last)
    return [f"{parent}.{shard}" for shard in shards] if shards else [name]


def entry(draw: random.Random, name: str) -> Any:
    """Something a person or a tool would write for one name, right or wrong."""
    last, parent = name.rsplit(".", 1)[-1], name.rsplit(".", 1)[0]
    escaped = name.replace(".", r"\.")
    return draw.choice(
        [
            name, name, name, last, parent, f"{name}.linear", f"{name}.", f".{last}", name.upper(),
            f"re:.*{last}", f"re:.*{last}$", f"re:.*{last}.*", f"re:{escaped}$", f"re:{last}$", f"re:.*\\.{last}$", last[:4],
            f"re:^(?!.*{last}).*$", f"re:.*(?<!_){last}", f"re:(?i).*{last.upper()}", ".*" + last, f"re:{parent}", f"*{last}",
            f"*.{last}", f"{parent}*", f"{parent}.*", f"{name}*", "*", f"{name[:-1]}?", f"re:.*layers\\.\\d+\\..*{last}",
            f"re:.*\\.(?:{last}|nothing)$", name.removeprefix("model."), f"model.{name}", f"language_model.{name}",
            f"model.language_model.{name.removeprefix('language_model.model.')}", f"{parent.rsplit('.', 1)[0]}.", "",
            f"re:.*layers.1.*{last}", f"{parent}[", f"{parent}.[{last[0]}]{last[1:]}", "experts", "mlp", "layers.1",
        ]
    )  # fmt: skip


def listed(
    draw: random.Random, asked: list[dict[str, Any]], fused: dict[str, list[str]], *, broken: float
) -> list[Any]:
    """A list with entries for some of the modules: all of a fused one's shards, or only some."""
    found: list[Any] = []
    for module in draw.sample(asked, draw.randint(0, 4)):
        names = [*below(module["name"], fused), module["name"]] if draw.random() < 0.3 else below(module["name"], fused)
        if draw.random() < 0.6:
            found += names
        elif draw.random() < 0.5:
            found.append(entry(draw, draw.choice([*names, module["name"]])))
        else:
            shape = draw.randrange(10**9)
            found += [entry(random.Random(shape), name) for name in names]
    if draw.random() < broken:
        found.insert(draw.randint(0, len(found)), draw.choice(BROKEN))
    draw.shuffle(found)
    return found


def weights(draw: random.Random) -> dict[str, Any]:
    said = {
        "num_bits": 4,
        "type": "int",
        "group_size": draw.choice([32, 32, 128]),
        "symmetric": True,
        "strategy": "group",
    }
    if draw.random() < 0.2:
        del said["symmetric"]
    if draw.random() < 0.04:
        said["actorder"] = draw.choice(["weight", "static", None, "group"])
    return said


def compressed_tensors(draw: random.Random, asked: list[dict[str, Any]], fused: dict[str, list[str]]) -> dict[str, Any]:
    groups = {}
    for number in range(draw.choice([1, 1, 1, 2, 3])):
        targets = ["Linear"] if draw.random() < 0.5 else []
        targets += [each for each in listed(draw, asked, fused, broken=0) if isinstance(each, str)]
        targets += draw.sample(CLASSES, draw.choice([0, 0, 1]))
        targets += [draw.choice([each for each in BROKEN if isinstance(each, str)])] * (draw.random() < 0.03)
        groups[f"group_{number}"] = {"targets": targets, "weights": weights(draw), "input_activations": None}
    config = {"format": "pack-quantized", "config_groups": groups, "ignore": listed(draw, asked, fused, broken=0.05)}
    if draw.random() < 0.03:
        config["ignore"] = draw.choice([None, "lm_head", {}, 3])
    if draw.random() < 0.03:
        del config["ignore"]
    return config


def by_method(
    draw: random.Random, method: str, asked: list[dict[str, Any]], fused: dict[str, list[str]]
) -> dict[str, Any]:
    """A config of one method."""
    some = listed(draw, asked, fused, broken=0.04)
    if method == "compressed-tensors":
        return compressed_tensors(draw, asked, fused)
    if method == "fp8":
        config: dict[str, Any] = {"activation_scheme": draw.choice(["dynamic"] * 9 + ["static", "odd"])}
        config[draw.choice(["ignored_layers", "modules_to_not_convert"])] = some
        if draw.random() < 0.1:
            config["ignored_layers"], config["modules_to_not_convert"] = draw.choice([[], None]), some
        return config
    if method == "gptq":
        dynamic = {
            draw.choice(["-:", "+:", ""]) + str(each).removeprefix("re:"): draw.choice([{}, {"bits": 8}, {"bits": 3}])
            for each in some
            if isinstance(each, str)
        }
        config = {"bits": draw.choice([4] * 9 + [3]), "group_size": 128, "desc_act": draw.random() < 0.05, "sym": True}
        config |= {"dynamic": dynamic, "lm_head": draw.random() < 0.5}
        if draw.random() < 0.5:
            kept = [each for each in listed(draw, asked, fused, broken=0) if isinstance(each, str)]
            config["modules_in_block_to_quantize"] = [kept] if draw.random() < 0.3 else kept
        return config
    if method == "awq":
        config = {"bits": 4, "group_size": 128, "zero_point": True, "lm_head": draw.random() < 0.5}
        return {**config, "modules_to_not_convert": some} if draw.random() < 0.8 else config
    if method == "modelopt":
        algorithm = draw.choice(["FP8", "NVFP4", "NVFP4", "MIXED_PRECISION", "MIXED_PRECISION", "W4A16_NVFP4"])
        config = {"quant_algo": algorithm, "group_size": 16}
        if algorithm == "MIXED_PRECISION":
            names = [each for module in asked for each in [*below(module["name"], fused), module["name"]]]
            chosen = draw.sample(names, min(len(names), draw.randint(1, 20)))
            spelled = [
                draw.choice([n, n, n, n.replace("language_model.model.", "model.language_model."), f"{n}.0"])
                for n in chosen
            ]
            config["quantized_layers"] = {
                name: {"quant_algo": draw.choice(["FP8", "NVFP4", "fp8", "W4A16_NVFP4", "ODD"])} for name in spelled
            }
        config["ignore"] = some
        if draw.random() < 0.4:
            config["exclude_modules"] = config.pop("ignore")
            return {"quantization": {**config, "kv_cache_quant_algo": None}}
        return config
    if method == "quark":
        export = {"export": {"kv_cache_group": [], "pack_method": "reorder"}}
        quiet = {"layer_type_quant_config": {}, "global_quant_config": {}, "layer_quant_config": {}}
        return {**export, **quiet, "exclude": some}
    if method == "bitsandbytes":
        return {"load_in_4bit": True, "llm_int8_skip_modules": some}
    return {}


def questions(methods: tuple[str, ...], number: int, *, experts: str, seed: int = 0) -> list[dict[str, Any]]:
    """Return questions, the same for the same seed, spread over the methods."""
    found = []
    for index in range(number):
        draw = random.Random(f"{seed}-{index}")
        method = methods[index % len(methods)]
        fused = draw.choice([DENSE, DENSE, LATENT, {**DENSE, **LATENT}, {}])
        asked = modules(draw, experts)
        rename = draw.choice(
            [{}, {}, {"prefix": [["model.language_model.", "language_model.model."], ["lm_head.", "x."]]}]
        )
        if draw.random() < 0.1:
            rename = {"substr": [["mlp.", "ffn."], [".experts.", ".exp."]], "suffix": [["gate", "router"]]}
        config = {"quant_method": method, **by_method(draw, method, asked, fused)}
        stored = [each for module in asked for each in below(module["name"], fused)]
        packed = [name for name in stored if draw.random() < 0.7]
        found.append(
            {
                "method": method,
                "config": config,
                "fused": fused,
                "rename": rename,
                "modules": asked,
                "packed": packed,
                "plain": [name for name in stored if name not in packed],
            }
        )
    return found

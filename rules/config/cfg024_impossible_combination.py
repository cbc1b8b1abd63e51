"""Settings do not go together: heads, kinds of layers, experts, padding or rotary embeddings.

## What it checks
Where transformers knows the `model_type`, in the config and its nested configs:

- the number of attention heads is not 0, and divides the hidden size: where the class demands it, and in every class without a
  width of heads of its own, but those that project from rounded heads (GLM-4.5V) or take both numbers by default (Qwen3-Omni)
- lists of layer kinds (`layer_types`, `mlp_layer_types`) have an entry for each layer, and each is a kind that transformers has
- `pad_token_id` is a row of the embedding, where the language model gives it to its embedding
- the type of the rotary embeddings (`rope_scaling`, `rope_parameters`) is one that transformers computes, and has the keys that it
  needs (`factor` of linear, `low_freq_factor` of llama3, `long_factor` of longrope)

Where the tensors show routed experts, `num_experts_per_tok` (and its synonyms) is at least 1 and at most the number of experts; in
DeepSeek-V3 and GLM-4.5, `n_group` divides the experts and `topk_group` is at most `n_group`.

CFG012 compares key-value heads with heads, and both with the tensors.

## Why it matters
transformers stops when it builds or runs the model, and so do vLLM and SGLang, which read the config through it. With 0 experts
per token, every token skips the experts, and the model computes something else without a word.

## How to fix
Copy the values from the config of the model this one was trained or converted from. Tools that remove layers often leave
`layer_types` as long as it was: remove the same entries. To stretch a context anew, follow the model card: each type of rotary
embeddings has its own keys.

## When it can be wrong
A config with its own class (`auto_map`) is not checked. A model whose own code gives a key another meaning, under a known
`model_type`: use `--ignore CFG024`. Older versions of transformers only warned about a missing key of `rope_scaling`.
`--dry-load transformers` reports all else that a model refuses.

## Seen in
kakaocorp/kanana-1.5-2.1b-instruct-2505 (24 heads, hidden size 1,792; huggingface/transformers#46211), ramanathanlab/genslm#110,
peremartra/optipfair#20 (`layer_types` after layers were removed), huggingface/transformers#19296 and Ucas-HaoranWei/GOT-OCR2.0#17
(padding without a row), huggingface/transformers#32167 and #32182 (which missing keys of `rope_scaling` stop transformers),
vllm-project/llm-compressor#2864 (tools that remove experts write their numbers anew)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config import EXPERTS, EXPERTS_PER_TOKEN, GROUPED_ROUTERS
from ckptcheck.checkpoint.config_class import known_layer_types
from ckptcheck.checkpoint.resolved_config import ResolvedPart, Setting
from ckptcheck.checkpoint.rope_settings import iter_wrong_rope
from ckptcheck.checkpoint.setting_text import Fault, describe, is_int, write_value
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.checkpoint.weights_table import WeightsTable

ROUTED = re.compile(r"\bexperts\b|_moe\b|\brouter\b")
"""Names of modules with routed experts: `mlp.experts`, GraniteMoE's `block_sparse_moe`."""
HEADS = re.compile(r"((?:encoder|decoder)_)?(num_)?(attention_)?heads|n_heads?")
WIDTHS = ("hidden_size", "d_model", "embed_dim", "n_embd")
WIDTH_OF_HEADS = re.compile(
    r"head_dim|head_size|d_kv|kv_channels|d_head|dim_head|_factor|expand|lora_rank|attention_hidden"
)
"""Fields that give the heads a width other than the hidden size divided by their number."""
WITHOUT_PADDING = frozenset(
    ("bloom", "blt", "codegen", "cpmant", "ctrl", "falcon", "falcon_mamba", "fsmt", "funnel", "gpt2", "gpt_bigcode", "gpt_neo",
     "gpt_neox", "gpt_neox_japanese", "gpt-sw3", "gptj", "longt5", "mamba", "mamba2", "mllama_text_model", "moshi", "mpnet", "mpt",
     "mt5", "musicgen_decoder", "musicgen_melody_decoder", "nemotron_h", "openai-gpt", "perceiver", "pix2struct_text_model",
     "reformer", "rwkv", "switch_transformers", "t5", "udop", "umt5", "xlnet", "xlstm")
)  # fmt: skip
"""Model types whose embedding ignores `pad_token_id`, or has more rows than `vocab_size` (transformers 5.24)."""


@rule(
    "CFG024",
    "impossible-combination",
    severity="error",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and (ckpt.config.resolved is not None or _has_experts(ckpt)),
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    config, resolved = ckpt.config, ckpt.config.resolved
    hint = "copy the values from the model's own config"
    if resolved is not None:
        table = WeightsTable.of(config)
        found: dict[str, str] = {}
        for part in resolved.parts:
            for path, fault in (
                *_iter_wrong_heads(part, table),
                *_iter_wrong_layer_lists(part),
                *iter_wrong_rope(part),
            ):
                found.setdefault(path, fault)
        if table is not None:
            found.update(_iter_lost_padding(resolved.text))
        for path, fault in found.items():
            if path not in config.malformed_counts:
                message = f"{fault}; transformers stops when it builds or runs the model"
                yield Problem(message, file=config.file, key=path, hint=hint)
    experts, chosen = ckpt.components.num_experts, config.number(*EXPERTS_PER_TOKEN)
    if chosen is None or not is_int(experts) or experts < 1 or not _has_experts(ckpt):
        return
    if not 1 <= chosen <= experts:
        what = "so no token reaches an expert" if chosen < 1 else f"but {config.describe(*EXPERTS)}"
        harm = "computes without the experts" if chosen == 0 else "stops in the first forward pass"
        yield Problem(
            f"{config.describe(*EXPERTS_PER_TOKEN)}, {what}; transformers {harm}",
            file=config.file,
            key=config.key_path(*EXPERTS_PER_TOKEN),
            hint=hint,
        )
    groups, chosen_groups = config.number("n_group"), config.number("topk_group")
    is_grouped = {"n_group", "topk_group"} & config.text.keys() and config.text.get("model_type") in GROUPED_ROUTERS
    if not is_grouped:
        return
    if groups is None or chosen_groups is None or groups < 1 or experts % groups or not 1 <= chosen_groups <= groups:
        yield Problem(
            f"{config.describe('n_group')}, {config.describe('topk_group')} and {config.describe(*EXPERTS)}, which do not go "
            "together; transformers stops in the first forward pass",
            file=config.file,
            key=config.key_path("n_group"),
            hint=hint,
        )


def _has_experts(ckpt: ConfiguredCheckpoint) -> bool:
    """Whether any layer has routed experts, by the names of its tensors."""
    return any(ROUTED.search(template) for template in ckpt.layout.names_by_template)


def _iter_wrong_heads(part: ResolvedPart, table: WeightsTable | None) -> Iterator[Fault]:
    """Yield numbers of heads that do not divide the hidden size; two defaults are the class's own."""
    config_class, demanded = part.config_class, dict(part.config_class.divisors)
    has_width = any(WIDTH_OF_HEADS.search(name) for name in (*config_class.types, *part.settings))
    for key in filter(HEADS.fullmatch, config_class.types):
        heads, size = part.find(key), _find_size(part, key, demanded.get(key))
        if heads is None or not is_int(heads.value):
            continue
        if heads.value == 0 and heads.source == "config":
            yield heads.key_path, f"{describe(heads)}, but a model needs at least 1"
        if size is None or not is_int(size.value) or (key not in demanded and has_width):
            continue
        is_own = (heads.source, size.source) == ("default", "default") or _are_defaults(part, heads, size)
        is_rounded = table is not None and table.rounds_heads(f"{part.path}{key}")
        if not is_own and not is_rounded and heads.value > 0 and size.value > 0 and size.value % heads.value:
            yield heads.key_path, f"{describe(size)}, which is no multiple of {heads.value:,} ({describe(heads)})"


def _find_size(part: ResolvedPart, key: str, demanded: str | None) -> Setting | None:
    """Return the hidden size of a part: the one that the class demands, else its encoder's or decoder's, else its only one."""
    heads = HEADS.fullmatch(key)
    half = heads[1] or "" if heads is not None else ""
    names = [demanded] if demanded else [*(f"{half}{name}" for name in WIDTHS if half), *WIDTHS]
    return next((found for name in names if (found := part.find(name)) is not None), None)


def _are_defaults(part: ResolvedPart, heads: Setting, size: Setting) -> bool:
    """Whether the config repeats the class's defaults: Qwen3-Omni's thinker has 28 heads and a hidden size of 2,048."""
    defaults = part.config_class.defaults
    return (defaults.get(heads.name), defaults.get(size.name)) == (heads.value, size.value)


def _iter_wrong_layer_lists(part: ResolvedPart) -> Iterator[Fault]:
    """Yield lists of layer kinds with an entry that transformers does not know, or of another length than the model."""
    depth = part.find("num_hidden_layers")
    has_kinds = part.settings.get("layer_types") is not None or part.config_class.has_layer_types
    if depth is None or not has_kinds or part.config_class.own_layer_check:
        return
    for name, known in known_layer_types().items():
        listed, path = part.settings.get(name), f"{part.path}{name}"
        if not isinstance(listed, list):
            continue
        unknown = [entry for entry in listed if not isinstance(entry, str) or entry not in known]
        if unknown:
            yield path, f"{path} has the entry {write_value(unknown[0])}, and transformers has no such layer"
        elif is_int(depth.value) and depth.value != len(listed):
            yield path, f"{path} has {len(listed)} entries, but {describe(depth)}"


def _iter_lost_padding(part: ResolvedPart) -> Iterator[Fault]:
    """Yield a padding token without a row in the embedding; torch counts a negative one from the end."""
    padding, rows = part.find("pad_token_id"), part.find("vocab_size")
    if padding is None or rows is None or part.config_class.model_type in WITHOUT_PADDING:
        return
    if is_int(padding.value) and is_int(rows.value) and not -rows.value <= padding.value < rows.value:
        yield padding.key_path, f"{describe(padding)}, but the embedding has no such row: {describe(rows)}"

"""A switch of the config asks for tensors that are not stored, or leaves out stored ones.

## What it checks
For the causal language models of transformers: which settings add which tensors
where they are true (`mlp_bias`, `use_qk_norm`, …), where they are a number and not null (`q_lora_rank`), or where they name an
activation function with numbers of its own to train (`xielu`), was learned from transformers. Where config.json lacks a
setting, the default of its class counts. A bias is asked for where its weight is stored; other tensors where the checkpoint has
all that the architecture has without the switch. CFG010 and CFG011 check the attention biases of the common families.

## Why it matters
transformers initializes missing tensors with zeros or random numbers, and leaves out those that it has no place for, with an
easily missed warning; vLLM stops or leaves them uninitialized.

## How to fix
Correct the setting, or export again with the tensors.

## When it can be wrong
A switch that adds its tensors only together with another setting, which the tiny model of the architecture has and this one
does not: use `--ignore CFG029`.

## Seen in
hiyouga/LlamaFactory#3721 (the biases of granite-8b-code were left out, for transformers did not know mlp_bias yet)
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import EXPERTS_PER_TOKEN
from ckptcheck.checkpoint.decoder_families import QKVO, family_of
from ckptcheck.checkpoint.resolved_config import ResolvedConfig
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.checkpoint.weights_table import Switch, WeightsTable
from ckptcheck.text.formatting import count


@rule(
    "CFG029",
    "switched-weights",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and WeightsTable.of(ckpt.config) is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    table, config = WeightsTable.of(ckpt.config), ckpt.config
    if table is None or config is None or config.resolved is None or not ckpt.tensors:
        return
    stored = {
        template: names
        if all(dtype in PLAIN for dtype, _ in forms)
        else [name for name in names if ckpt.tensors[name].is_plain]
        for (template, names), forms in zip(
            ckpt.layout.names_by_template.items(), ckpt.forms_by_template.values(), strict=True
        )
        if any(dtype in PLAIN for dtype, _ in forms)
    }
    is_whole = all(pattern in stored for pattern in table.required)
    # What several switches decide is there where all of them have it: OPT-350m and Galactica have no last norm.
    elsewhere = {switch.name: _list_unwanted(switch, config.resolved) for switch in table.switches}
    for switch in table.switches:
        setting = config.resolved.at(switch.name)
        is_on = switch.is_on(setting) if setting is not None else None
        if setting is None or is_on is None:
            continue
        wanted, unwanted = (switch.on, switch.off) if is_on else (switch.off, switch.on)
        if family_of(config) is not None:
            attention = tuple(f".self_attn.{part}.bias" for part in QKVO)
            wanted, unwanted = (frozenset(p for p in side if not p.endswith(attention)) for side in (wanted, unwanted))
        missing = sorted(
            name.removesuffix("weight") + "bias"
            for pattern in wanted
            if pattern.endswith(".bias") and not _is_explained(pattern, switch, elsewhere)
            for name in stored.get(pattern.removesuffix("bias") + "weight", ())
            if name.removesuffix("weight") + "bias" not in ckpt.tensors
        )
        if not missing and is_whole:
            missing = sorted(
                pattern.replace("{}", "0")
                for pattern in wanted
                if pattern not in stored and not _is_explained(pattern, switch, elsewhere)
            )
        surplus = sorted(
            name
            for pattern in unwanted
            for name in stored.get(pattern, ())
            # AutoGPTQ writes a bias of zeros to every layer it packs; vLLM and transformers know that.
            if not name.endswith(".bias") or name.removesuffix("bias") + "qweight" not in ckpt.tensors
        )
        if switch.on and switch.off and (missing or surplus) and _sets_unknown_number(table, config.resolved):
            continue
        if missing:
            yield Problem(
                f"{describe(setting)}, but {_list(missing)} {'is' if len(missing) == 1 else 'are'} not there, so transformers "
                "initializes them with zeros or random numbers",
                file=config.file,
                key=setting.key_path,
                hint="correct the setting, or export again with the tensors",
            )
        elif surplus:
            yield Problem(
                f"{describe(setting)}, but {_list(surplus)} {'is' if len(surplus) == 1 else 'are'} stored; transformers leaves "
                "them out",
                file=config.file,
                key=setting.key_path,
                hint="correct the setting if the model was trained with them",
            )


def _list_unwanted(switch: Switch, resolved: ResolvedConfig) -> frozenset[str]:
    """Return the patterns of tensors that a model does not have for this switch alone."""
    setting = resolved.at(switch.name)
    is_on = switch.is_on(setting) if setting is not None else None
    return frozenset() if is_on is None else switch.off if is_on else switch.on


def _is_explained(pattern: str, switch: Switch, unwanted: Mapping[str, frozenset[str]]) -> bool:
    """Whether another switch is why the model does not have a tensor."""
    return any(pattern in patterns for name, patterns in unwanted.items() if name != switch.name)


def _sets_unknown_number(table: WeightsTable, resolved: ResolvedConfig) -> bool:
    """Whether the config gives a number that is null by default, and of which nothing was learned.

    It may choose between the two kinds of a layer, as Falcon-11B's `num_ln_in_parallel_attn` of 1.
    """
    part = resolved.text
    return any(
        default is None and type(part.settings.get(field)) is int
        for field, default in part.config_class.defaults.items()
        if not field.endswith("_token_id")
        and f"{part.path}{field}" not in table.sizes
        and field not in EXPERTS_PER_TOKEN
    )


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {count(len(names) - 1, 'other tensor')}"

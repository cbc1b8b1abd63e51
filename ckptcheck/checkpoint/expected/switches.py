"""Finds tensors that a switch of the config asks for and no file stores, and stored tensors that it switches off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import EXPERTS_PER_TOKEN
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.resolved_config import ResolvedConfig
from ckptcheck.checkpoint.setting_text import describe
from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.checkpoint.weights_table import Switch, WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count


def find_switched_tensors(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield one fault for each switch that disagrees with the stored tensors; then biases that no switch adds."""
    table, config = WeightsTable.of(ckpt.config), ckpt.config
    if table is None or config is None or config.resolved is None or not ckpt.tensors:
        return
    stored = _list_plain(ckpt)
    is_whole = all(pattern in stored for pattern in table.required)
    # A tensor that several switches decide exists only if all of them ask for it: OPT-350m and Galactica have no last norm.
    elsewhere = {switch.name: _list_unwanted(switch, config.resolved) for switch in table.switches}
    for switch in table.switches:
        setting = config.resolved.at(switch.name)
        is_on = switch.is_on(setting) if setting is not None else None
        if setting is None or is_on is None:
            continue
        wanted, unwanted = (switch.on, switch.off) if is_on else (switch.off, switch.on)
        wanted = frozenset(
            pattern
            for pattern in wanted
            if not explained.has(pattern)
            and not any(pattern in others for name, others in elsewhere.items() if name != switch.name)
        )
        missing = sorted(
            bias
            for pattern in wanted
            if pattern.endswith(".bias")
            for name in stored.get(f"{pattern.removesuffix('bias')}weight", ())
            if (bias := f"{name.removesuffix('weight')}bias") not in ckpt.tensors
        )
        if not missing and is_whole:
            missing = sorted(pattern.replace("{}", "0") for pattern in wanted if pattern not in stored)
        surplus = [name for pattern in unwanted for name in _list_read(ckpt, stored.get(pattern, ()))]
        if switch.on and switch.off and (missing or surplus) and _sets_unknown_number(table, config.resolved):
            continue
        if missing or surplus:
            found = missing or sorted(surplus)
            explained.names |= {pattern.partition(".{}.")[2] for pattern in (*switch.on, *switch.off)}
            effect = (
                f"{'is' if len(found) == 1 else 'are'} not there, so transformers initializes "
                f"{'it' if len(found) == 1 else 'them'} with zeros or random numbers"
                if missing
                else f"{'is' if len(found) == 1 else 'are'} stored; transformers leaves {'it' if len(found) == 1 else 'them'} out"
            )
            problem = Problem(
                f"{describe(setting)}, but {_list(found)} {effect}",
                file=config.file,
                key=setting.key_path,
                hint="correct the setting, or export again with the tensors"
                if missing
                else "correct the setting if the model was trained with them",
                names=tuple(found),
            )
            yield Fault(
                "missing" if missing else "surplus", problem, frozenset(INDEX.sub("{}", name) for name in found)
            )
    yield from _find_other_biases(ckpt, table, stored)


def _find_other_biases(ckpt: Checkpoint, table: WeightsTable, stored: Mapping[str, Sequence[str]]) -> Iterator[Fault]:
    """Yield one fault for the biases of modules that never have one in this architecture, whatever the config says."""
    switched = {pattern for switch in table.switches for pattern in (*switch.on, *switch.off)}
    surplus = sorted(
        name
        for pattern, names in stored.items()
        if pattern.endswith(".bias")
        and ".{}." in pattern
        and f"{pattern.removesuffix('bias')}weight" in table.required
        and pattern not in table.required | switched
        and pattern not in table.shapes
        for name in _list_read(ckpt, names)
    )
    if surplus:
        problem = Problem(
            f"{table.architecture} has no {_list(surplus)}; transformers leaves {'it' if len(surplus) == 1 else 'them'} out",
            file=ckpt.tensor_to_file[surplus[0]],
            key=surplus[0],
            hint="export without it if it is zero, else name the class with which it was trained",
            names=tuple(surplus),
        )
        yield Fault("surplus", problem)


def _list_plain(ckpt: Checkpoint) -> dict[str, Sequence[str]]:
    """Return the tensors that no quantization packs, by name with {} for each number."""
    return {
        template: names
        if all(dtype in PLAIN for dtype, _ in forms)
        else [name for name in names if ckpt.tensors[name].is_plain]
        for (template, names), forms in zip(
            ckpt.layout.names_by_template.items(), ckpt.forms_by_template.values(), strict=True
        )
        if any(dtype in PLAIN for dtype, _ in forms)
    }


def _list_read(ckpt: Checkpoint, names: Sequence[str]) -> Iterator[str]:
    """Yield the names, except the zero biases that AutoGPTQ writes beside packed weights; vLLM and transformers accept those."""
    return (
        name
        for name in names
        if not name.endswith(".bias") or f"{name.removesuffix('bias')}qweight" not in ckpt.tensors
    )


def _list_unwanted(switch: Switch, resolved: ResolvedConfig) -> frozenset[str]:
    """Return the patterns of tensors that this switch alone removes from a model."""
    setting = resolved.at(switch.name)
    is_on = switch.is_on(setting) if setting is not None else None
    return frozenset() if is_on is None else switch.off if is_on else switch.on


def _sets_unknown_number(table: WeightsTable, resolved: ResolvedConfig) -> bool:
    """Whether the config sets a number that is null by default and that no learned formula uses.

    It may choose between two kinds of a layer, as `num_ln_in_parallel_attn` of 1 does in Falcon-11B.
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

"""The state of the optimizer is incomplete.

## What it checks
Where the states are stored per weight (`optimizer.state.exp_avg.…`):
- A weight with one kind of state has every other kind that most weights have. Weights without any state may be frozen and are
  left out.
- The chunks of each state cover it without a gap, and it has the shape of the weight.
- Each weight with a state was saved too, where most of them were. MEG018 reports the weights that a layer lacks.

Buckets of the distributed optimizer (`dp_reshardable`) are not compared; MEG007 reports their missing files.

## Why it matters
Training resumes with uninitialized moments, or stops while it loads. The weights may be sound. A weight that was not saved, but
trained, resumes from its initialization, with moments that belong to another value.

## How to fix
Resume from an earlier iteration, or without the optimizer (`--no-load-optim`).

## When it can be wrong
Formats that flatten the states in another way are left out. `--ignore MEG021` silences it.

## Seen in
- Faults injected into real checkpoints of megatron-core 0.16.1
- NVIDIA-NeMo/Automodel#2096: keys of other ranks dropped while weights were saved
"""

import re
from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.required_weights import lacking
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, FINAL_NORM, OUTPUT
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.siblings import find_incomplete_layers
from ckptcheck.text.formatting import count, format_shape, join_truncated

STATE = re.compile(r"^(?:chained_\d+\.)?optimizer\.state\.(exp_avg|exp_avg_sq|fp32_param|param|momentum_buffer)\.(.+)$")
PLAIN = re.compile(r"^(.*\boptim(?:i[sz]ers?)?\.state\.(.+))\.(exp_avg|exp_avg_sq)$")
"""The names that torch's get_optimizer_state_dict gives."""
LAYER = re.compile(r"\.\d+\.")
BLOCK = re.compile(r"^.*?\.\d+\.\w+\.")
"""A block of a layer: `model.layers.3.mlp.`."""
SAMPLE = 5
"""Weights that show under which name the trainer puts all of them."""
HINT = "the weights are not concerned: resume with them and --no-load-optim, or from an earlier iteration"


@rule(
    "MEG021",
    "incomplete-optimizer",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and any(STATE.match(key) or PLAIN.match(key) for key in _keys(run)),
)
def check(run: Megatron) -> Iterator[Problem]:
    yield from _weights(run)
    yield from _unsaved(run)


def _keys(run: Megatron) -> list[str]:
    """Return the keys that may belong to an optimizer; a model has ten times as many others."""
    return [key for key in run.tensors if "optim" in key]


def _weights(run: Megatron) -> Iterator[Problem]:
    states: dict[str, dict[str, str]] = {}
    for key in _keys(run):
        if match := STATE.match(key):
            states.setdefault(match[2], {})[match[1]] = key
    kinds = Counter(kind for keys_by_kind in states.values() for kind in keys_by_kind)
    for weight, keys_by_kind in states.items():
        lacking = [kind for kind, number in kinds.items() if kind not in keys_by_kind and 2 * number > len(states)]
        if lacking:
            yield Problem(
                f"its optimizer state lacks {' and '.join(lacking)}", file=run.file(".metadata"), key=weight, hint=HINT
            )
        for kind, key in keys_by_kind.items():
            whole, own = run.tensors.get(weight), run.tensors[key]
            if key in run.tiling_gaps and run.tiling_gaps[key].missing:
                missing = run.tiling_gaps[key].missing
                yield Problem(
                    f"no chunk holds {missing:,} elements of its {kind}",
                    file=run.file(".metadata"),
                    key=weight,
                    hint=HINT,
                )
            elif whole is not None and len(own.shape) == len(whole.shape) and own.shape != whole.shape:
                yield Problem(
                    f"its {kind} is {format_shape(own.shape)}, but the weight is {format_shape(whole.shape)}",
                    file=run.file(".metadata"),
                    key=weight,
                    hint="one of the two is of another model: if the arguments give the weight's shape, resume with "
                    "--no-load-optim; else from an earlier iteration",
                )


def _unsaved(run: Megatron) -> Iterator[Problem]:
    """Check that the weights with a state were saved."""
    plain = {match[2] for key in _keys(run) if (match := PLAIN.match(key)) and not STATE.match(key)}
    weights = {match[2] for key in _keys(run) if (match := STATE.match(key))} or plain
    saved = run.tensors.keys() - set(_keys(run))
    # torch's own format puts the weights under a name of the trainer's, such as "model."
    prefixes = Counter(
        name.removesuffix(weight) for weight in sorted(weights)[:SAMPLE] for name in saved if name.endswith(weight)
    )
    prefix = max(prefixes, key=lambda each: (prefixes[each], -len(each)), default="")
    lost = sorted(weight for weight in weights if prefix + weight not in saved)
    if not lost or 2 * len(lost) > len(weights):
        return
    kinds = {LAYER.sub(".*.", name) for name in saved}
    needed = (
        {
            EMBEDDING,
            FINAL_NORM,
            OUTPUT,
            *(name for names in lacking(run.args, run.structure).values() for name in names),
        }
        if run.args
        else set[str]()
    )
    # MEG018 reports what a layer lacks and its siblings have; a whole block is none of that where there are few siblings
    torn = set(_list_torn(run))
    blocks = {found[0] for name in saved if (found := BLOCK.match(name))}
    said = torn | {
        name
        for name in (prefix + each for each in lost)
        if LAYER.sub(".*.", name) in kinds and (run.args or not (found := BLOCK.match(name)) or found[0] in blocks)
    }
    lost = [name for name in lost if prefix + name not in said and not name.endswith(tuple(needed))]
    if lost:
        yield Problem(
            f"the optimizer has moments of {count(len(lost), 'weight')} that {'was' if len(lost) == 1 else 'were'} not saved: "
            f"{join_truncated(lost)}",
            file=run.file(".metadata"),
            key=prefix + lost[0],
            hint="save again with all weights that are trained, or resume from an earlier iteration",
        )


def _list_torn(run: Megatron) -> Iterator[str]:
    """Yield the weights that a layer lacks and its siblings have."""
    for stack in run.layout.stacks.values():
        layers = {layer: unquantized_names(names) for layer, names in stack.layers.items()}
        alike = len(layers) > 3 and len(set(layers.values())) == 2
        for layer, (missing, _) in find_incomplete_layers(layers, {}, alike=alike).items():
            yield from (stack.full_name(layer, name) for name in missing)

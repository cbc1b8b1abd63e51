"""The trainer packs a module that the engine builds unquantized, or the reverse.

## What it checks
With `--consumers …,slime` (miles shares its code): the chosen engines build every module quantized that slime packs before it
pushes the weights, and no other. slime matches the names of *parameters* by equality, with `re.match`, or as a prefix; engines
match the names of modules. Without slime among the consumers it is info, for a list with an entry that only slime can mean: it
matches a parameter and no module, such as `model.embed_tokens.weight`. SGLang is then the engine.

## Why it matters
The first sync reports success. SGLang drops the packed tensors of the module without a line in the log; vLLM stops. If the
module is the router, all experts get the same score from then on. `re:.*mlp.gate$` keeps the router unquantized in SGLang and
vLLM, but not in slime, whose name for it ends in `.weight`; `re:.*mlp.gate.weight$` does the reverse.

## How to fix
Put both forms into the list. `ckptcheck scan --consumers sglang,slime --fix` writes a list that both read in the same way.

## When it can be wrong
The rule compares the list only. A patched quantizer in the trainer may do something else. Of a class that ckptcheck does not know,
only routers are judged: engines quantize none.

## Seen in
slime's debugging guide (INT4), THUDM/slime processors/quantizer_compressed_tensors.py
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.mismatches import (
    evaluate_checkpoint,
    find_sync_mismatches,
    find_trainer_entries,
    sort_modules,
    to_template,
)
from ckptcheck.consumers.registry import CONSUMERS

BEHIND_SLIME = ("sglang", "slime")
"""slime and the engine that it pushes weights into."""


@rule(
    "QNT028",
    "packed-by-trainer",
    severity="error",
    on="quantization",
    when=lambda ckpt: (
        not ckpt.is_partial
        and (
            any(view.consumer.sends_weights for view in evaluate_checkpoint(ckpt).values())
            or bool(evaluate_checkpoint(ckpt) and find_trainer_entries(ckpt))
        )
    ),
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    main = ckpt.quantization.declarations[0]
    kinds: dict[tuple[str, str, bool], tuple[set[str], set[str]]] = {}
    is_asked = any(view.consumer.sends_weights for view in evaluate_checkpoint(ckpt).values())
    for sent, received in find_sync_mismatches(ckpt, None if is_asked else BEHIND_SLIME):
        kind = (sent.consumer.name, to_template(sent.module), bool(sent.decision.quantized))
        modules, engines = kinds.setdefault(kind, (set(), set()))
        modules.add(sent.module)
        engines.add(f"{received.consumer.label} {received.consumer.sync_effect}")
    for (trainer, _, packs), (modules, engines) in kinds.items():
        first = sort_modules(modules)[0]
        last = first.rpartition(".")[2]
        rest = f" and {len(modules) - 1:,} more" if len(modules) > 1 else ""
        action = f"packs {first}{rest} at every sync, which engines build unquantized"
        if not packs:
            action = f"sends {first}{rest} unpacked at every sync, which engines build quantized"
        yield Problem(
            f"{trainer} {action}: {', '.join(sorted(engines))}"
            + ("" if is_asked else f"; {find_trainer_entries(ckpt)[0]!r} is for {trainer}"),
            file=main.file,
            key=main.key_path("ignore"),
            hint=f"list 're:.*{last}$' for the engine and 're:.*{last}.weight$' for {trainer}"
            if packs and CONSUMERS[trainer].matches_parameters
            else None,
            severity=None if is_asked else "info",
            names=tuple(sort_modules(modules)),
        )

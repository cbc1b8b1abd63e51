"""The trainer packs a module that the engine builds unquantized, or the reverse.

## What it checks
Only with `--consumers …,slime` (miles shares its code): every module that slime packs before it pushes the weights is built
quantized by the chosen engines, and the reverse. slime matches the names of *parameters* with equality, `re.match` or as a
beginning; engines match the names of modules.

## Why it matters
The first sync says success, and SGLang drops the packed tensors of the module without a line in the log; vLLM stops. With the
router, all experts get the same score from then on. `re:.*mlp.gate$` keeps the router out in SGLang and vLLM, and not in slime,
whose name for it ends in `.weight`; `re:.*mlp.gate.weight$` does the reverse.

## How to fix
Put both forms into the list. `ckptcheck scan --consumers sglang,slime --fix` writes a list that both read alike.

## When it can be wrong
Only the list is compared; a patched quantizer in the trainer may do otherwise.

## Seen in
slime's debugging guide (INT4), THUDM/slime processors/quantizer_compressed_tensors.py
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.views import in_order, repacked, template, views


@rule("QNT028", "packed-by-trainer", severity="error", when=lambda ckpt: not ckpt.is_partial and "slime" in views(ckpt))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    assert ckpt.quantization.main is not None
    main = ckpt.quantization.main
    kinds: dict[tuple[str, bool], tuple[set[str], set[str]]] = {}
    for sent, built in repacked(ckpt):
        modules, engines = kinds.setdefault((template(sent.module), bool(sent.verdict.quantized)), (set(), set()))
        modules.add(sent.module)
        engines.add(f"{built.who} {'drops' if built.consumer == 'sglang' else 'refuses'} what it is sent")
    for (_, packs), (modules, engines) in kinds.items():
        first = in_order(modules)[0]
        last = first.rpartition(".")[2]
        rest = f" and {len(modules) - 1:,} more" if len(modules) > 1 else ""
        does = f"packs {first}{rest} at every sync, which engines build unquantized"
        if not packs:
            does = f"sends {first}{rest} unpacked at every sync, which engines build quantized"
        yield Problem(
            f"slime {does}: {', '.join(sorted(engines))}",
            file=main.file,
            key=main.path("ignore"),
            hint=f"list 're:.*{last}$' for the engine and 're:.*{last}.weight$' for slime" if packs else None,
        )

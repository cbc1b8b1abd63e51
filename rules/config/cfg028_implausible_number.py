"""A rotary base or norm epsilon is implausible, or some versions of transformers take another base.

## What it checks
In a config whose `model_type` transformers knows:

- the base of the language model's rotary embeddings is at least 100 (most released models have 10,000 to 100 million)
- the base of every part is at most 1e15
- the epsilon of the language model's norms is between 1e-13 and 1e-2 (released models have 1e-12 to 1e-3)
- where both `rope_theta` and `rope_parameters` are there, they have the same base
- `rope_parameters` does not stand alone with another base or type than the default of its class, if transformers 4.57 knows the
  class too (an info)
- `rope_theta` does not stand alone with another base than the default of a class that reads `rope_parameters` only: 31 of 843
  classes of transformers 5.24, such as Ministral 3, Gemma 4, ModernBERT and CWM (an info)

## Why it matters
transformers, vLLM and SGLang compute with any number, without a word: an epsilon of 1 makes every norm nearly constant. Of two
bases, transformers 5 takes the one in `rope_parameters`, and whatever is built on transformers 4 takes `rope_theta`: answers get
worse, the more so the longer the text. Where `rope_parameters` stands alone, transformers 4.57 takes the default of the class, and
so does vLLM where it runs on it. transformers 5 writes every config so: an engine or a trainer on transformers 4 then computes with
another base than the one that was trained. Where `rope_theta` stands alone, as converters write it, most classes of transformers 5
take it, and some its default.

## How to fix
Copy the number from the config of the model this one was trained or converted from. For readers of both generations write
`rope_theta`, and `rope_scaling` for another type than `default`, beside `rope_parameters`.

## When it can be wrong
Research on other position encodings may use a small base on purpose: use `--ignore CFG028`. A number that some other model
has passes, however wrong it is for this one.

## Seen in
Open-Athena/MarinFold#184 and THUDM/slime#1720 (two readers of one config take two bases); `patch_rope_parameters` of vLLM
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.architecture import list_written_keys
from ckptcheck.checkpoint.config import NORM_EPSILON
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.resolved_config import ResolvedPart
from ckptcheck.checkpoint.rope_settings import iter_rope
from ckptcheck.checkpoint.setting_text import Fault, is_number
from ckptcheck.checkpoint.views import ConfiguredCheckpoint

LEAST_BASE, LARGEST_BASE = 100.0, 1e15
"""Released language models have 10,000 to 1e11; only a slip of the pen lies beyond these by four digits."""
EPSILONS = (1e-13, 1e-2)
"""Released models have 1e-12 (BERT) to 1e-3 (BatchNorm in encoders); the bounds leave a factor of ten."""
OLDER = (4, 57, 1)
"""The last generation of transformers that reads `rope_theta` and `rope_scaling` alone."""


@rule(
    "CFG028",
    "implausible-number",
    severity="warning",
    on="config",
    when=lambda ckpt: not ckpt.is_partial and ckpt.config.resolved is not None,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    resolved = ckpt.config.resolved
    for part in resolved.parts if resolved is not None else ():
        is_text = resolved is not None and part is resolved.text
        for path, fault in _iter_odd_bases(part, is_text=is_text):
            yield Problem(fault, file=ckpt.config.file, key=path, hint="copy it from the model's own config")
        if is_text:
            yield from _find_odd_epsilons(part, ckpt.config.file)
        if is_text and (taken := _find_unread_by_older(part)) is not None:
            message, missing = taken
            hint = f"if transformers 4 is to load it too, write {missing} as well"
            yield Problem(message, file=ckpt.config.file, key=f"{part.path}rope_parameters", severity="info", hint=hint)
        elif is_text and (unread := _find_unread_by_newer(part)) is not None:
            hint = "write the base into rope_parameters, which transformers 5 reads"
            yield Problem(unread, file=ckpt.config.file, key=f"{part.path}rope_theta", severity="info", hint=hint)


def _iter_odd_bases(part: ResolvedPart, *, is_text: bool) -> Iterator[Fault]:
    """Yield bases that no released model has, and the older of two bases. is_text: whether the part is the language model."""
    bases = {f"{path}.rope_theta": parameters.get("rope_theta") for path, parameters in iter_rope(part)}
    newer = {path: base for path, base in bases.items() if path.startswith(f"{part.path}rope_parameters")}
    older, place = part.settings.get("rope_theta"), f"{part.path}rope_theta"
    if part.config_class.rope:
        bases[place] = older
    for path, base in bases.items():
        if is_number(base) and is_text and base < LEAST_BASE:
            yield path, f"{path} is {base}, and no released language model has a base below {LEAST_BASE:.0f}"
        elif is_number(base) and base > LARGEST_BASE:
            yield path, f"{path} is {base}, and no released model has a base above {LARGEST_BASE:.0e}"
    given = {path: base for path, base in newer.items() if is_number(base)}
    if part.config_class.rope and is_number(older) and given and older not in given.values():
        path, base = next(iter(given.items()))
        yield (
            place,
            f"{place} is {older:,}, and {path} {base:,}: transformers 5 takes the second, and what is built on transformers 4 the "
            "first",
        )


def _find_odd_epsilons(part: ResolvedPart, file: str) -> Iterator[Problem]:
    for key, value in part.settings.items():
        if not NORM_EPSILON.fullmatch(key) or key not in part.config_class.types or not is_number(value):
            continue
        if not EPSILONS[0] <= value <= EPSILONS[1]:
            message = f"{part.path}{key} is {value}, and no released model has an epsilon outside of 1e-12 to 1e-3"
            yield Problem(message, file=file, key=f"{part.path}{key}", hint="copy it from the model's own config")


def _find_unread_by_newer(part: ResolvedPart) -> str | None:
    """Return what transformers 5 takes where only `rope_theta` says otherwise; None where it takes the same."""
    base, rope = part.settings.get("rope_theta"), part.config_class.rope
    if not is_number(base) or not rope.get("theta_unread"):
        return None
    if any(part.settings.get(key) for key in ("rope_parameters", "rope_scaling")):
        return None
    default = rope.get("default") or {}
    kinds = [default, *(each for each in default.values() if isinstance(each, dict))]
    bases = list(dict.fromkeys(each["rope_theta"] for each in kinds if is_number(each.get("rope_theta"))))
    if not bases or base in bases:
        return None
    taken = " and ".join(f"{each:,}" for each in bases)
    return f"only rope_theta gives the base {base:,}: {part.config_class.name} of transformers 5.24 takes its default, {taken}"


def _find_unread_by_older(part: ResolvedPart) -> tuple[str, str] | None:
    """Return what transformers 4.57 takes where only `rope_parameters` says otherwise, and the keys that it would read.

    None where it takes the same.
    """
    rope, default = part.settings.get("rope_parameters"), part.config_class.rope.get("default") or {}
    if any(part.settings.get(key) for key in ("rope_theta", "rope_scaling")) or not isinstance(rope, dict):
        return None
    if not list_written_keys(part.config_class.model_type, OLDER):  # an older version refuses the type
        return None
    base, kind = rope.get("rope_theta"), rope.get("rope_type", "default")
    usual = default.get("rope_theta")
    if not is_number(base) or not is_number(usual) or not isinstance(kind, str):
        return None
    # Classes that turn by default in another way than "default" do so in both generations.
    is_scaled = kind != "default" and default.get("rope_type") == "default"
    if (base == usual and not is_scaled) or not LEAST_BASE <= base <= LARGEST_BASE:
        return None
    stated = f"{base:,.12g}" + (f" with {clip(kind, 20)} scaling" if is_scaled else "")
    taken = f"{usual:,.12g}" + (" without scaling" if is_scaled else "")
    message = f"transformers 4.57, and vLLM on it, do not read rope_parameters: they take the RoPE base {taken} instead of {stated}"
    return message, "rope_theta and rope_scaling" if is_scaled else "rope_theta"

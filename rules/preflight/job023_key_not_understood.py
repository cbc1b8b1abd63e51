"""The configuration has keys that ckptcheck does not know.

## What it checks
Keys are keys that the framework or the engine has, and hold values that it takes. A key that is almost one of them, but for a
letter or two, is a warning, as is one at which the job stops because no version has it. It says what the program does with such a
key where that is known: slime, ROLL and TRL's own scripts drop it, miles, SkyRL, AReaL and open-instruct stop at it, unless a
function or a program of the user's may have added the key.

Of about 150 keys that take a name all values are known, from all releases (`[values]` in the `known_issues.toml` of each framework
and engine). A value that is almost one of them is an error where the program stops at all others, and a warning where a plugin may
add some. One that is far from all of them is a warning where the program stops at it: it may be that of a newer version. A word in
place of a number is a warning.

A key that resembles none is an info: a newer version, or a program of your own, may have it. Where neither the framework's own
configuration is beside the job nor a table of its keys by release is in ckptcheck, keys are only held against similar names, for
ROLL against all names that its keys have had; the first lines of the report say so (`keys`).

## Why it matters
- Some frameworks ignore a misspelt key, and what it should have set keeps its default.
- The key may also be newer than this version of ckptcheck. ckptcheck guesses no value for it; rules that need it are skipped.

## How to fix
Correct the spelling, or leave the key as it is.

## When it can be wrong
For keys of newer versions and of patched frameworks.

## Seen in
slime parses with `ignore_unknown_args=True` (slime/backends/megatron_utils/arguments.py:195), miles without it
(miles/utils/arguments.py:2676), and their flags are held against all of
Megatron's from core 0.10 to d98e8a64dd; SkyRL raises "Invalid fields"
(`validate_dict_keys_against_dataclass`); the names of keys are those of verl 1dda039b9, NeMo-RL 7ea279abf, ROLL 8eb27cc2, prime-rl
559b44772 and PipelineRL 58d3934, and of their releases
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job, UnknownKey, shown
from ckptcheck.jobs.key_names import is_slip
from ckptcheck.text.formatting import count, join_truncated

MOST = 6
"""Largest number of keys in the message; a job of another framework has hundreds of unknown keys."""
MOST_VALUES = 15
"""Largest number of values in a message."""


@rule("JOB023", "key-not-understood", severity="info", on="job")
def check(job: Job) -> Iterator[Problem]:
    unknown_keys = []
    # What Hydra refuses is a finding of its own, with the name that was meant.
    refused = {(refusal.leaf.key, refusal.leaf.line) for refusal in job.refusals if refusal.missing}
    for unknown_key in job.unknown_keys:
        leaf, program = unknown_key.leaf, unknown_key.dropped_by or unknown_key.refused_by
        if (leaf.key, leaf.line) in refused and not unknown_key.values:
            continue
        if unknown_key.values:
            taken, instead = f"{program} takes" if program else "takes", join_truncated(unknown_key.values, MOST_VALUES)
            yield job.problem_at(
                leaf,
                f"{clip(leaf.key)} is {shown(leaf.value)}"
                + (f": did you mean {unknown_key.near}?" if unknown_key.near else f", and {taken} {instead}"),
                f"write {unknown_key.near or instead}",
                # What is far from every known value may be that of a newer version.
                "error" if program and unknown_key.near else "warning",
            )
            continue
        name, near = _find_slip(leaf.key, unknown_key.near)
        is_refused = bool(unknown_key.why and program and not unknown_key.near)
        if not is_refused and (not unknown_key.near or not (program or is_slip(name, near))):
            unknown_keys.append(unknown_key)
            continue
        end = "drops it without a word" if unknown_key.dropped_by else "stops at it"
        what = (
            f"{program} has no {clip(leaf.key)}, and {end}"
            if program and not is_refused
            else f"{clip(leaf.key)} is no known key"
        )
        yield Problem(
            f"{what}: {unknown_key.why if is_refused else f'did you mean {unknown_key.near}?'}",
            file=leaf.file,
            line=leaf.line if leaf.file else None,
            severity="warning",
            hint="correct the key, or leave it out" if is_refused else f"write {_spell_out(unknown_key)}",
        )
    if not unknown_keys:
        return
    by_reason: dict[str, list[str]] = {}
    for unknown_key in unknown_keys[:MOST]:
        line = f":{unknown_key.leaf.line}" if unknown_key.leaf.line else ""
        place = f" ({unknown_key.leaf.file}{line})" if unknown_key.leaf.file else ""
        why = unknown_key.why or (f"did you mean {unknown_key.near}?" if unknown_key.near else "")
        by_reason.setdefault(why, []).append(f"{clip(unknown_key.leaf.key)}{place}")
    parts = [f"{', '.join(keys)}{why and ': '}{why}" for why, keys in by_reason.items()]
    rest = len(unknown_keys) - MOST
    more = f"; and {rest} more" if rest > 0 else ""
    first = unknown_keys[0].leaf
    yield Problem(
        f"ckptcheck does not understand {count(len(unknown_keys), 'setting')}: {'; '.join(parts)}{more}",
        file=first.file,
        line=first.line if first.file else None,
        hint="correct the spelling if it is a mistake",
    )


def _find_slip(key: str, near: str) -> tuple[str, str]:
    """Return (the part of a key that is misspelt, what it means): its last part, or the section that differs."""
    own, meant = ([part.replace("-", "_") for part in re.split(r"[.]|--", each)] for each in (key, near))
    differ = [pair for pair in zip(own, meant, strict=False) if pair[0] != pair[1]] if len(own) == len(meant) else []
    return differ[0] if len(differ) == 1 else (own[-1], meant[-1])


def _spell_out(unknown_key: UnknownKey) -> str:
    """Return the key that was meant as the job would write it: below its section, with its dashes."""
    own, near = unknown_key.leaf.key, unknown_key.near
    return near if re.search(r"[.]|--", near) else own[: -len(re.split(r"[.]|--", own)[-1])] + near

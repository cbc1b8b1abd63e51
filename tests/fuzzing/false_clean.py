"""Edits a sound checkpoint, and holds each verdict `clean` against what transformers makes of the edited files.

Run ``python -m tests.fuzzing.false_clean --seed 1 --count 2000`` (or ``make false-clean``). An edit changes what a config, an index
or a header *says* and leaves it well-formed. What a scan then calls clean (not even a warning) is loaded: it is a false clean
where transformers refuses it, fills weights with random numbers, or leaves stored ones out. Where only the logits differ, the
edited value is one that a model may have (another rotary base): no scan can know it, so that the keys are listed, and not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzzing.checkpoint_edits import edit_files
from tests.paths import FIXTURES

SMALL = tuple(
    FIXTURES / "checkpoints" / name
    for name in ("tiny-llama", "tiny-llama-sharded", "tiny-qwen2-tied", "tiny-qwen3-moe")
)
AUTO_CLASSES = {
    "MODEL_FOR_CAUSAL_LM": "AutoModelForCausalLM",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM": "AutoModelForSeq2SeqLM",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT": "AutoModelForImageTextToText",
    "MODEL_FOR_MASKED_LM": "AutoModelForMaskedLM",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION": "AutoModelForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION": "AutoModelForTokenClassification",
    "MODEL": "AutoModel",
}
"""transformers' tables of architectures → the class that loads them; the first that lists the sound model's is used."""


@dataclass(frozen=True)
class Loaded:
    """What transformers made of a checkpoint."""

    refused: str
    """Why it did not load; "" where it did."""
    invented: tuple[str, ...] = ()
    """Weights that it filled with random numbers."""
    unused: tuple[str, ...] = ()
    """Stored weights that the model has no place for."""
    logits: Any = None
    failure: str = ""
    """Why it computed nothing from ten tokens; "" where it did."""


def main() -> int:
    """Edit, scan, load; print what was called clean and is not. Returns the number of false cleans, at most 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=500, help="how many seeds")
    parser.add_argument(
        "--model",
        type=Path,
        nargs="+",
        help="checkpoints that transformers loads, or folders of them; else the small ones in fixtures/",
    )
    parser.add_argument(
        "--dry-load", action="store_true", help="say which false cleans scan --dry-load transformers would name"
    )
    options = parser.parse_args()
    given = options.model or SMALL
    models = [
        folder for path in given for folder in ([path] if is_model(path) else filter(is_model, sorted(path.iterdir())))
    ]
    outcomes: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as work:
        for seed in range(options.seed, options.seed + options.count):
            edit, outcome = check_edit(seed, Path(work) / "edited", models)
            kind = outcome.partition(":")[0]
            outcomes[kind] += 1
            if kind == "false clean":
                print(f"--seed {seed}: {edit}\n  {outcome}", flush=True)
                if options.dry_load and (named := dry_load(Path(work) / "edited")):
                    outcomes["of which a dry load names"] += 1
                    print(f"  with --dry-load: {named[0]}", flush=True)
            elif kind == "another model":
                keys[edit.partition(" of ")[0]] += 1
    print("; ".join(f"{number} {kind}" for kind, number in outcomes.most_common()))
    print(
        "what changes logits and may be meant:", ", ".join(f"{key} ({number})" for key, number in keys.most_common(40))
    )
    return min(outcomes["false clean"], 100)


def is_model(folder: Path) -> bool:
    """Whether a folder is a checkpoint, and no folder of checkpoints."""
    return (folder / "config.json").exists()


def check_edit(seed: int, folder: Path, models: Sequence[Path] = SMALL) -> tuple[str, str]:
    """Return what was edited, and ``noticed``, ``same``, ``another model``, ``not sound``, or ``false clean: why``."""
    import ckptcheck

    dice = random.Random(seed)
    base = dice.choice(models)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    edit = f"{edit_files(folder, dice)} of {base.name}"
    report = ckptcheck.scan(folder)
    baseline = describe_findings(base)
    if any((one.code, one.severity) not in baseline for one in report.findings if one.severity != "info"):
        return edit, "noticed"
    before = load_sound(base)
    if before.refused:
        return edit, "not sound"
    after = load_model(folder, find_auto_class(base))
    if after.refused:
        return edit, f"false clean: transformers refuses it: {after.refused[:200]}"
    if set(after.invented) - set(before.invented):
        return edit, f"false clean: transformers invents {', '.join(after.invented[:5])}"
    if set(after.unused) - set(before.unused):
        return edit, f"false clean: transformers leaves out {', '.join(after.unused[:5])}"
    if before.failure == after.failure and have_same_logits(before, after):
        return edit, "same"
    return (
        edit,
        f"false clean: transformers cannot compute with it: {after.failure[:200]}"
        if after.failure
        else "another model",
    )


def dry_load(folder: Path) -> list[str]:
    """Return the errors and warnings of scan --dry-load transformers alone."""
    import ckptcheck

    report = ckptcheck.scan(folder, headers_only=True, select=["DRY"], dry_load="transformers")
    return [finding.message for finding in report.findings]


def have_same_logits(before: Loaded, after: Loaded) -> bool:
    """Whether two models compute the same, or neither computes anything."""
    if before.logits is None or after.logits is None:
        return before.logits is after.logits
    return before.logits.shape == after.logits.shape and bool((before.logits == after.logits).all())


@cache
def describe_findings(base: Path) -> frozenset[tuple[str, str]]:
    """Return the codes and severities of the findings of a sound checkpoint."""
    import ckptcheck

    return frozenset((one.code, one.severity) for one in ckptcheck.scan(base).findings)


@cache
def load_sound(base: Path) -> Loaded:
    """Return what transformers makes of the checkpoint before it is edited; some classes no auto class builds."""
    return load_model(base, find_auto_class(base))


@cache
def find_auto_class(base: Path) -> str:
    """Return the name of transformers' auto class for the architecture of a sound checkpoint, or the class itself."""
    from transformers.models.auto import modeling_auto

    (architecture,) = json.loads((base / "config.json").read_text())["architectures"]
    for table, name in AUTO_CLASSES.items():
        listed = getattr(modeling_auto, f"{table}_MAPPING_NAMES").values()
        if any(architecture in ((each,) if isinstance(each, str) else each) for each in listed):
            return name
    return architecture


def load_model(folder: Path, auto_class: str) -> Loaded:
    """Load a checkpoint as transformers does, and score ten tokens."""
    import torch
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    try:
        model, info = getattr(transformers, auto_class).from_pretrained(
            folder, local_files_only=True, output_loading_info=True, dtype=torch.float32
        )
    except Exception as error:  # whatever it is, a user gets no model
        return Loaded(describe_error(error))
    model.eval()
    failure, logits = "", None
    try:
        model.set_experts_implementation("eager")  # the grouped kernel wants rows of 16 bytes
        tokens = torch.arange(1, 11)[None]
        torch.manual_seed(1)
        with torch.no_grad():
            decoded = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
            output = model(input_ids=tokens, **decoded)
        logits = output.logits if hasattr(output, "logits") else output[0]
    except Exception as error:  # some models need an image too
        failure = describe_error(error)
    mismatched = [str(each[0]) for each in info["mismatched_keys"]]
    return Loaded(
        "", tuple(sorted([*info["missing_keys"], *mismatched])), tuple(sorted(info["unexpected_keys"])), logits, failure
    )


def describe_error(error: Exception) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())

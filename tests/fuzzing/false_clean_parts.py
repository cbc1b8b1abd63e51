"""Edits tokenizers, adapters and quantized checkpoints, and holds each verdict `clean` against what loads them.

Run ``python -m tests.fuzzing.false_clean_parts --kind adapters --seed 1 --count 200`` (``make false-clean`` runs all kinds).
What a scan calls clean (not even a warning) is loaded by transformers (with compressed-tensors, bitsandbytes, GPTQModel, as the
format wants and as far as they are installed), by PEFT, or as a tokenizer. It is a false clean where the loader refuses it, fills
weights with random numbers, or leaves stored ones out; what only computes otherwise is printed with ``--show``, for a reader.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fuzzing import adapter_edits, quantized_edits, tokenizer_edits


@dataclass(frozen=True)
class Kind:
    """One kind of checkpoints: how sound ones are built, edited, loaded."""

    build: Callable[[Path], list[Path]]
    edit: Callable[[Path, random.Random], str]
    load: Callable[[Path], Loaded]


@dataclass(frozen=True)
class Loaded:
    """What a library made of the files."""

    refused: str = ""
    """Why it did not load, or computed nothing; "" where it did."""
    invented: frozenset[str] = frozenset()
    """Weights that it filled with random numbers."""
    unused: frozenset[str] = frozenset()
    """Stored weights that it left out."""
    computed: Any = None
    """What it computes: anything that compares by its bits."""


TEXTS = (
    "The quick brown fox writes 12 checkpoints; nobody reads them.",
    "  two spaces, a tab\tand a line\nbreak",
    "<|im_start|>user\nWhat is a <tool>?<|im_end|>",
    "Größe 数据 🙂",
)
CHAT = [{"role": "user", "content": "What is a shard?"}, {"role": "assistant", "content": "A file of weights."}]


def main() -> int:
    """Edit, scan, load; print what was called clean and is not. Returns the number of false cleans, at most 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(KINDS), nargs="+", default=sorted(KINDS))
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds of each kind")
    parser.add_argument("--show", action="store_true", help="print also what only computes otherwise")
    options = parser.parse_args()
    false_cleans = 0
    with tempfile.TemporaryDirectory() as work:
        for name in options.kind:
            fuzzer = Fuzzer(KINDS[name], Path(work) / name)
            outcomes: Counter[str] = Counter()
            for seed in range(options.seed, options.seed + options.count):
                edit, outcome = fuzzer.check_edit(seed)
                kind = outcome.partition(":")[0]
                outcomes[kind] += 1
                if kind == "false clean" or (options.show and kind == "another"):
                    print(f"--kind {name} --seed {seed}: {edit}\n  {outcome}", flush=True)
            print(f"{name}: " + "; ".join(f"{number} {kind}" for kind, number in outcomes.most_common()), flush=True)
            false_cleans += outcomes["false clean"]
    return min(false_cleans, 100)


class Fuzzer:
    """Sound checkpoints of one kind, and what they are worth before an edit."""

    def __init__(self, kind: Kind, work: Path) -> None:
        """Build the checkpoints; only those that this machine loads and a scan calls clean are edited."""
        self.kind, self.work = kind, work
        with quiet():
            built = kind.build(work / "sound")
            loaded = {folder: kind.load(folder) for folder in built}
        self.sound = {folder: each for folder, each in loaded.items() if not each.refused}
        self.baseline = {folder: scan(folder) for folder in self.sound}

    def check_edit(self, seed: int) -> tuple[str, str]:
        """Return what was edited, and ``noticed``, ``same``, ``another: …``, or ``false clean: why``."""
        dice = random.Random(seed)
        base = dice.choice(sorted(self.sound))
        folder = self.work / "edited"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        edit = f"{self.kind.edit(folder, dice)} of {base.name}"
        if scan(folder) - self.baseline[base]:
            return edit, "noticed"
        with quiet():
            before, after = self.sound[base], self.kind.load(folder)
        if after.refused:
            return edit, f"false clean: it is refused: {after.refused[:200]}"
        if after.invented - before.invented:
            return edit, f"false clean: invented {', '.join(sorted(after.invented)[:5])}"
        if len(after.unused) > len(before.unused):  # under other names the same ones may be left out
            return edit, f"false clean: left out {', '.join(sorted(after.unused - before.unused)[:5])}"
        return edit, "same" if after.computed == before.computed else f"another: {describe_change(before, after)}"


def describe_change(before: Loaded, after: Loaded) -> str:
    """Say in one line which results differ, where they are texts and ids."""
    if not isinstance(before.computed, dict):
        return "other logits"
    changed = [key for key in before.computed if before.computed[key] != after.computed.get(key)]
    return f"{changed[0]}: {before.computed[changed[0]]!r:.150} became {after.computed.get(changed[0])!r:.150}"


def scan(folder: Path) -> set[tuple[str, str]]:
    """Return the codes and severities of what a scan finds, without infos."""
    import ckptcheck

    found = folder / "adapter" if (folder / "adapter").exists() else folder
    return {(one.code, one.severity) for one in ckptcheck.scan(found).findings if one.severity != "info"}


@contextlib.contextmanager
def quiet() -> Any:
    """Keep what libraries print from the terminal."""
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def load_quantized(folder: Path) -> Loaded:
    """Load a quantized checkpoint as transformers does, and score twenty tokens."""
    import torch
    import transformers

    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, dtype=torch.bfloat16
        )
        invented = names_in(info, "missing_keys", "mismatched_keys")
        # QNT013 says as an info that scales of the cache are not stored: the engines take 1
        invented = frozenset(name for name in invented if not name.endswith((".k_scale", ".v_scale")))
        return Loaded("", invented, names_in(info, "unexpected_keys"), score(model))
    except Exception as error:  # whatever it is, a user gets no model
        return Loaded(describe_error(error))


def names_in(info: Any, *keys: str) -> frozenset[str]:
    """Return the names of tensors in a loading report of transformers."""
    return frozenset(each if isinstance(each, str) else str(each[0]) for key in keys for each in info[key])


def score(model: Any) -> bytes:
    """Return the logits of twenty tokens, as bytes."""
    import torch

    with torch.no_grad():
        logits: bytes = model.eval()(input_ids=torch.arange(1, 21)[None]).logits.float().numpy().tobytes()
    return logits


def load_adapter(folder: Path) -> Loaded:
    """Load an adapter onto its base model as PEFT does, and score twenty tokens."""
    import peft
    import torch
    import transformers

    try:
        torch.manual_seed(1)
        base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", local_files_only=True)
        reports: list[Any] = []
        load = peft.PeftModel.load_adapter

        def load_and_keep_report(*args: Any, **kwargs: Any) -> Any:
            reports.append(load(*args, **kwargs))
            return reports[-1]

        with mock.patch.object(peft.PeftModel, "load_adapter", load_and_keep_report):
            model = peft.PeftModel.from_pretrained(base, folder / "adapter", local_files_only=True)
        (report,) = reports
        return Loaded("", frozenset(report.missing_keys), frozenset(report.unexpected_keys), score(model))
    except Exception as error:  # whatever it is, a user gets no model
        return Loaded(describe_error(error))


def load_tokenizer(folder: Path) -> Loaded:
    """Load a tokenizer as transformers does, and use it."""
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if (folder / "generation_config.json").exists():
            transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
        computed = {text: tokenizer(text)["input_ids"] for text in TEXTS}
        computed |= {f"decoded {text}": tokenizer.decode(computed[text]) for text in TEXTS}
        computed |= {"plain": tokenizer.decode(computed[TEXTS[2]], skip_special_tokens=True)}
        computed |= {role: getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad", "unk")}
        computed |= {"length": len(tokenizer)}
        if tokenizer.chat_template is not None:  # a base model has none, and no file shows that one was lost
            computed |= {
                f"chat {prompt}": tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt)
                for prompt in (False, True)
            }
        if tokenizer.pad_token is not None:
            computed |= {"padded": tokenizer(list(TEXTS[:2]), padding=True, truncation=True)["input_ids"]}
        return Loaded(computed=computed)
    except BaseException as error:  # tokenizers panics with one that is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return Loaded(describe_error(error))


def describe_error(error: BaseException) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")


KINDS = {
    "quantized": Kind(quantized_edits.build_checkpoints, quantized_edits.edit_quantized, load_quantized),
    "adapters": Kind(adapter_edits.build_adapters, adapter_edits.edit_adapter, load_adapter),
    "tokenizers": Kind(tokenizer_edits.build_models, tokenizer_edits.edit_tokenizer, load_tokenizer),
}

if __name__ == "__main__":
    sys.exit(main())

"""A scan against transformers on a sample of edited configs: what transformers refuses, or invents weights for, is an error.

The sample has 16 edits of one key each, drawn from some 200 possible ones, for each of 20 architectures. Each edit of a tiny
checkpoint's config.json is loaded with transformers. Where that stops, initializes weights itself or leaves some out, the scan
must have an error, unless MISSED lists it; where the loaded model computes the same, it must have none.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import damage
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules

pytestmark = pytest.mark.zoo
RULES = [rule for rule in rule_loader.load_rules() if rule.on in ("checkpoint", "config", "layers")]
ARCHITECTURES = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "MistralForCausalLM", "MixtralForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "DeepseekV3ForCausalLM",
    "Phi3ForCausalLM", "GPTNeoXForCausalLM", "FalconForCausalLM", "Olmo2ForCausalLM", "GptOssForCausalLM",
    "Glm4MoeForCausalLM", "CohereForCausalLM", "GraniteForCausalLM", "MambaForCausalLM", "OPTForCausalLM",
)  # fmt: skip
EDITS_PER_ARCHITECTURE = 16
"""A sample, the same in every run: all edits of all architectures take half an hour."""
ABSENT = object()
UNREAD = {"transformers_version", "architectures", "_name_or_path", "id2label", "label2id", "dtype"}
MISSED = {
    ("DeepseekV3ForCausalLM", "head_dim"),  # these three stop in the first forward pass only, which no dry load sees
    ("Gemma2ForCausalLM", "sliding_window"),
    ("GptOssForCausalLM", "sliding_window"),
    ("Qwen3MoeForCausalLM", "head_dim"),  # `--dry-load transformers` names these four
    ("GPT2LMHeadModel", "attn_pdrop"),
    ("GPT2LMHeadModel", "resid_pdrop"),
    ("OPTForCausalLM", "word_embed_proj_dim"),  # an embedding narrower than the model adds projections
}
"""Architecture and key of the edits of the sample that transformers does not survive, and that no rule of a plain scan sees."""
TOKENS = [[3, 5, 9, 17, 4, 33, 2, 8]]
Truth = Literal["stops", "invents", "same", "differs"]


def list_edits(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield key and new value: absent, null, another type, another size."""
    for key, value in config.items():
        if key in UNREAD:
            continue
        others: tuple[Any, ...] = (ABSENT, None)
        match value:
            case bool():
                others += (not value, "x", 1)
            case int():
                others += (str(value), [value], -value or -1, 0, 2 * value, value + 1, True, float(value))
            case float():
                others += (str(value), [value], -value)
            case str():
                others += ("x", 3, [value])
            case list():
                others += (value[:-1], [*value, *value[-1:]], "x")
            case dict():
                others += ([], "x")
        yield from ((key, other) for other in others)
    for kind in ("linear", "dynamic", "yarn", "llama3", "longrope", "x"):
        yield "rope_scaling", {"rope_type": kind}


def compute_logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor(TOKENS)).logits.float()


def ask_transformers(folder: Path, logits: Any) -> Truth:
    """Load the checkpoint as its users do, and compare what it computes."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
            return "invents"
        found = compute_logits(model)
    except Exception:  # whatever it raises, the user has no model
        return "stops"
    return "same" if found.shape == logits.shape and torch.equal(found, logits) else "differs"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_scan_agrees_with_transformers_on_a_sample_of_edits(zoo: Path, tmp_path: Path, architecture: str) -> None:
    import torch
    import zoo as zoo_script
    from transformers import AutoModelForCausalLM

    zoo_script.quiet()
    torch.set_num_threads(1)
    folder = damage.linked_copy(zoo / architecture, tmp_path / architecture)
    config = json.loads((folder / "config.json").read_bytes())
    logits = compute_logits(AutoModelForCausalLM.from_pretrained(folder))
    edits = list(list_edits(config))
    wrong = []
    for key, value in random.Random(architecture).sample(edits, EDITS_PER_ARCHITECTURE):
        edited = copy.deepcopy(config)
        if value is ABSENT:
            edited.pop(key)
        else:
            edited[key] = copy.deepcopy(value)
        damage.replace(folder / "config.json", json.dumps(edited).encode())
        report = run_rules(open_checkpoint(str(folder)), RULES)
        assert not report.crashed, (key, value, report.crashed)
        codes = {finding.code for finding in report.findings if finding.severity == "error"}
        truth = ask_transformers(folder, logits)
        is_missed = truth in ("stops", "invents") and not codes and (architecture, key) not in MISSED
        if is_missed or (truth == "same" and codes):
            wrong.append((key, "absent" if value is ABSENT else value, truth, codes))
    shutil.rmtree(folder)
    assert wrong == []

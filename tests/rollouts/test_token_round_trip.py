"""Conversations in the tokens of a real model, through text and back, as the command judges them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ckptcheck import judge
from ckptcheck.rollouts import Metadata, Rollout, SamplingInfo, build_rollouts, write_rollouts

pytest.importorskip("transformers")

TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "Which river flows through Vienna?"},
    {"role": "assistant", "content": "<think>\nCapital of Austria.\n</think>\n\nThe Danube."},
    {"role": "user", "content": "And through Rome?"},
    {"role": "assistant", "content": "The Tiber."},
]
STRIPPING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture
def conversation(smollm2: Path, tmp_path: Path) -> tuple[Path, list[int]]:
    """A file of one conversation as transformers renders it, without the newline behind its end, and its tokens."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer.apply_chat_template(TURNS, tokenize=True, return_dict=True)["input_ids"]
    ids = ids[: len(ids) - ids[::-1].index(tokenizer.eos_token_id)]
    prompt = len(tokenizer.apply_chat_template(TURNS[:-1], add_generation_prompt=True, return_dict=True)["input_ids"])
    logprobs = [-0.5 - 0.001 * place for place in range(len(ids))]
    made = [Rollout(ids, prompt, engine=logprobs, trainer=logprobs)]
    metadata = Metadata(sampling=SamplingInfo(1.0, 1.0, 0, 64))
    write_rollouts(build_rollouts(made, metadata), tmp_path / "step0.safetensors")
    return tmp_path / "step0.safetensors", ids


def codes(report: Any) -> dict[str, str]:
    """Return code → messages of the findings about text, ends and bits."""
    found: dict[str, str] = {}
    for finding in report.findings:
        if finding.code in ("PAR073", "PAR074", "PAR075", "PAR076"):
            found[finding.code] = "; ".join(filter(None, (found.get(finding.code), finding.message)))
    return found


def test_same_template(conversation: tuple[Path, list[int]], smollm2: Path) -> None:
    assert codes(judge(conversation[0], checkpoint=smollm2, exact=True)) == {}


def test_template_that_drops_thinking(conversation: tuple[Path, list[int]], smollm2: Path, tmp_path: Path) -> None:
    file, _ = conversation
    folder = tmp_path / "stripping"
    folder.mkdir()
    for each in smollm2.iterdir():
        if each.name != "chat_template.jinja":
            os.link(each, folder / each.name)
    (folder / "chat_template.jinja").write_text(STRIPPING)
    found = codes(judge(file, checkpoint=folder))
    assert found == {
        "PAR073": "1 of 1 conversation is another text when rendered again, the first from turn 2 (assistant) on: the template"
        " drops what was thought there"
    }


def test_faults_of_the_tokens(conversation: tuple[Path, list[int]], smollm2: Path, tmp_path: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    _, ids = conversation
    river = tokenizer("The Tiber", add_special_tokens=False)["input_ids"]
    begin = next(place for place in range(len(ids)) if ids[place : place + len(river)] == river)
    letters = [token for letter in "The Tiber" for token in tokenizer(letter, add_special_tokens=False)["input_ids"]]
    broken = [*ids[:begin], *letters, *ids[begin + len(river) : -1], *ids[-1:], *river]
    metadata = Metadata(sampling=SamplingInfo(1.0, 1.0, 0, 64))
    path = tmp_path / "broken.jsonl"
    write_rollouts(build_rollouts([Rollout(broken, begin, engine=[-0.5] * len(broken))], metadata), path)
    found = codes(judge(path, checkpoint=smollm2))
    assert found.keys() == {"PAR074", "PAR076"}
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == ids[-1]
    assert f"the first is token {ids[-1]}" in found["PAR076"]
    assert "neither by an end token nor by length" in found["PAR076"]

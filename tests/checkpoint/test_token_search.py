"""The search for many tokens finds what one search a token finds, in time that does not grow with their number."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from ckptcheck.checkpoint.chat_template import markers
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.token_search import LONGEST_TOKEN, TokenSearch
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.limited_child import run_limited


@pytest.mark.parametrize("letters", ["a", "ab", "ab<|>"])
def test_it_finds_what_one_search_a_token_finds(letters: str) -> None:
    chance = random.Random(0)
    for _ in range(300):
        tokens = {"".join(chance.choices(letters, k=chance.randint(1, 9))) for _ in range(chance.randint(0, 30))}
        text = "".join(chance.choices(letters, k=chance.randint(0, 60)))
        search = TokenSearch(tokens)
        assert search.find_contained([text]) == {token for token in tokens if token in text}
        for at in range(len(text)):
            longest = max((token for token in tokens if text.startswith(token, at)), key=len, default=None)
            assert search.token_at(text, at) == longest


def test_a_token_of_no_letters_and_one_that_is_too_long_are_left_out() -> None:
    search = TokenSearch(["", "a" * (LONGEST_TOKEN + 1)])
    assert search.find_contained(["a" * 2000]) == set()


def test_of_tokens_at_one_place_the_longest_counts() -> None:
    search = TokenSearch(["<s", "<s>", "s>x", "[INST]"])
    assert markers("<s>x[INST]<|new|>", search) == ["<s>", "[INST]", "<|new|>"]


LETTERS = "".join(chr(0x4E00 + n) for n in range(20_000))
HOSTILE = {
    "tokens that are not in a long text": ([f"<x{n}>" for n in range(60_000)], "0>1>2>3>4>" * 25_000),
    "tokens that all are in the text": (
        [f"<{a}{b}>" for a in LETTERS[:250] for b in LETTERS[:240]],
        "".join(f"<{a}{b}>" for a in LETTERS[:250] for b in LETTERS[:240]),
    ),
    "tokens that begin with each other": (["<" + "a" * n for n in range(1, 990)], ("<" + "a" * 980 + "b") * 260),
    "tokens that end with each other": (["a" * n + "b" for n in range(990)], "a" * 250_000),
    "forms of tokens that no file has": (["<s>"], "".join(f"<|{a}|>" for a in LETTERS) * 2),
    "a name that a pattern reads again and again": (
        [*(f"<{n}>" for n in range(2000)), "<" + "image" * 200_000], "<s>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_many_tokens_and_a_long_template_come_to_an_end(name: str, tmp_path: Path) -> None:
    tokens, template = HOSTILE[name]
    folder = tmp_path / "chat"
    shutil.copytree(CHECKPOINTS / "tiny-chat", folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    first = max(content["model"]["vocab"].values()) + 1
    content["added_tokens"] += [
        {"id": first + n, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False} for n, token in enumerate(tokens)
    ]  # fmt: skip
    path.unlink()
    path.write_text(json.dumps(content), encoding="utf-8")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}" + template, encoding="utf-8"
    )
    rules = [rule for rule in rule_loader.load_rules() if rule.code.startswith("TOK")]
    outcome = run_limited(lambda: str(run_rules(open_checkpoint(str(folder)), rules).crashed))
    assert (outcome.fault, outcome.answer) == ("", "()")

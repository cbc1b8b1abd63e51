"""What engines are asked: text in the model's own template, made-up ids, a user's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.record import DefaultPrompts
from ckptcheck.rollouts import prompts as make

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def reader(tmp_path: Path) -> make.PromptTokenizer:
    """A tokenizer of single characters, with control tokens."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    letters = [chr(code) for code in range(32, 127)] + ["“", "”", "\n"]
    vocabulary = {letter: place for place, letter in enumerate(["<unk>", *letters])}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.add_special_tokens(["<|user|>", "<|assistant|>", "<|end|>"])
    return make.PromptTokenizer(made, TEMPLATE, {})


def test_text_fills_the_length_and_opens_an_answer(reader: make.PromptTokenizer) -> None:
    found = make.make_text_prompts(reader, 200, 3)
    assert all(180 < len(tokens) <= 200 for tokens in found)
    assert len(set(found)) == 3
    first, last = reader.tokenize("<|user|>")[0], reader.tokenize("<|assistant|>")[0]
    assert all(tokens[0] == first and tokens[-1] == last for tokens in found)
    assert make.make_text_prompts(reader, 200, 3) == found


def test_a_length_without_room_for_a_word_is_refused(reader: make.PromptTokenizer) -> None:
    with pytest.raises(CkptcheckError, match="4 tokens are too few for a conversation"):
        make.make_text_prompts(reader, 4, 1)


def test_a_template_that_refuses_says_so(reader: make.PromptTokenizer) -> None:
    strict = make.PromptTokenizer(reader.tokenizer, "{{ raise_exception('no users here') }}", {})
    with pytest.raises(CkptcheckError, match="does not take the conversation"):
        make.make_text_prompts(strict, 100, 1)
    deaf = make.PromptTokenizer(reader.tokenizer, "always the same", {})
    with pytest.raises(CkptcheckError, match="drops what the user says"):
        make.make_text_prompts(deaf, 100, 1)


def test_made_up_ids_are_ordinary_and_the_same_every_time() -> None:
    found = make.make_synthetic_prompts(512, 40, 4)
    assert found == make.make_synthetic_prompts(512, 40, 4)
    assert len(set(found)) == 4
    assert all(8 <= token < 512 for tokens in found for token in tokens)


def test_a_file_holds_tokens_conversations_or_lines(reader: make.PromptTokenizer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    talk = {"messages": [{"role": "user", "content": "Hi"}]}
    file.write_text(f'{{"tokens": [5, 6]}}\n\n{json.dumps(talk)}\nHi\n{{"prompt": "Hi"}}\n')
    plain = reader.tokenize("<|user|>Hi<|end|><|assistant|>")
    assert make.read_prompts_file(file, reader) == [(5, 6), plain, plain, reader.tokenize("Hi")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"tokens": [5, -1]}', "line 1 of .* are not all token ids|tokens in line 1"),
        ('{"tokens": ', "line 1 of .* is no JSON"),
        ('{"question": 1}', "has neither tokens nor messages nor a text"),
        ("", "holds no prompts"),
    ],
)
def test_a_line_that_says_nothing_is_named(reader: make.PromptTokenizer, tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(line)
    with pytest.raises(CkptcheckError, match=said):
        make.read_prompts_file(file, reader)


def test_a_checkpoint_without_a_tokenizer_is_asked_in_ids(tmp_path: Path) -> None:
    import live

    folder = live.write("llama", tmp_path / "llama")
    asking = DefaultPrompts(open_checkpoint(str(folder)))
    assert asking.tokenizer_error.endswith("has no tokenizer.json, so text cannot be made into tokens")
    assert [len(tokens) for tokens in asking.choose(20, 2)] == [20, 20]
    assert asking.stop_tokens == {2: "config.json"}
    assert asking.conversation is None
    assert asking.context_length == 512
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"tokens": [5, 600]}')
    with pytest.raises(CkptcheckError, match="token 600 is in a prompt, and the model has 512"):
        asking.choose(20, 2, file)

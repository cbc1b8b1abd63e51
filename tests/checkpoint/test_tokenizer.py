"""The tokenizer rules against the real `tokenizers` and jinja, real models, sound families and hostile templates."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import damage
import pytest

from ckptcheck.checkpoint import chat_template
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.tokenizer import Tokenizer
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from tests.conftest import needs
from tests.factories.chat_families import FAMILIES, Family
from tests.factories.checkpoint_cases import CHECKPOINTS, build_checkpoint, edit_tensors, format_finding

RULES = [rule for rule in rule_loader.load_rules() if rule.code.startswith("TOK") and rule.code != "TOK014"]
"""The rules that read no values."""
CHAT = CHECKPOINTS / "tiny-chat"


def scan(folder: Path) -> Report:
    report = run_rules(open_checkpoint(str(folder)), RULES)
    assert not report.crashed
    return report


def codes(folder: Path) -> set[str]:
    return {finding.code for finding in scan(folder).findings}


def tokenizer_of(folder: Path) -> Tokenizer:
    found = open_checkpoint(str(folder)).tokenizer
    assert found is not None
    return found


def edited(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    value = json.loads(path.read_text(encoding="utf-8")) | changes
    path.unlink()  # a copy of a real model is made of links
    path.write_text(json.dumps(value), encoding="utf-8")


# The ids, held equal to those of the library


def agrees(path: Path) -> None:
    """What is read of a tokenizer.json is what `tokenizers` makes of it."""
    from tokenizers import Tokenizer as Real

    real, read = Real.from_file(str(path)), tokenizer_of(path.parent)
    vocabulary = read.require_vocabulary()
    assert vocabulary.ids == real.get_vocab(with_added_tokens=True)
    assert vocabulary.model == real.get_vocab(with_added_tokens=False)
    theirs = {number: (token.content, token.special) for number, token in real.get_added_tokens_decoder().items()}
    assert {token.id: (token.content, token.special) for token in vocabulary.added} == theirs
    assert all(read.token_for(number) == real.id_to_token(number) for number in vocabulary.ids.values())
    assert read.max_id == max(real.get_vocab().values())


def test_the_ids_of_smollm2_are_those_of_tokenizers(smollm2: Path) -> None:
    agrees(smollm2 / "tokenizer.json")


def test_the_ids_of_minilm_are_those_of_tokenizers(minilm: Path) -> None:
    agrees(minilm / "tokenizer.json")


@pytest.mark.parametrize("seed", range(60))
def test_the_ids_are_those_of_tokenizers(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    words = [f"w{number}" for number in range(12)]
    own = dice.sample(words, dice.randint(1, 8))
    kind = dice.choice(["WordLevel", "BPE", "WordPiece", "Unigram"])
    holes = sorted(dice.sample(range(len(own) + dice.choice([0, 0, 5])), len(own)))  # mostly without holes
    model: dict[str, Any] = {"type": kind, "vocab": dict(zip(own, holes, strict=True)), "unk_token": own[0]}
    if kind == "BPE":
        model["merges"] = []
    elif kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
    elif kind == "Unigram":
        model = {"type": kind, "vocab": [[word, -float(place)] for place, word in enumerate(own)], "unk_id": 0}
    added = [
        {"id": dice.randint(0, 30), "content": dice.choice([*words, ""]), "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": dice.random() < 0.5}
        for _ in range(dice.randint(0, 6))
    ]  # fmt: skip
    value = {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None,
             "post_processor": None, "decoder": None, "truncation": None, "padding": None, "model": model}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes((CHAT / "model.safetensors").read_bytes())
    agrees(tmp_path / "tokenizer.json")


NAMED: list[dict[str, Any]] = [
    {"extra_special_tokens": ["<a>", "<b>", "w3"]},
    {"additional_special_tokens": ["<a>", {"content": "<b>", "special": True, "__type": "AddedToken"}]},
    {"additional_special_tokens": ["<a>"], "extra_special_tokens": ["<b>"]},
    {"additional_special_tokens": ["<a>"], "extra_special_tokens": []},
    {"extra_special_tokens": {"image_token": "<a>", "other": "<b>"}},
    {"think_token": "<a>", "extra_special_tokens": {"image_token": "<b>"}},
    {"mask_token": "<m>", "pad_token": "<p>", "eos_token": "<e>", "unk_token": "<u>", "extra_special_tokens": ["<a>"]},
    {"pad_token": {"content": "<p>", "__type": "AddedToken"}, "boi_token": "<a>", "additional_special_tokens": None},
    {"eos_token": "<|im_end|>", "extra_special_tokens": "<a>"},
]


@pytest.mark.parametrize("number", range(len(NAMED)))
def test_what_transformers_appends(number: int, tmp_path: Path) -> None:
    needs("transformers", "torch")
    from transformers import AutoTokenizer

    folder = build_checkpoint({"base": "tiny-chat"}, tmp_path / "ckpt")
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMED[number]), encoding="utf-8")
    read = tokenizer_of(folder)
    try:
        real = AutoTokenizer.from_pretrained(folder)
    except TypeError:
        assert not read.implicit_added_tokens
        return
    assert real.get_vocab() == read.ids | read.implicit_added_tokens


def test_vocabularies_of_older_tokenizers(tmp_path: Path) -> None:
    folder = build_checkpoint({"base": "tiny-chat", "delete": ["tokenizer.json"]}, tmp_path / "words")
    (folder / "vocab.txt").write_text("[PAD]\n[unused0]\nzebra\n", encoding="utf-8")
    read = tokenizer_of(folder)
    assert (read.ids, read.is_reserved(1), read.is_reserved(2)) == (
        {"[PAD]": 0, "[unused0]": 1, "zebra": 2},
        True,
        False,
    )
    (folder / "vocab.json").write_text('{"zebra": 0, "quokka": 1}', encoding="utf-8")
    (folder / "added_tokens.json").write_text('{"<|im_end|>": 7}', encoding="utf-8")
    assert tokenizer_of(folder).ids == {"zebra": 0, "quokka": 1, "<|im_end|>": 7}


@pytest.mark.parametrize(
    "name",
    ["<|reserved_special_token_3|>", "[unused12]", "<unused5>", "<|extra_1|>", "<SPECIAL_9>", "<|dummy_0|>",
     "<｜place▁holder▁no▁1｜>", "<|reserved_200017|>"],
)  # fmt: skip
def test_places_kept_free(name: str, tmp_path: Path) -> None:
    folder = build_checkpoint(
        {"base": "tiny-chat", "json": {"tokenizer.json": {f"model/vocab/{name}": 30}}}, tmp_path / "ckpt"
    )
    read = tokenizer_of(folder)
    assert (read.token_for(30), read.is_reserved(30), read.why_used(30)) == (name, True, None)
    assert not any(read.is_reserved(number) for number in range(30))


# What plays which part


def test_roles() -> None:
    read = tokenizer_of(CHAT)
    assert [(role.name, role.token, role.id) for role in read.roles] == [
        ("bos_token", "<|im_start|>", 1),
        ("eos_token", "<|im_end|>", 2),
        ("pad_token", "<|pad|>", 3),
        ("unk_token", "<|endoftext|>", 0),
    ]
    assert read.turn_end == "<|im_end|>"
    assert read.turn_end_tokens == ("<|im_end|>",)
    assert dict(read.template_tokens) == dict.fromkeys(["<|im_start|>", "<|im_end|>"], "the chat template emits it")
    assert read.why_used(2) == "it is eos_token_id of generation_config.json"
    assert read.why_used(0) == "it is unk_token of tokenizer_config.json"
    assert [read.is_special(number) for number in (0, 3, 4)] == [True, True, False]
    assert read.why_used(9) is None


def test_a_token_that_only_the_template_needs(tmp_path: Path) -> None:
    text = "{% for m in messages %}{{ m.content + '<|pad|>' }}{% if tools == 7 %}<|endoftext|>{% endif %}{% endfor %}"
    folder = build_checkpoint({"base": "tiny-chat", "text": {"chat_template.jinja": text}}, tmp_path / "ckpt")
    for file in ("tokenizer_config.json", "generation_config.json"):
        (folder / file).write_text("{}", encoding="utf-8")
    edited(folder, "config.json", pad_token_id=None)
    read = tokenizer_of(folder)
    assert read.why_used(3) == "it ends the assistant's turn in the chat template"
    assert read.why_used(0) == "the chat template mentions it"


@pytest.mark.parametrize("name", ["decoder_start_token_id", "forced_bos_token_id"])
def test_what_a_decoder_begins_with_is_used(name: str, tmp_path: Path) -> None:
    for number, reason in ((9, f"it is {name} of config.json"), (3, "it is pad_token_id of generation_config.json")):
        folder = build_checkpoint(
            {"base": "tiny-chat", "json": {"config.json": {name: number}}}, tmp_path / f"{number}"
        )
        assert tokenizer_of(folder).why_used(number) == reason
    folder = build_checkpoint({"base": "tiny-chat", "json": {"config.json": {name: [9, True]}}}, tmp_path / "odd")
    assert tokenizer_of(folder).why_used(9) is None


def test_which_template_counts(tmp_path: Path) -> None:
    folder = build_checkpoint({"base": "tiny-chat"}, tmp_path / "ckpt")
    edited(folder, "tokenizer_config.json", chat_template="from the config")
    (folder / "chat_template.json").write_text('{"chat_template": "of the processor"}', encoding="utf-8")

    def text() -> str:
        found = tokenizer_of(folder).template
        assert found is not None
        return found.text

    assert "im_start" in text()
    (folder / "chat_template.jinja").unlink()
    assert text() == "from the config"
    edited(
        folder,
        "tokenizer_config.json",
        chat_template=[{"name": "a_rag", "template": "b"}, {"name": "default", "template": "a"}],
    )
    assert text() == "a"
    edited(folder, "tokenizer_config.json", chat_template=None)
    assert tokenizer_of(folder).template is None  # a model for text has no processor, and AutoTokenizer does not look
    edited(folder, "tokenizer_config.json", processor_class="OwnProcessor")
    assert text() == "of the processor"


@pytest.mark.parametrize("decoder", [False, True])
def test_which_file_names_the_special_tokens_is_decided_as_in_transformers(decoder: bool, tmp_path: Path) -> None:
    needs("transformers", "torch")
    from transformers import AutoTokenizer

    folder = build_checkpoint({"base": "tiny-chat"}, tmp_path / "ckpt")
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|pad|>", "bos_token": null}', encoding="utf-8")
    (folder / "added_tokens.json").write_text('{"<|foo|>": 30}', encoding="utf-8")
    if decoder:
        pad = {"content": "<|pad|>", "special": True, "normalized": False}
        edited(folder, "tokenizer_config.json", added_tokens_decoder={"3": pad})
    read, real = tokenizer_of(folder), AutoTokenizer.from_pretrained(folder)
    found = {role.name: role.token for role in read.roles}
    assert (found["eos_token"], found.get("bos_token")) == (real.eos_token, real.bos_token)
    assert read.max_id + 1 == len(real) == (30 if decoder else 31)


def test_a_token_that_only_the_template_for_tools_needs(tmp_path: Path) -> None:
    text = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ eos_token }}<|pad|>{% endif %}"
    folder = build_checkpoint(
        {"base": "tiny-chat", "text": {"additional_chat_templates/tool_use.jinja": text}}, tmp_path / "ckpt"
    )
    for file in ("config.json", "generation_config.json"):
        edited(folder, file, pad_token_id=None)
    edited(folder, "tokenizer_config.json", pad_token=None)
    assert tokenizer_of(folder).why_used(3) == "the chat template for tools emits it"
    (folder / "additional_chat_templates" / "tool_use.jinja").rename(folder / "additional_chat_templates" / "rag.jinja")
    assert tokenizer_of(folder).why_used(3) is None


# Sound families


def family_folder(family: Family, folder: Path) -> Path:
    shutil.copytree(CHAT, folder)
    edit_tensors(
        folder / "model.safetensors",
        {name: {"dtype": "F32", "shape": [64, 8]} for name in ("model.embed_tokens.weight", "lm_head.weight")},
    )
    ends = [family.tokens.index(token) + 30 for token in family.ends]
    tokens = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for number, token in enumerate(family.tokens, 30)
    ]  # fmt: skip
    value = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    value["added_tokens"] = tokens
    value["model"] |= {"vocab": {f"w{number}": number for number in range(30)}, "unk_token": "w0"}
    (folder / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
    named = {"bos_token": family.bos, "eos_token": family.eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), encoding="utf-8")
    edited(folder, "config.json", vocab_size=64, eos_token_id=ends[0], bos_token_id=None, pad_token_id=None)
    (folder / "chat_template.jinja").write_text(family.template, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_sound_families_are_clean(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = family_folder(family, tmp_path / name)
    report = scan(folder)
    # what these families do to earlier answers is meant, and good to know (TOK016, info)
    rewrites = name in ("qwen3", "deepseek-v3", "deepseek-r1-distill")
    assert [finding.code for finding in report.findings if finding.severity == "info"] == ["TOK016"] * rewrites
    assert [format_finding(finding) for finding in report.findings if finding.severity != "info"] == []
    assert not report.skipped
    assert tokenizer_of(folder).turn_end == family.turn_end


@pytest.mark.parametrize("name", FAMILIES)
def test_templates_render_as_in_transformers(name: str, tmp_path: Path) -> None:
    needs("transformers", "torch")
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template = tokenizer_of(family_folder(FAMILIES[name], tmp_path / name)).template
    assert template is not None
    compiled = _compile_jinja_template(template.text)
    compared = 0
    plain = [talk for talk in chat_template._conversations() if not talk["name"].endswith("in parts")]
    for talk in plain:
        try:
            theirs = compiled.render(**talk["input"], **template.variables)
        except (TemplateError, TypeError):
            continue
        if "Zebras" not in theirs or "<|start|>system" in theirs or "Today Date" in theirs:  # the date stands still
            continue
        assert template.rendered[talk["name"]] == theirs
        compared += 1
    assert compared >= 3 or name in ("llama-3.1", "gpt-oss", "llava")


def test_base_models_that_lend_a_chat_template_are_warned_of(tmp_path: Path) -> None:
    lent = FAMILIES["qwen2.5"]._replace(eos="<|endoftext|>", ends=["<|endoftext|>"])
    report = scan(family_folder(lent, tmp_path / "base"))
    assert [(finding.code, finding.severity) for finding in report.findings] == [("TOK004", "warning")]


# Real models


@pytest.mark.parametrize("model", ["smollm2", "minilm"])
def test_real_models_are_clean(model: str, request: pytest.FixtureRequest) -> None:
    report = scan(request.getfixturevalue(model))
    assert [format_finding(finding) for finding in report.findings] == []
    assert {"TOK001", "TOK003", "TOK008", "TOK009"} <= set(report.passed)
    assert not report.skipped


def test_the_unused_rows_of_bert(minilm: Path) -> None:
    read = tokenizer_of(minilm)
    assert sum(read.is_reserved(number) for number in range(read.max_id + 1)) == 994
    assert read.template is None
    assert read.why_used(101) == "it is cls_token of special_tokens_map.json"  # which is read first, and says the same


@pytest.mark.parametrize(("token", "found"), [("[CLS]", True), ("[SEP]", True), ("[MASK]", False)])
def test_special_tokens_that_minilm_lost(token: str, found: bool, minilm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    shutil.copytree(minilm, folder)
    value = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    number = value["model"]["vocab"].pop(token)
    value["added_tokens"] = [entry for entry in value["added_tokens"] if entry["content"] != token]
    edited(folder, "tokenizer.json", **value)
    assert codes(folder) == ({"TOK009"} if found else set())
    needs("transformers", "torch")
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder)
    assert (loaded("zebra").input_ids != AutoTokenizer.from_pretrained(minilm)("zebra").input_ids) is found
    assert loaded.convert_tokens_to_ids(token) != number


def test_damage_to_smollm2(smollm2: Path, tmp_path: Path) -> None:
    def damaged(name: str) -> Path:
        return damage.linked_copy(smollm2, tmp_path / name)

    folder = damaged("another eos in the configs")
    edited(folder, "generation_config.json", eos_token_id=0)
    edited(folder, "config.json", eos_token_id=0)
    assert codes(folder) == {"TOK003"}

    folder = damaged("the end of pretraining everywhere")
    edited(folder, "generation_config.json", eos_token_id=0)
    edited(folder, "config.json", eos_token_id=0)
    edited(folder, "tokenizer_config.json", eos_token="<|endoftext|>")
    assert codes(folder) == {"TOK004"}

    folder = damaged("generation ends where the next turn begins")
    edited(folder, "generation_config.json", eos_token_id=1)
    assert codes(folder) == {"TOK003"}
    edited(folder, "config.json", eos_token_id=1)
    edited(folder, "tokenizer_config.json", eos_token="<|im_start|>")
    assert codes(folder) == {"TOK004"}

    for end in (None, [], -1):  # generate runs to its limit with each of these, see TOK003
        folder = damaged(f"the end is {end}")
        edited(folder, "generation_config.json", eos_token_id=end)
        assert codes(folder) == {"TOK003"}, end

    added = json.loads((smollm2 / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    declared = {str(token["id"]): {key: token[key] for key in token if key != "id"} for token in added}
    folder = damaged("an older file overrides the end, and adds a token")
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<file_sep>"}', encoding="utf-8")
    (folder / "added_tokens.json").write_text('{"<|foo|>": 49152}', encoding="utf-8")
    assert codes(folder) == {"TOK001"}
    edited(folder, "tokenizer_config.json", added_tokens_decoder=declared)
    assert codes(folder) == set()  # transformers reads neither beside added_tokens_decoder

    folder = damaged("a template's token lost")
    value = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    number = value["model"]["vocab"].pop("<|im_start|>")
    value["model"]["vocab"]["<|another|>"] = number
    for token in value["added_tokens"]:
        token["content"] = token["content"].replace("<|im_start|>", "<|another|>")
    edited(folder, "tokenizer.json", **value)
    assert codes(folder) == {"TOK007", "TOK009"}  # it is bos_token too

    folder = damaged("special tokens of a training that was not saved")
    edited(folder, "tokenizer_config.json", extra_special_tokens=["<|im_end|>", "<|call|>"])
    assert codes(folder) == {"TOK001", "TOK019"}  # and transformers 4 takes no list

    folder = damaged("fewer rows")
    edited(folder, "config.json", vocab_size=49000)
    rows = {"dtype": "BF16", "shape": [49000, 8]}
    places = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    damage.drop_tensors(folder, {"model.embed_tokens.weight"})
    shard = folder / places["model.embed_tokens.weight"]
    shard.unlink()
    edit_tensors(shard, {"model.embed_tokens.weight": rows})
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    edited(
        folder,
        "model.safetensors.index.json",
        weight_map=index["weight_map"] | {"model.embed_tokens.weight": shard.name},
    )
    assert codes(folder) == {"TOK001"}

    folder = damaged("ids of another model")
    edited(folder, "config.json", pad_token_id=50256)
    edited(folder, "generation_config.json", eos_token_id=[128001, 128009])
    assert "TOK009" in codes(folder)

    folder = damaged("no template")
    (folder / "chat_template.jinja").unlink()
    assert codes(folder) == {"TOK005"}

    folder = damaged("a template that does not parse")
    text = (folder / "chat_template.jinja").read_text(encoding="utf-8").replace("{% endfor %}", "", 1)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    assert codes(folder) == {"TOK006"}

    folder = damaged("a template that loses what is said")
    text = (folder / "chat_template.jinja").read_text(encoding="utf-8").replace("message['content']", "''")
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    assert codes(folder) == {"TOK006"}

    folder = damaged("a template for tools beside it")
    (folder / "additional_chat_templates").mkdir()
    shutil.copy(smollm2 / "chat_template.jinja", folder / "additional_chat_templates" / "tool_use.jinja")
    assert codes(folder) == set()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{% for x in %}", encoding="utf-8")
    assert codes(folder) == {"TOK006"}

    folder = damaged("half a tokenizer")
    raw = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_bytes(raw[: len(raw) // 2])
    assert codes(folder) == {"TOK008"}


NO_TOKENS = {
    "TokenizersBackend": [(), ("vocab.json", "merges.txt")],
    "PreTrainedTokenizerFast": [(), ("vocab.json",)],
    "Qwen2TokenizerFast": [(), ("merges.txt",)],
    "GPT2Tokenizer": [()],
    "LlamaTokenizerFast": [(), ("added_tokens.json", "special_tokens_map.json")],
    "OfSomebodyElse": [()],
}
"""Class → the files that are there and do not help it."""
TOKENS = {
    "TokenizersBackend": ("tokenizer.json",),
    "Qwen2TokenizerFast": ("vocab.json", "merges.txt"),
    "GPT2Tokenizer": ("vocab.json", "merges.txt"),
    "ByT5Tokenizer": (),
}


@pytest.mark.parametrize("kind", [*NO_TOKENS, *(f"{name} with its files" for name in TOKENS)])
def test_a_tokenizer_without_its_tokens_as_transformers_sees_it(
    smollm2: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported AutoTokenizer refuses, or makes of it a tokenizer for which a text is nothing; and only that."""
    needs("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    model = json.loads((smollm2 / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    texts = {
        "vocab.json": json.dumps(model["vocab"]),
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]),
        "added_tokens.json": "{}",
        "special_tokens_map.json": "{}",
    }
    name = kind.removesuffix(" with its files")
    for number, files in enumerate(NO_TOKENS[kind] if kind in NO_TOKENS else [TOKENS[name]]):
        folder = damage.linked_copy(smollm2, tmp_path / str(number))
        edited(folder, "tokenizer_config.json", tokenizer_class=name)
        if "tokenizer.json" not in files:
            (folder / "tokenizer.json").unlink()
            for file in files:
                (folder / file).write_text(texts[file], encoding="utf-8")
        try:
            usable = bool(AutoTokenizer.from_pretrained(folder)("Hello there")["input_ids"])
        except ValueError:
            usable = False
        assert usable is (kind not in NO_TOKENS), files
        assert ("TOK008" in codes(folder)) is not usable, files


# What a scan loads


def test_a_scan_without_a_tokenizer_loads_nothing_for_it() -> None:
    program = (
        "import sys; from ckptcheck.linter.rule_loader import load_rules; from ckptcheck.linter.runner import run_rules; "
        "from ckptcheck.checkpoint.open import open_checkpoint; "
        f"report = run_rules(open_checkpoint({str(CHECKPOINTS / 'tiny-llama')!r}), load_rules()); "
        "heavy = {'jinja2', 'tokenizers', 'subprocess', 'ckptcheck.checkpoint.tokenizer'}; "
        "print(sorted(heavy & set(sys.modules)), [code for code, _ in report.skipped if code.startswith('TOK')])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] []"
    program = program.replace("tiny-llama", "tiny-chat")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (
        result.stdout.strip() == "['ckptcheck.checkpoint.tokenizer', 'subprocess'] ['TOK014']"
    )  # the child imports the others

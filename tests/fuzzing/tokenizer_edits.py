"""Builds small models with tokenizers of each kind, and edits the tokenizers' files so that they stay JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzzing.checkpoint_edits import RETYPES, change_value
from tests.paths import ROOT

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = (
    "", "x", "a", "Ġ", "▁", " ", "[UNK]", "<unk>", "<|im_end|>", "<|im_start|>", "<|endoftext|>", "BPE", "Unigram", "WordPiece",
    "WordLevel", "ByteLevel", "Metaspace", "Whitespace", "Lowercase", "NFC", "Fuse", "LlamaTokenizer", "Qwen2Tokenizer",
    "TokenizersBackend", "PreTrainedTokenizerFast", "BertTokenizer", "always", "never", "left", "right", "first",
)  # fmt: skip
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "config.json")


def build_models(folder: Path) -> list[Path]:
    """Write a tiny model with a tokenizer of each kind, trained on this project's own documents."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))[:12]]
    written = []
    for name in ("byte-level", "metaspace", "wordpiece", "unigram"):
        special = ["[UNK]", "[CLS]", "[SEP]", *MARKERS] if name == "wordpiece" else ["<unk>", *MARKERS]
        if name == "byte-level":
            tokenizer = Tokenizer(models.BPE())
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
            trainer: Any = trainers.BpeTrainer(
                vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
            )
        elif name == "metaspace":
            tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            tokenizer.decoder = decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            )
            trainer = trainers.BpeTrainer(
                vocab_size=700,
                special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
                show_progress=False,
                max_token_length=12,
            )
        elif name == "wordpiece":
            tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
            tokenizer.normalizer = normalizers.BertNormalizer()
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            tokenizer.decoder = decoders.WordPiece()
            trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
        else:
            tokenizer = Tokenizer(models.Unigram())
            tokenizer.normalizer = normalizers.NFKC()
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
            tokenizer.decoder = decoders.Metaspace()
            trainer = trainers.UnigramTrainer(
                vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False
            )
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.add_special_tokens(list(MARKERS))
        tokenizer.add_tokens(["<tool>"])
        if name == "wordpiece":
            tokenizer.post_processor = processors.TemplateProcessing(
                single="[CLS] $A [SEP]",
                special_tokens=[(each, tokenizer.token_to_id(each)) for each in ("[CLS]", "[SEP]")],
            )
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            unk_token=None if name == "byte-level" else special[0],
        )
        fast.chat_template = TEMPLATE
        fast.save_pretrained(folder / name)
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=len(fast),
            bos_token_id=None,
            eos_token_id=fast.eos_token_id,
            pad_token_id=fast.pad_token_id,
        )
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.generation_config.eos_token_id = [fast.eos_token_id, fast.pad_token_id]
        model.generation_config.pad_token_id = fast.pad_token_id
        model.save_pretrained(folder / name)
        written.append(folder / name)
    return written


def edit_tokenizer(folder: Path, dice: random.Random) -> str:
    """Edit one file of a tokenizer in one place, and say what was edited."""
    file = dice.choice(["tokenizer.json"] * 6 + ["tokenizer_config.json"] * 3 + [*FILES[2:4], "files"])
    path = folder / file
    if file == "files":
        file = dice.choice([each for each in FILES[:4] if (folder / each).exists()])
        (folder / file).unlink()
        return f"remove {file}"
    if file.endswith(".jinja"):
        text = path.read_text()
        return f"{file}: {edit_template(path, text, dice)}"
    document = json.loads(path.read_text())
    in_vocabulary = file == "tokenizer.json" and dice.random() < 0.4
    said = edit_vocabulary(document, dice) if in_vocabulary else edit_place(document, dice)
    path.write_text(json.dumps(document, ensure_ascii=False))
    return f"{file}: {said}"


def edit_template(path: Path, text: str, dice: random.Random) -> str:
    """Remove, exchange or repeat a piece of a chat template."""
    old = dice.choice(["<|im_start|>", "<|im_end|>", "message['role']", "message['content']", "\n", "{% endfor %}", "}}",
                       "{% if add_generation_prompt %}", "assistant", "messages", "role"])  # fmt: skip
    new = dice.choice(["", "x", "<|im_end|>", "<|eot_id|>", "message['text']", " ", "system"])
    path.write_text(text.replace(old, new, dice.choice([1, -1])))
    return f"{old!r} becomes {new!r}"


def edit_vocabulary(document: dict[str, Any], dice: random.Random) -> str:
    """Remove, rename, renumber or repeat tokens, added tokens and merges."""
    model, added = document["model"], document["added_tokens"]
    vocabulary, merges = model["vocab"], model.get("merges")
    token = dice.choice(added)
    way = dice.choice(
        ["remove", "rename", "id", "shift", "drop added", "added id", "added content", "merge", "merges", "order"]
    )
    pieces = sorted(vocabulary) if isinstance(vocabulary, dict) else []
    if way == "drop added":
        added.remove(token)
        return f"drop added {token['content']}"
    if way == "added id":
        token["id"] = dice.choice([0, token["id"] + 1, 10**6, added[0]["id"]])
        return f"added {token['content']} has id {token['id']}"
    if way == "added content":
        token["content"] = dice.choice([*WORDS, token["content"] + " "])
        return f"added {token['id']} is {token['content']!r}"
    if way in ("merge", "merges") and merges:
        at = dice.randrange(len(merges))
        if way == "merges":
            del merges[dice.choice([0, at]) :]
            return f"keep {len(merges)} merges"
        merges[at] = dice.choice([merges[at][::-1], ["x", "qqq"], [*merges[at], "x"], " ".join(merges[at]), merges[0]])
        return f"merge {at} is {merges[at]}"
    if not pieces:  # Unigram
        at = dice.randrange(len(vocabulary))
        said = vocabulary[at][0]
        if way == "remove":
            del vocabulary[at]
        elif way == "order":
            vocabulary.reverse()
        else:
            vocabulary[at] = dice.choice([[said, 0], [said, -1e30], ["x", -5.0], [said], [said, None], vocabulary[0]])
        return f"{way} {said!r} of Unigram"
    piece, other = dice.choice(pieces), dice.choice(pieces)
    if way == "remove":
        del vocabulary[piece]
    elif way == "rename":
        vocabulary[f"{piece}zz"] = vocabulary.pop(piece)
    elif way == "shift":
        model["vocab"] = {each: number + 1 for each, number in vocabulary.items()}
    elif way == "order":
        vocabulary[piece], vocabulary[other] = vocabulary[other], vocabulary[piece]
        return f"exchange {piece!r} and {other!r}"
    else:
        vocabulary[piece] = dice.choice([vocabulary[other], len(vocabulary) + 5, 10**6, -1])
        return f"{piece!r} gets id {vocabulary[piece]}"
    return f"{way} {piece!r}"


def iter_places(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each object and list in a JSON value with its path, but none of the vocabulary and the merges."""
    if isinstance(value, (dict, list)) and value:
        yield path, value
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in ("vocab", "merges"):
                yield from iter_places(part, f"{path}.{key}")


def edit_place(document: dict[str, Any], dice: random.Random) -> str:
    """Remove, empty, change or retype an entry anywhere in a JSON document."""
    path, place = dice.choice(list(iter_places(document)))
    key = dice.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
    if key in ("vocab", "merges"):
        key = "type"
    way = dice.choice(["remove", "null", *["change"] * 4, "retype"])
    if way == "remove":
        del place[key]
        return f"remove {path}.{key}"
    if way == "null":
        place[key] = None
    elif way == "retype":
        place[key] = dice.choice(RETYPES)(place[key])
    elif isinstance(place[key], str) or place[key] is None:
        place[key] = dice.choice(WORDS)
    else:
        place[key] = change_value(place[key], dice)
    return f"{way} {path}.{key} {json.dumps(place[key])[:80]}"

"""The door of file names: a pipe, a device, a sparse file, a link or a folder where a reader or a loader expects a file.

A whole command then reads its inputs in a child with limits. It may find something or refuse its target; it may not wait, fill the
memory, show what lies outside, nor call its target clean without a word about a file that it reads on sound inputs.
"""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import socket
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzzing.commands import (
    COMMANDS,
    SLOW,
    Answer,
    build_inputs,
    find_wrong,
    read_reports,
    run_command,
    summarize,
)
from tests.paths import ROOT

FILE_NAME = re.compile(
    r"[\w-]+(\.[\w-]+)*\.(json|jsonl|jinja|txt|model|bin|pth?|safetensors|toml|ya?ml|distcp|gguf|sig|tiktoken)|\.metadata|latest\w*"
)
OF_LOADERS = (
    "pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "params.json",
    "consolidated.safetensors", "consolidated.00.pth", "model-00001-of-00001.safetensors", "adapter_model.bin", "spiece.model",
    "sentencepiece.bpe.model", "qwen.tiktoken", "tiktoken.model", "model.gguf", "diffusion_pytorch_model.safetensors",
    "model_index.json", "additional_chat_templates/default.jinja", "additional_chat_templates", "modeling_custom.py",
    "tokenization_custom.py", "configuration_custom.py", "kv_cache_scales.json", "quantization_config.json", "recipe.yaml",
    "compression_config.json", "zero_to_fp32.py", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt",
    "optimizer.bin", "scheduler.bin", "training_args.bin", "rng_state.pth", "random_states_0.pkl", "extra_state.pt",
    "__1_0.distcp", "fsdp_config.json", "dataloader.pt", "README.md", ".gitattributes", "ckptcheck.toml", "pyproject.toml",
)  # fmt: skip
"""Names that transformers, vLLM, SGLang, PEFT, Megatron-LM, DeepSpeed, accelerate and FSDP look for beside those of our readers."""
SECRET = "the-secret-beside-it"
"""What no report may show: it stands outside of every target, and in the environment."""


@cache
def list_names() -> tuple[str, ...]:
    """Return the names of files that modules of the package contain, and those of loaders."""
    texts = {
        node.value
        for path in (ROOT / "ckptcheck").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return tuple(sorted({text for text in texts if FILE_NAME.fullmatch(text)} | {*OF_LOADERS}))


def _sparse(path: Path, head: bytes, dice: random.Random) -> None:
    path.write_bytes(head)
    os.truncate(path, dice.choice([1 << 20, 90 << 20, 1 << 30, 4 << 30, 40 << 30, 1 << 42]))


def _device(path: Path, dice: random.Random) -> None:
    with suppress(OSError):  # who is not root makes none, and links to one
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, dice.choice([3, 5, 7, 9])))
        return
    path.symlink_to(dice.choice(["/dev/zero", "/dev/null", "/dev/full", "/dev/urandom"]))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound, suppress(OSError):  # a name that is too long for one
        bound.bind(str(path))


def _folder_of(path: Path, dice: random.Random) -> None:
    path.mkdir()
    if dice.random() < 0.5:
        (path / path.name).symlink_to("..")
    if dice.random() < 0.3:
        os.mkfifo(path / "tool_use.jinja")


HEADS = (
    b"",
    b"{",
    b'{"weight_map": {"',
    (99 * 10**6).to_bytes(8, "little") + b'{"a',
    b"PK\3\4",
    b"\x80\2",
    b"GGUF\3\0\0\0",
    b"\n",
)
NOWHERE = ("nowhere", "/nowhere/x", "a" * 200, "../" * 400 + "x")
DEVICES = ("/dev/zero", "/dev/urandom", "/dev/stdin", "/dev/full")
OF_PROCESSES = ("self/mem", "self/environ", "kmsg", "kcore", "self/maps", "self/fd/0", "sysrq-trigger", "self/pagemap")
THINGS: Mapping[str, Callable[[Path, Path, random.Random], object]] = {
    "a pipe": lambda path, outside, dice: os.mkfifo(path),
    "a device": lambda path, outside, dice: _device(path, dice),
    "a socket": lambda path, outside, dice: _socket(path),
    "a sparse file": lambda path, outside, dice: _sparse(path, dice.choice(HEADS), dice),
    "a sparse end": lambda path, outside, dice: _sparse(path, outside.read_bytes(), dice),
    "a dangling link": lambda path, outside, dice: path.symlink_to(dice.choice(NOWHERE)),
    "a link to itself": lambda path, outside, dice: path.symlink_to(path.name),
    "a link to its folder": lambda path, outside, dice: path.symlink_to("."),
    "a link out of the folder": lambda path, outside, dice: path.symlink_to(outside),
    "a link to a device": lambda path, outside, dice: path.symlink_to(dice.choice(DEVICES)),
    "a link into /proc": lambda path, outside, dice: path.symlink_to(f"/proc/{dice.choice(OF_PROCESSES)}"),
    "a folder": lambda path, outside, dice: _folder_of(path, dice),
    "an empty file": lambda path, outside, dice: path.touch(),
    "an unreadable file": lambda path, outside, dice: path.touch(0),
    "a hard link": lambda path, outside, dice: os.link(outside, path),
}
"""What stands in place of a file → what puts it there, given a file outside with what it held, and a secret."""
READABLE = ("a sparse end", "a hard link")
"""Things whose content the command may read, since it lies in its target."""
NO_FILE = (
    "a pipe",
    "a device",
    "a socket",
    "a folder",
    "a link to its folder",
    "a link to a device",
    "a link into /proc",
)
"""Things that loaders pass over as they do an absent file (`os.path.isfile`), and that may be passed over so."""


def check_places(seed: int, folder: Path) -> None:
    """Put something in place of a file that a command reads, or might read, and run it. Raises AssertionError."""
    dice = random.Random(seed)
    sound_folder, sound = build_inputs(folder.parent)
    name = dice.choice(sorted(sound))
    if name in SLOW and dice.random() < 0.9:
        return
    inputs = Path(shutil.copytree(sound_folder, folder / "inputs"))
    places = _find_places(inputs, COMMANDS[name])
    is_read = bool(sound[name].opened) and dice.random() < 0.6
    where = dice.choice(sorted(sound[name].opened)) if is_read else f"{dice.choice(places)}/{dice.choice(list_names())}"
    path = inputs / where
    thing = dice.choice(sorted(THINGS))
    outside = folder / "outside"
    outside.write_bytes(
        (path.read_bytes() if path.is_file() else b"{}") + (b"" if thing in READABLE else SECRET.encode())
    )
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True, parents=True)
    THINGS[thing](path, outside, dice)
    answer = run_command(inputs, COMMANDS[name], _give_up_privileges)
    wrong = find_wrong(answer, COMMANDS[name])
    if not wrong and SECRET in answer.said + answer.errors:
        wrong = "it shows what stands outside"
    if not wrong and is_read and thing not in READABLE and _is_silent(answer, path.name):
        absent = _run_without(folder.parent, name, where)
        if absent != summarize(sound[name].answer) and not (thing in NO_FILE and summarize(answer) == absent):
            wrong = f"it says nothing of it, and ends with 0: {answer.said[:200]}"
    assert not wrong, f"{name}, {thing} as {where}: {wrong}"


def _find_places(inputs: Path, words: tuple[str, ...]) -> list[str]:
    """Return the folders that a command reads, from that of the inputs."""
    named = [
        inputs / part
        for word in words
        for part in word.split("+")
        if (inputs / part).exists() and part != "report.jsonl"
    ]
    folders = {folder for path in named for folder in (path, *path.rglob("*")) if folder.is_dir()} | {
        path.parent for path in named
    }
    return sorted(os.path.relpath(folder, inputs) for folder in folders if folder.is_relative_to(inputs))


def _is_silent(answer: Answer, name: str) -> bool:
    """Whether a command ends with 0, finds nothing and does not name the file."""
    if answer.code != 0 or name in answer.said + answer.errors:
        return False
    with suppress(ValueError):
        return not any(report.get("findings") for report in read_reports(answer))
    return True


@cache
def _run_without(place: Path, name: str, where: str) -> Any:
    """Return what a command finds without a file: if that is what it finds with it, it reads it for a hint alone."""
    inputs = Path(shutil.copytree(build_inputs(place)[0], place / "without"))
    (inputs / where).unlink()
    answer = run_command(inputs, COMMANDS[name])
    shutil.rmtree(inputs)
    return summarize(answer)


def _give_up_privileges() -> None:
    """Let root be refused what anybody is refused, such as a file without permissions."""
    import ctypes

    with suppress(AttributeError, OSError):  # not Linux
        header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        ctypes.CDLL(None).capset(header, nothing)
    os.environ["A_SECRET"] = SECRET

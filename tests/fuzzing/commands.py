"""Runs whole commands in children with limits, and holds what they say against what they say of sound inputs."""

from __future__ import annotations

import fcntl
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON
from tests.factories.history_cases import build_history
from tests.factories.torch_archives import write_archive, write_tensor_pickle
from tests.faults.inputs import write_inputs
from tests.faults.table import VERBS
from tests.limited_child import DEADLINE, run_limited

JSON = ("--format", "json")
COMMANDS: dict[str, tuple[str, ...]] = {
    **VERBS,
    "scan of a chat model": ("scan", "chat", *JSON),
    "scan of an adapter": ("scan", "adapter", "--base", "sound", *JSON),
    "scan of GPTQ": ("scan", "gptq", *JSON),
    "scan of NVFP4": ("scan", "nvfp4", *JSON),
    "scan of legacy ranks": ("scan", "legacy", *JSON),
    "scan of a pickle": ("scan", "pickled", *JSON),
    "scan of one file": ("scan", "chat/model.safetensors", *JSON),
    "scan of a folder": ("scan", "--recursive", "saves", *JSON),
    "scan with settings": ("scan", "chat", "--config", "own.toml", "--baseline", "baseline.json", *JSON),
    "verify of a run": ("verify", "run", "run.jsonl", *JSON),
    "refit history": ("refit", "history", "record.jsonl", *JSON),
    "parity judge with a model": (
        "parity",
        "judge",
        "rollouts.jsonl",
        "--checkpoint",
        "chat",
        "--floor",
        "floor.json",
        *JSON,
    ),
    "preflight of a script": ("preflight", "run.sh", *JSON),
}
"""Name → words. Where a command has no --format, its answer is text."""
SLOW = ("gate",)
"""Commands that start Pythons of their own, which takes seconds."""
LEFT_OUT = ("sign",)
"""It needs a library that the tests of CI have in one job only."""


MOST_SAID = 1 << 20
"""Bytes that a command may say: what a pipe holds until its end."""


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int | None
    """None: a signal or a limit ended it."""
    said: str
    """What it wrote to its output."""
    errors: str
    """What it wrote to its errors."""
    fault: str
    """What is wrong with how it ended; "" where nothing is."""


@dataclass(frozen=True)
class Sound:
    """What a command does on its sound inputs."""

    answer: Answer
    opened: frozenset[str]
    """The files that it opens to read, below the folder of the inputs."""


def run_command(
    folder: Path,
    words: tuple[str, ...],
    prepare: Callable[[], object] | None = None,
    seconds: int = 5,
    memory: int = 500 << 20,
) -> Answer:
    """Run a command in a folder, in a fork of this process.

    prepare: what the child does before, such as setting limits.
    """
    from ckptcheck import __main__ as program
    from ckptcheck.cli import app
    from ckptcheck.text import file_io

    pipes = [os.pipe() for _ in range(2)]  # and no files, of which a limit would cut a part
    for _, end in pipes:
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, MOST_SAID)

    def leave(code: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        raise SystemExit(code)

    def run() -> str:
        os.chdir(folder)
        for number, (reading, writing) in enumerate(pipes, 1):
            os.dup2(writing, number)
            os.close(reading)
            os.close(writing)
        sys.stdout, sys.stderr = (io.TextIOWrapper(open(number, "wb", closefd=False), "utf-8") for number in (1, 2))  # noqa: SIM115
        program.os = SimpleNamespace(**{**vars(os), "_exit": leave})  # type: ignore[assignment]
        app._exit_now = leave  # type: ignore[assignment]
        file_io.WRITER_PATIENCE = file_io.READER_PATIENCE = 0.1
        sys.argv = ["ckptcheck", *words]
        if prepare is not None:
            prepare()
        try:
            program.main()
        except SystemExit as end:
            return str(end.code or 0)
        return "0"

    outcome = run_limited(run, seconds, memory)
    texts = []
    for reading, writing in pipes:
        os.close(writing)
        with open(reading, "rb") as pipe:
            texts.append(pipe.read().decode("utf-8", "replace"))
    code = int(outcome.answer) if outcome.answer in ("0", "1", "2") else None
    fault = outcome.fault or ("" if code is not None else f"it ended with {outcome.answer}")
    return Answer(code, *texts, fault)


def run_program(folder: Path, words: tuple[str, ...], place: Path) -> Answer:
    """Run a command as users start it, in a folder. place: where its output is kept."""
    program = Path(sys.executable).with_name("ckptcheck")
    start = [str(program)] if program.exists() else [sys.executable, "-P", "-m", "ckptcheck"]
    with (place / "said.txt").open("w+b") as said, (place / "errors.txt").open("w+b") as errors:
        process = subprocess.Popen([*start, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=errors)
        fault = ""
        try:
            code: int | None = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code, fault = None, "it hangs"
        texts = []
        for file in (said, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Answer(code, *texts, fault or ("" if code in (0, 1, 2) else f"it ended with {code}"))


def find_wrong(answer: Answer, words: tuple[str, ...]) -> str:
    """Return what is wrong with any answer, whatever the inputs are; "" where nothing is."""
    everything = answer.said + answer.errors
    if answer.fault:
        return f"{answer.fault}: {answer.errors[-600:]}"
    if "Traceback (most" in everything:
        return f"a traceback: {answer.errors[-600:]}"
    if answer.code == 2 and not everything.strip():
        return "it ends with 2 and says nothing"
    if "json" not in words or answer.code == 2:
        return ""
    try:
        reports = read_reports(answer)
    except ValueError:
        return f"no whole report: {answer.said[:300]}"
    if answer.code == 0 and any(report.get("verdict") == "incomplete" for report in reports):
        return "it ends with 0, and its report is incomplete"
    crashed = [why for report in reports for why in report.get("crashed", ()) if ".py, line" in str(why)]
    return f"rules crashed: {crashed}" if crashed else ""


def read_reports(answer: Answer) -> list[dict[str, Any]]:
    """Return the reports of an answer in JSON. Raises ValueError where it holds none."""
    read = json.loads(answer.said)
    return read.get("reports", [read]) if isinstance(read, dict) else read


def summarize(answer: Answer) -> set[str]:
    """Return what a command says, without its words: the same of two answers that looked at the same things."""
    said = {f"exit code {answer.code}"}
    with suppress(ValueError):
        for report in read_reports(answer):
            target = report.get("target")
            said |= {f"{target} is {report.get('verdict')}", f"{target}: {report.get('counts')}"}
            for key in ("passed", "skipped", "crashed"):
                said |= {f"{target}: {key} {one}" for one in report.get(key, ())}
            for one in report.get("findings", ()):
                said.add(f"{target}: {one.get('code')} {one.get('file')} {one.get('key')}")
    return said


@cache
def build_inputs(place: Path) -> tuple[Path, dict[str, Sound]]:
    """Write the sound inputs, and run every command on them; return their folder and what the commands did."""
    folder = write_inputs(place / "sound-inputs")
    for name, base in {"chat": "tiny-chat", "adapter": "tiny-lora", "gptq": "tiny-gptq", "nvfp4": "tiny-nvfp4"}.items():
        shutil.copytree(CHECKPOINTS / base, folder / name)
    shutil.copytree(MEGATRON / "legacy-tp2", folder / "legacy")
    shutil.copytree(CHECKPOINTS / "tiny-llama", folder / "pickled")
    pickled = write_tensor_pickle("FloatStorage", (2, 2), (2, 1))
    (folder / "pickled" / "pytorch_model.bin").write_bytes(
        write_archive({"data.pkl": pickled, "data/0": bytes(16), "version": b"3\n"})
    )
    (folder / "own.toml").write_text('select = ["ST", "CFG", "TOK"]\n')
    (folder / "baseline.json").write_text('{"schema": "ckptcheck-baseline/1", "findings": []}')
    import ckptcheck

    ckptcheck.manifest(folder / "run", folder / "run.jsonl")
    build_history({"title": "", "syncs": [{"probe": 0.01}, {"same": ["*"]}]}, folder / "record.jsonl")
    floor = {
        "format": "ckptcheck-floor/1",
        "model": "m",
        "metrics": {"mean_abs": 0.1, "kl": 0.001},
        "vocabulary": 9,
        "tokens": 100,
    }
    (folder / "floor.json").write_text(json.dumps(floor))
    (folder / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo --config-name job actor_rollout_ref.rollout.name=vllm\n"
    )
    sound = {name: _run_sound(folder, words) for name, words in COMMANDS.items() if name not in LEFT_OUT}
    return folder, sound


def _run_sound(folder: Path, words: tuple[str, ...]) -> Sound:
    copy = Path(shutil.copytree(folder, folder.parent / "tried"))
    sound = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    begin, log = f"{os.path.realpath(copy)}/", folder.parent / "events.txt"

    def listen() -> None:
        events = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def hear(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "import":
                os.write(events, f"import {arguments[0]}\n".encode())
            elif event == "open" and isinstance(arguments[0], str | bytes | Path) and not (arguments[2] or 0) & 3:
                path = os.path.realpath(os.fsdecode(arguments[0]))
                if (name := path.removeprefix(begin)) in sound:
                    os.write(events, f"open {name}\n".encode())

        sys.addaudithook(hear)

    answer = run_command(copy, words, listen)
    seen = [line.partition(" ") for line in log.read_text().splitlines()]
    for event, _, name in seen:  # what a command imports is imported once, and not by the child of each input
        if event == "import" and name.startswith("ckptcheck."):
            importlib.import_module(name)
    shutil.rmtree(copy)
    return Sound(answer, frozenset(name for event, _, name in seen if event == "open"))

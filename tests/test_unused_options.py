"""An option that would have no effect is refused in one sentence, before anything is read or started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckptcheck.__main__ import main
from ckptcheck.cli.app import build_app
from ckptcheck.errors import CkptcheckError
from tests.factories.checkpoint_cases import CHECKPOINTS

TINY = str(CHECKPOINTS / "tiny-llama")
SERVER = "http://127.0.0.1:1"
PAIR = (SERVER, "http://127.0.0.1:2")
ALONE = "where servers are compared with each other only"
ATTACHED = "with attach: the servers run already, and no sync is made"
NO_TRAINER = "with --no-check-logprobs: no trainer is started"


def alone(option: str, *value: str) -> tuple[tuple[str, ...], str]:
    return ("attach", *PAIR, option, *value), f"{describe(option, *value)} has no effect {ALONE}"


def untrained(option: str, *value: str) -> tuple[tuple[str, ...], str]:
    words = ("attach", SERVER, "--source", TINY, "--no-check-logprobs", option, *value)
    return words, f"{describe(option, *value)} has no effect {NO_TRAINER}"


def describe(option: str, *value: str) -> str:
    """Return an option as an error names it: a setting with its name, without its value."""
    return f"{option} {value[0].partition('=')[0]}" if option == "--set" else option


CASES: list[tuple[tuple[str, ...], str]] = [
    (("attach", SERVER, "--source", TINY, "--set", "timeout=step=5"), f"--set timeout=step= has no effect {ATTACHED}"),
    (
        ("attach", SERVER, "--source", TINY, "--set", "timeout=9", "--set", "timeout=sync=5", "--set", "timeout=step=5"),
        f"--set timeout=step= and --set timeout=sync= have no effect {ATTACHED}",
    ),
    (("attach", *PAIR, "--set", "timeout=start=5"), f"--set timeout=start= has no effect {ALONE}"),
    alone("--trainer", "megatron"),
    alone("--tp", "2"),
    alone("--pp", "2"),
    alone("--ep", "2"),
    alone("--set", "device=cuda"),
    alone("--set", "trainer-gpus=0"),
    alone("--set", "trainer-python=/x"),
    alone("--set", "engine-python=/x"),
    alone("--set", "keep=true"),
    alone("--set", "hf-config=/x"),
    alone("--set", "despite-errors=on"),
    alone("--allow-write"),
    untrained("--trainer", "megatron"),
    untrained("--tp", "2"),
    untrained("--set", "device=cuda"),
    untrained("--set", "trainer-gpus=0"),
    untrained("--set", "trainer-python=/x"),
    (
        ("attach", SERVER, "--source", TINY, "--no-check-weight-update-equal", "--set", "engine-python=/x"),
        "--set engine-python has no effect with --no-check-weight-update-equal",
    ),
    (
        ("refit", TINY, "--set", "quantize-ignore=lm_head"),
        "--set quantize-ignore has no effect without --quantize",
    ),
    (
        ("refit", TINY, "--set", "trainer-quantizer=compressed-tensors"),
        "--set trainer-quantizer has no effect without --quantize",
    ),
    (("refit", TINY, "--steps", "0", "--set", "perturb=0.1"), "--set perturb has no effect with --steps 0"),
    (("refit", TINY, "--steps", "0", "--set", "timeout=step=3"), "--set timeout=step= has no effect with --steps 0"),
    (("refit", "lora", TINY, TINY, "--set", "timeout=score=3"), "--set timeout=score= has no effect with refit lora: adapters are"),
    (("refit", TINY, "--no-check-logprobs", "--set", "timeout=score=3"), "--set timeout=score= has no effect with --no-check-"),
    (
        ("refit", TINY, "--set", "device=cpu", "--set", "trainer-gpus=0"),
        "--set trainer-gpus has no effect with --set device=cpu",
    ),
    (
        ("refit", TINY, "--quantize", "fp8", "--transport", "ipc"),
        "--quantize does not go with --transport ipc, which carries weights as the trainer holds them: packed ones over NCCL",
    ),
    (
        ("refit", TINY, "--engine", "sglang", "--quantize", "fp8", "--transport", "nccl"),
        "--quantize does not go with --transport nccl",
    ),
    (("scan", TINY, "--headers-only", "--set", "no-mmap=on"), "--set no-mmap has no effect with --headers-only: no values are"),
    (
        ("scan", TINY, "--headers-only", "--set", "near-zero-threshold=0", "--set", "identical-threshold=0"),
        "--set near-zero-threshold and --set identical-threshold have no effect with --headers-only",
    ),
    *(
        (("scan", TINY, "--diff", *words), f"{words[0]} has no effect with --diff, which only shows what")
        for words in (
            ("--headers-only",), ("--values",), ("--set", "verify-blobs=on",), ("--stats", "x"), ("--select", "IDX"),
            ("--ignore", "IDX"), ("--format", "json"), ("--output", "x"), ("--fail-on", "never"), ("--baseline", "x"),
            ("--write-baseline", "x"), ("--verbose",), ("--set", "no-mmap=on"),
        )
    ),
    (("scan", TINY, "--diff", "-o", "x", "-v"), "--output and --verbose have no effect with --diff"),
    (("scan", TINY, "--set", "verify-blobs=on"), f"--set verify-blobs has no effect for {TINY}: none of its files is"),
    (("scan", TINY, "--baseline", "x", "--write-baseline", "y"), "--baseline has no effect with --write-baseline"),
    (("parity", "judge", "x", "--no-limits", "--set", "max-kl=1"), "--set max-kl has no effect with --no-limits"),
    (("parity", "judge", "x", "--set", "max-floor-multiple=2"), "--set max-floor-multiple has no effect without --floor"),
    *(
        (("parity", verb, TINY, "-o", "x", "--prompts", "y", "--length", "8"), "--length has no effect with --prompts")
        for verb in ("record", "calibrate")
    ),
    (("parity", "probe", TINY, "--prompts", "y", "--length", "16"), "--length has no effect with --prompts"),
    (("parity", "probe", TINY, "--only", "length", "--compilation"), "--compilation has no effect with --only"),
    (("parity", "matrix", TINY, "--calibrate", "--floor", "x"), "--calibrate measures the floor and --floor reads it"),
    (
        ("parity", "matrix", TINY, "--decoding", "greedy", "--set", "top-p=0.9"),
        "--set top-p has no effect with --decoding greedy",
    ),
    (
        ("parity", "matrix", TINY, "--set", "max-floor-multiple=2"),
        "--set max-floor-multiple has no effect without --floor or --calibrate",
    ),
    *(
        (("parity", "why", "x", *words), f"{describe(*words)} has no effect without SOURCE: nothing is run")
        for words in (
            ("--engine", "vllm"), ("--engine-source", "y"), ("--dtype", "float32"), ("--switch", "a=b"), ("--engine-tp", "1"),
            ("--set", "engine-mode=stock"), ("--set", "engine-python=y"), ("--trainer", "megatron"),
            ("--set", "trainer-dtype=float32"), ("--trainer-head-fp32",),
            ("--tp", "2"), ("--pp", "2"), ("--ep", "2"), ("--set", "trainer-python=y"),
            ("--set", "timeout=9"),
        )
    ),
    (
        ("parity", "why", "x", TINY, "--engine", "none", "--switch", "a=b", "--engine-tp", "2"),
        "--switch and --engine-tp have no effect with --engine none: no engine is run",
    ),
    *(
        (("parity", "localize", "--dumps", "a", "b", *words), f"{describe(*words)} has no effect with --dumps: nothing is run")
        for words in (
            ("--engine", "vllm"), ("--engine-source", "y"), ("--trainer", "megatron"), ("--tp", "1"), ("--pp", "1"),
            ("--ep", "1"), ("--engine-tp", "1"), ("--set", "engine-mode=stock"), ("--tokens", "1,2"), ("--set", "engine-python=y"),
            ("--set", "trainer-python=y"), ("--set", "timeout=9"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), CASES, ids=[" ".join(words[:1] + words[-3:]) for words, _ in CASES])
def test_it_is_refused(words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CkptcheckError) as caught:
        build_app(words[0])(list(words), standalone_mode=False)
    assert caught.value.message.startswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_the_command_ends_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def left(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", left)
    monkeypatch.setattr(sys, "argv", ["ckptcheck", "attach", SERVER, "--source", TINY, "--set", "timeout=sync=3"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("", f"ckptcheck: --set timeout=sync= has no effect {ATTACHED}\n")

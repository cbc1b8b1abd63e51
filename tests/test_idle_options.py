"""An option that would have no effect is refused in one sentence, before anything is read or started."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from cases import CHECKPOINTS, MEGATRON

from ckptcheck.__main__ import main
from ckptcheck.cli.app import app
from ckptcheck.errors import CkptcheckError

TINY = str(CHECKPOINTS / "tiny-llama")
ATTACH = ("--attach", "http://127.0.0.1:1")
PAIR = (*ATTACH, "--attach", "http://127.0.0.1:2")
ALONE = "where servers are held against each other alone"
ATTACHED = "with --attach: the servers run already, and no sync is made"
NO_TRAINER = "with --attach and --no-check-logprobs: no trainer is started"


def alone(option: str, *value: str) -> tuple[tuple[str, ...], str]:
    return ("refit", *PAIR, option, *value), f"{option} means nothing {ALONE}"


def at_servers(option: str, *value: str) -> tuple[tuple[str, ...], str]:
    return ("refit", TINY, *ATTACH, option, *value), f"{option} means nothing {ATTACHED}"


def untrained(option: str, *value: str) -> tuple[tuple[str, ...], str]:
    return ("refit", TINY, *ATTACH, "--no-check-logprobs", option, *value), f"{option} means nothing {NO_TRAINER}"


CASES: list[tuple[tuple[str, ...], str]] = [
    at_servers("--engine", "vllm"),
    at_servers("--engine-tp", "1"),
    at_servers("--engine-mode", "plain"),
    at_servers("--transport", "gloo"),
    at_servers("--quantize", "fp8"),
    at_servers("--ignore", "lm_head"),
    at_servers("--trainer-quantizer", "slime"),
    at_servers("--dtype", "bfloat16"),
    at_servers("--engine-gpus", "0"),
    at_servers("--switch", "prefix_cache=off"),
    at_servers("--bucket-mb", "1"),
    at_servers("--pause", "keep"),
    at_servers("--steps", "2"),
    at_servers("--perturb", "0.1"),
    at_servers("--record", "x"),
    (("refit", TINY, *ATTACH, "--timeout", "step=5"), f"--timeout step= means nothing {ATTACHED}"),
    (
        ("refit", TINY, *ATTACH, "--timeout", "9", "--timeout", "sync=5", "--timeout", "step=5"),
        f"--timeout step= and --timeout sync= mean nothing {ATTACHED}",
    ),
    (("refit", *PAIR, "--timeout", "start=5"), f"--timeout start= means nothing {ALONE}"),
    alone("--trainer", "megatron"),
    alone("--tp", "2"),
    alone("--pp", "2"),
    alone("--ep", "2"),
    alone("--device", "cuda"),
    alone("--trainer-gpus", "0"),
    alone("--trainer-python", "/x"),
    alone("--engine-python", "/x"),
    alone("--hf-config", "/x"),
    alone("--despite-errors"),
    alone("--keep"),
    untrained("--trainer", "megatron"),
    untrained("--tp", "2"),
    untrained("--device", "cuda"),
    untrained("--trainer-gpus", "0"),
    untrained("--trainer-python", "/x"),
    (
        ("refit", TINY, *ATTACH, "--no-check-weight-update-equal", "--engine-python", "/x"),
        "--engine-python means nothing with --attach and --no-check-weight-update-equal",
    ),
    (("refit", TINY, "--allow-write"), "--allow-write means nothing without servers that run already"),
    (("refit", TINY, "--allow-remote"), "--allow-remote means nothing without servers that run already"),
    (
        ("refit", TINY, "--ignore", "lm_head", "--trainer-quantizer", "compressed-tensors"),
        "--ignore and --trainer-quantizer mean nothing where nothing is packed",
    ),
    (("refit", TINY, "--steps", "0", "--perturb", "0.1"), "--perturb means nothing with --steps 0"),
    (("refit", TINY, "--steps", "0", "--timeout", "step=3"), "--timeout step= means nothing with --steps 0"),
    (("refit", TINY, "--no-check-logprobs", "--timeout", "score=3"), "--timeout score= means nothing with --no-check-"),
    (("refit", TINY, "--device", "cpu", "--trainer-gpus", "0"), "--trainer-gpus means nothing with --device cpu"),
    (
        ("refit", TINY, "--quantize", "fp8", "--transport", "ipc"),
        "--quantize does not go with --transport ipc, which carries weights as the trainer holds them: packed ones over NCCL",
    ),
    (
        ("refit", TINY, "--engine", "sglang", "--quantize", "fp8", "--transport", "nccl"),
        "--quantize does not go with --transport nccl",
    ),
    (("scan", TINY, "--headers-only", "--no-mmap"), "--no-mmap means nothing with --headers-only"),
    (("scan", TINY, "--headers-only", "--device", "cpu"), "--device means nothing with --headers-only"),
    (
        ("scan", TINY, "--headers-only", "--near-zero-threshold", "0", "--identical-threshold", "0"),
        "--near-zero-threshold and --identical-threshold mean nothing with --headers-only",
    ),
    (("scan", "hf://a/b", "--device", "cuda"), "--device means nothing for targets on the Hub"),
    *(
        (("scan", TINY, "--diff", *words), f"{words[0]} means nothing with --diff")
        for words in (
            ("--headers-only",), ("--values",), ("--verify-blobs",), ("--stats", "x"), ("--no-mmap",), ("--select", "IDX"),
            ("--ignore", "IDX"), ("--format", "json"), ("--output", "x"), ("--fail-on", "never"), ("--baseline", "x"),
            ("--write-baseline", "x"), ("--verbose",), ("--device", "cuda"),
        )
    ),
    (("scan", TINY, "--diff", "-o", "x", "-v"), "--output and --verbose mean nothing with --diff"),
    (("scan", TINY, "--verify-blobs"), f"--verify-blobs means nothing for {TINY}: none of its files is named by its hash"),
    (("scan", TINY, "--baseline", "x", "--write-baseline", "y"), "--baseline means nothing with --write-baseline"),
    (("diff", TINY, TINY, "--bridge", "both"), "--bridge both means nothing between two checkpoints of one form"),
    (("parity", "judge", "x", "--no-limits", "--max-kl", "1"), "--max-kl means nothing with --no-limits"),
    (("parity", "judge", "x", "--max-floor-multiple", "2"), "--max-floor-multiple means nothing without --floor"),
    *(
        (("parity", verb, TINY, "-o", "x", "--prompts", "y", "--length", "8"), "--length means nothing with --prompts")
        for verb in ("record", "calibrate")
    ),
    (("parity", "probe", TINY, "--prompts", "y", "--length", "16"), "--length means nothing with --prompts"),
    (("parity", "probe", TINY, "--only", "length", "--compilation"), "--compilation means nothing with --only"),
    (("parity", "matrix", TINY, "--tp", "2"), "--tp means nothing without a pair that has megatron"),
    (("parity", "matrix", TINY, "--calibrate", "--floor", "x"), "--calibrate measures the floor and --floor reads it"),
    (("parity", "matrix", TINY, "--decoding", "greedy", "--top-p", "0.9"), "--top-p means nothing with --decoding greedy"),
    (("parity", "matrix", TINY, "--max-floor-multiple", "2"), "--max-floor-multiple means nothing without --floor or --calibrate"),
    *(
        (("parity", "why", "x", *words), f"{words[0]} means nothing without SOURCE: nothing is run")
        for words in (
            ("--engine", "vllm"), ("--engine-source", "y"), ("--dtype", "float32"), ("--switch", "a=b"), ("--engine-tp", "1"),
            ("--engine-mode", "stock"), ("--engine-python", "y"), ("--trainer", "megatron"), ("--trainer-dtype", "float32"),
            ("--trainer-head-fp32",), ("--tp", "2"), ("--pp", "2"), ("--ep", "2"), ("--trainer-python", "y"), ("--timeout", "9"),
        )
    ),
    (
        ("parity", "why", "x", TINY, "--engine", "none", "--switch", "a=b", "--engine-tp", "2"),
        "--switch and --engine-tp mean nothing with --engine none: no engine is run",
    ),
    *(
        (("parity", "localize", "--dumps", "a", "b", *words), f"{words[0]} means nothing with --dumps: nothing is run")
        for words in (
            ("--engine", "vllm"), ("--engine-source", "y"), ("--trainer", "megatron"), ("--tp", "1"), ("--pp", "1"),
            ("--ep", "1"), ("--engine-tp", "1"), ("--engine-mode", "stock"), ("--tokens", "1,2"), ("--engine-python", "y"),
            ("--trainer-python", "y"), ("--timeout", "9"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), CASES, ids=[" ".join(words[:1] + words[-3:]) for words, _ in CASES])
def test_it_is_refused(words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CkptcheckError) as caught:
        app(words[0])(list(words), standalone_mode=False)
    assert caught.value.message.startswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_the_command_ends_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def left(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", left)
    monkeypatch.setattr(sys, "argv", ["ckptcheck", "refit", TINY, *ATTACH, "--timeout", "sync=3"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"ckptcheck: --timeout sync= means nothing {ATTACHED}\n")


def test_consumers_of_what_is_not_quantized_are_not_asked_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(next(MEGATRON.iterdir()), tmp_path / "run")
    for target in (TINY, str(run)):
        app("scan")(["scan", target, "--consumers", "vllm", "--fail-on", "never"], standalone_mode=False)
    said = capsys.readouterr().err
    assert all(f"{name}: nothing in it is quantized, so --consumers were not asked\n" in said for name in (TINY, run))

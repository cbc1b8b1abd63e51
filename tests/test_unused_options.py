"""An option that would have no effect is refused in one sentence, before anything is read or started."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ckptcheck.__main__ import main
from ckptcheck.cli.app import build_app
from ckptcheck.errors import CkptcheckError
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON

TINY = str(CHECKPOINTS / "tiny-llama")
ATTACH = ("--attach", "http://127.0.0.1:1")
PAIR = (*ATTACH, "--attach", "http://127.0.0.1:2")
ALONE = "where servers are compared with each other only"
ATTACHED = "with --attach: the servers run already, and no sync is made"
NO_TRAINER = "with --attach and --no-check-logprobs: no trainer is started"


def alone(option: str, *value: str) -> tuple[tuple[str, ...], str]:
    return ("refit", *PAIR, option, *value), f"{option} has no effect {ALONE}"


def at_servers(option: str, *value: str) -> tuple[tuple[str, ...], str]:
    return ("refit", TINY, *ATTACH, option, *value), f"{option} has no effect {ATTACHED}"


def untrained(option: str, *value: str) -> tuple[tuple[str, ...], str]:
    return ("refit", TINY, *ATTACH, "--no-check-logprobs", option, *value), f"{option} has no effect {NO_TRAINER}"


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
    (("refit", TINY, *ATTACH, "--timeout", "step=5"), f"--timeout step= has no effect {ATTACHED}"),
    (
        ("refit", TINY, *ATTACH, "--timeout", "9", "--timeout", "sync=5", "--timeout", "step=5"),
        f"--timeout step= and --timeout sync= have no effect {ATTACHED}",
    ),
    (("refit", *PAIR, "--timeout", "start=5"), f"--timeout start= has no effect {ALONE}"),
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
        "--engine-python has no effect with --attach and --no-check-weight-update-equal",
    ),
    (("refit", TINY, "--allow-write"), "--allow-write has no effect without servers that run already"),
    (("refit", TINY, "--allow-remote"), "--allow-remote has no effect without servers that run already"),
    (
        ("refit", TINY, "--ignore", "lm_head", "--trainer-quantizer", "compressed-tensors"),
        "--ignore and --trainer-quantizer have no effect where nothing is quantized",
    ),
    (("refit", TINY, "--steps", "0", "--perturb", "0.1"), "--perturb has no effect with --steps 0"),
    (("refit", TINY, "--steps", "0", "--timeout", "step=3"), "--timeout step= has no effect with --steps 0"),
    (("refit", "lora", TINY, TINY, "--timeout", "score=3"), "--timeout score= has no effect with refit lora: adapters are"),
    (("refit", TINY, "--no-check-logprobs", "--timeout", "score=3"), "--timeout score= has no effect with --no-check-"),
    (("refit", TINY, "--device", "cpu", "--trainer-gpus", "0"), "--trainer-gpus has no effect with --device cpu"),
    (
        ("refit", TINY, "--quantize", "fp8", "--transport", "ipc"),
        "--quantize does not go with --transport ipc, which carries weights as the trainer holds them: packed ones over NCCL",
    ),
    (
        ("refit", TINY, "--engine", "sglang", "--quantize", "fp8", "--transport", "nccl"),
        "--quantize does not go with --transport nccl",
    ),
    (("scan", TINY, "--headers-only", "--no-mmap"), "--no-mmap has no effect with --headers-only"),
    (("scan", TINY, "--headers-only", "--device", "cpu"), "--device has no effect with --headers-only"),
    (
        ("scan", TINY, "--headers-only", "--near-zero-threshold", "0", "--identical-threshold", "0"),
        "--near-zero-threshold and --identical-threshold have no effect with --headers-only",
    ),
    (("scan", "hf://a/b", "--device", "cuda"), "--device has no effect for targets on the Hub"),
    *(
        (("scan", TINY, "--diff", *words), f"{words[0]} has no effect with --diff")
        for words in (
            ("--headers-only",), ("--values",), ("--verify-blobs",), ("--stats", "x"), ("--no-mmap",), ("--select", "IDX"),
            ("--ignore", "IDX"), ("--format", "json"), ("--output", "x"), ("--fail-on", "never"), ("--baseline", "x"),
            ("--write-baseline", "x"), ("--verbose",), ("--device", "cuda"),
        )
    ),
    (("scan", TINY, "--diff", "-o", "x", "-v"), "--output and --verbose have no effect with --diff"),
    (("scan", TINY, "--verify-blobs"), f"--verify-blobs has no effect for {TINY}: none of its files is named by its hash"),
    (("scan", TINY, "--baseline", "x", "--write-baseline", "y"), "--baseline has no effect with --write-baseline"),
    (("diff", TINY, TINY, "--bridge", "both"), "--bridge both has no effect between two checkpoints of one form"),
    (("parity", "judge", "x", "--no-limits", "--max-kl", "1"), "--max-kl has no effect with --no-limits"),
    (("parity", "judge", "x", "--max-floor-multiple", "2"), "--max-floor-multiple has no effect without --floor"),
    *(
        (("parity", verb, TINY, "-o", "x", "--prompts", "y", "--length", "8"), "--length has no effect with --prompts")
        for verb in ("record", "calibrate")
    ),
    (("parity", "probe", TINY, "--prompts", "y", "--length", "16"), "--length has no effect with --prompts"),
    (("parity", "probe", TINY, "--only", "length", "--compilation"), "--compilation has no effect with --only"),
    (("parity", "matrix", TINY, "--tp", "2"), "--tp has no effect without a pair that has megatron"),
    (("parity", "matrix", TINY, "--calibrate", "--floor", "x"), "--calibrate measures the floor and --floor reads it"),
    (("parity", "matrix", TINY, "--decoding", "greedy", "--top-p", "0.9"), "--top-p has no effect with --decoding greedy"),
    (("parity", "matrix", TINY, "--max-floor-multiple", "2"), "--max-floor-multiple has no effect without --floor or --calibrate"),
    *(
        (("parity", "why", "x", *words), f"{words[0]} has no effect without SOURCE: nothing is run")
        for words in (
            ("--engine", "vllm"), ("--engine-source", "y"), ("--dtype", "float32"), ("--switch", "a=b"), ("--engine-tp", "1"),
            ("--engine-mode", "stock"), ("--engine-python", "y"), ("--trainer", "megatron"), ("--trainer-dtype", "float32"),
            ("--trainer-head-fp32",), ("--tp", "2"), ("--pp", "2"), ("--ep", "2"), ("--trainer-python", "y"), ("--timeout", "9"),
        )
    ),
    (
        ("parity", "why", "x", TINY, "--engine", "none", "--switch", "a=b", "--engine-tp", "2"),
        "--switch and --engine-tp have no effect with --engine none: no engine is run",
    ),
    *(
        (("parity", "localize", "--dumps", "a", "b", *words), f"{words[0]} has no effect with --dumps: nothing is run")
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
        build_app(words[0])(list(words), standalone_mode=False)
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
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("", f"ckptcheck: --timeout sync= has no effect {ATTACHED}\n")


def test_consumers_of_what_is_not_quantized_are_not_asked_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(next(MEGATRON.iterdir()), tmp_path / "run")
    for target in (TINY, str(run)):
        build_app("scan")(["scan", target, "--consumers", "vllm", "--fail-on", "never"], standalone_mode=False)
    errors = capsys.readouterr().err
    assert all(f"{name}: nothing in it is quantized, so --consumers were not asked\n" in errors for name in (TINY, run))

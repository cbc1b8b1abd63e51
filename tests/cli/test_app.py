"""How the command starts and ends: versions, help, errors, signals, and what it imports."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.values.shard_digest import is_compiled
from tests.factories.command_line import RULE, run
from tests.paths import FIXTURES


def test_version(here: Path) -> None:
    for arguments in (["--version"], ["--version", "--version"]):
        result = run(here, *arguments)
        assert (result.returncode, result.stdout) == (0, f"ckptcheck {ckptcheck.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["scan", "nowhere"], "ckptcheck: nowhere does not exist\n"),
        (["scan", "empty"], "ckptcheck: empty holds no file that can be checked\n"),
        (["scan", "pickles"], "ckptcheck: pickles holds no safetensors file, only pytorch_model.bin\n"),
        (["scan", "state"], "ckptcheck: state holds no safetensors file, only pytorch_model_fsdp.bin and 1 more\n"),
        (["scan", "state/optimizer.pt"], "ckptcheck: state/optimizer.pt is a file of PyTorch, and ckptcheck checks"),
        (["scan", "parts/__0_0.distcp"], "is one file of torch.distributed.checkpoint\n           name its folder"),
        (["scan", "state/tf_model.h5"], "ckptcheck: state/tf_model.h5 is a file of Keras or TensorFlow, and ckptcheck"),
        (["scan", "gguf"], """from_pretrained("gguf", gguf_file="a-Q4_K_M.gguf").save_pretrained("converted")'"""),
        (["scan", "gguf/a-Q4_K_M.gguf"], "is a model in GGUF, llama.cpp's format, and ckptcheck checks safetensors\n"),
        (["scan", "sound/config.json"], "ckptcheck: sound/config.json is neither a .safetensors file nor an index"),
        (["scan", "sound", "--selct", "IDX"], "ckptcheck: No such option '--selct'"),
        (["scan", "sound", "--select", "IDX01x"], "ckptcheck: no rule has the code 'IDX01x'; did you mean IDX01"),
        (["scan", "sound", "--ignore", "misssing-shard"], "did you mean missing-shard?"),
        (["scan", "sound", "--format", "yaml"], "ckptcheck: Invalid value for '--format'"),
        (
            ["scan", "sound", "--fix", "--diff"],
            "--fix has no effect with --diff, which only shows what --fix would change\n",
        ),
        (["scan", "sound", "--baseline", "none.json"], "ckptcheck: cannot read the baseline none.json"),
        (["scan", "sound", "--rules", "empty"], "ckptcheck: the rule folder empty holds no rule\n"),
        (["scan", "sound", "-o", "nowhere/report.txt"], "ckptcheck: cannot write nowhere/report.txt"),
        (
            ["scan", "sound", "--stats", "x.json", "-o", "sound/../x.json"],
            "--stats and -o would both write sound/../x.json",
        ),
        (
            ["scan", "sound", "--write-baseline", "x", "-o", "x"],
            "ckptcheck: --write-baseline and -o would both write x",
        ),
        (["scan", "sound", "--config", "none.toml"], "ckptcheck: cannot read none.toml"),
        (["rule", "XYZ"], "ckptcheck: no rule has the code 'XYZ'"),
        (["scna"], "Did you mean 'scan'?\n"),
        (["scan"], "ckptcheck: Missing argument 'TARGET"),
        (["parity", "judge", "x", "--flor", "1"], "\n           see ckptcheck parity judge --help\n"),
        (["parity", "judge", "--floor"], "\n           see ckptcheck parity judge --help\n"),
        (["refit", "sound", "--transport"], "\n           see ckptcheck refit --help\n"),
        (["refit", "history", "-o"], "\n           see ckptcheck refit history --help\n"),
        (["--versio"], "\n           see ckptcheck --help, ckptcheck scan --help\n"),
        (["judge", "x"], "\n           ckptcheck parity judge is the command\n"),
        (["help", "judge"], "\n           ckptcheck parity judge is the command\n"),
        *(
            ([*verb, "/" + "a" * 999], "File name too long\n")
            for verb in (["scan"], ["identity"], ["series"], ["preflight"], ["parity", "judge"])
        ),
        (["scan", "./nowhere"], "ckptcheck: ./nowhere does not exist\n"),
        (["scan", "~nobody-of-that-name/x"], "ckptcheck: ~nobody-of-that-name/x does not exist\n"),
        (["diff", "sound", "sound", "--atol", "inf"], "ckptcheck: --atol takes finite numbers from 0 on, not inf\n"),
        (["diff", "sound", "sound", "--rtol", "nan"], "ckptcheck: --rtol takes finite numbers from 0 on, not nan\n"),
        (["diff", "sound", "sound", "--atol", "-1"], "Invalid value for '--atol': -1.0 is not in the range x>=0\n"),
        (
            ["scan", "sound", "--set", "near-zero-threshold=nan"],
            "--set near-zero-threshold takes finite numbers from 0 on, not nan",
        ),
        (
            ["scan", "sound", "--set", "identical-threshold=-1"],
            "--set identical-threshold takes finite numbers from 0 on, not -1",
        ),
        (
            ["scan", "sound", "--set", "near-zero=1"],
            "--set has no setting near-zero; did you mean near-zero-threshold?",
        ),
        (["scan", "sound", "--set", "no-mmap"], "--set no-mmap gives no value"),
        (["scan", "sound", "--set", "no-mmap=perhaps"], "scan takes True or False as no_mmap, not 'perhaps'"),
        (["refit", "x", "--set", "bucket-mb=nan"], "--set bucket-mb takes finite numbers from 0.001 on, not nan"),
        (["refit", "x", "--set", "perturb=inf"], "--set perturb takes finite numbers from 0 on, not inf"),
        (["refit", "x", "--set", "engine-gpus=x"], "--set engine-gpus: 'x' is no GPU: they are numbers or UUIDs"),
        (["refit", "x", "--set", "trainer-gpus=0,,1"], "--set trainer-gpus: '' is no GPU: they are numbers or UUIDs"),
        (["refit", "x", "--set", "trainer-gpus=1,0,1"], "--set trainer-gpus: 1,0,1 names a GPU twice"),
        (["parity", "localize", "x", "--set", "timeout=inf"], "--set timeout takes finite numbers from 1 on, not inf"),
        (["parity", "record", "x", "-o", "y", "--temperature", "nan"], "--temperature takes finite numbers from 0 on"),
        (
            ["parity", "record", "x", "-o", "y", "--set", "top-p=nan"],
            "--set top-p takes finite numbers from 0 to 1, not nan",
        ),
        (["parity", "judge", "x", "--set", "max-kl=nan"], "--set max-kl takes finite numbers from 0 on, not nan"),
    ],
)
def test_trouble_is_a_sentence_and_exit_2(here: Path, arguments: list[str], sentence: str) -> None:
    (here / "empty").mkdir()
    (here / "gguf").mkdir()
    (here / "gguf" / "a-Q4_K_M.gguf").write_bytes(b"GGUF")
    (here / "pickles").mkdir()
    (here / "pickles/pytorch_model.bin").write_bytes(b"\x80\x02.")
    (here / "state").mkdir()
    for name in ("optimizer.pt", "pytorch_model_fsdp.bin", "value_head.bin", "tf_model.h5"):
        (here / "state" / name).write_bytes(b"\x80\x02.")
    (here / "parts").mkdir()
    (here / "parts/__0_0.distcp").write_bytes(b"x")
    result = run(here, *arguments)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 2
    assert result.stdout == ""


def test_an_output_nobody_reads_to_the_end(here: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptcheck", "rules"], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait() == 2


def test_ctrl_c_exits_at_once_and_leaves_nothing(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/bob001_other_name.py").write_text(
        RULE.format(
            body='import sys, threading\n    print("ready", file=sys.stderr, flush=True)\n    threading.Event().wait()\n    yield'
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptcheck", "scan", "sound", "--rules", "mine", "-o", "report.txt"],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "ckptcheck: interrupted\n"
    assert sorted(path.name for path in here.iterdir()) == ["broken", "mine", "sound"]


def test_a_scan_loads_no_framework(here: Path) -> None:
    program = (
        "import os, sys; sys.argv = ['ckptcheck', *sys.argv[1:]]\n"
        "os._exit = sys.exit\n"  # its way out, which would leave no time to look
        "from ckptcheck.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        "heavy = {'torch', 'transformers', 'vllm', 'sglang', 'megatron', 'ray'}\n"
        "heavy |= {'huggingface_hub', 'numpy', 'safetensors', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    commands = {"scan sound --headers-only": "[]", "scan sound": "['numpy']"}
    if is_compiled():
        commands["manifest sound -o manifest.json"] = "[]"
    for words, loaded in commands.items():
        command = [sys.executable, "-c", program, *words.split()]
        result = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
        assert result.stdout.splitlines()[-1] == loaded


@pytest.mark.parametrize("words", [["scan", "sound"], ["identity", str(FIXTURES / "megatron/critic")]])
def test_numpy_starts_one_thread_and_children_all(words: list[str], here: Path) -> None:
    """OpenBLAS reads the variable as it is loaded, and every child inherits it."""
    program = (
        f"import os, sys; sys.argv = ['ckptcheck', *{words}]\n"
        "os._exit = sys.exit\n"
        "class Watch:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'numpy': print('threads', os.environ.get('OPENBLAS_NUM_THREADS'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "from ckptcheck.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: print('threads', os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    inherited = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for given, seen in ((None, ["threads 1", "threads None"]), ("7", ["threads 7", "threads 7"])):
        environment = inherited | ({} if given is None else {"OPENBLAS_NUM_THREADS": given})
        command = [sys.executable, "-c", program]
        result = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True, env=environment)
        assert [line for line in result.stdout.splitlines() if line.startswith("threads")] == seen


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory by rules of its own")
def test_arrays_use_the_memory_of_those_before() -> None:
    program = (
        "import resource\n"
        "from ckptcheck.cli.numpy_threads import import_numpy\n"
        "import_numpy()\n"
        "import numpy\n"
        "def work(): return [numpy.ones(1 << 16) for _ in range(8)]\n"
        "work()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(20): work()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 8 * 128  # the pages of one round, of which each array has 128


def test_the_version_loads_nothing(here: Path) -> None:
    program = (
        "import sys; sys.argv = ['ckptcheck', '--version']\nfrom ckptcheck.__main__ import main\nmain()\n"
        "print('click' in sys.modules, 'rich' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("words", [[], ["refit"], ["scan"], ["parity"], ["parity", "matrix"], ["engine", "install"]])
def test_help_cuts_no_word_where_the_terminal_is_narrow(here: Path, words: list[str]) -> None:
    wide, narrow = (run(here, *words, "--help", COLUMNS=columns).stdout for columns in ("200", "60"))
    assert re.sub(r"\s", "", narrow) == re.sub(r"\s", "", wide)
    assert "--help" in narrow


@pytest.mark.parametrize("words", [[], ["parity"], ["engine"]])
def test_no_command_is_answered_with_the_help_and_2(here: Path, words: list[str]) -> None:
    result = run(here, *words)
    assert (result.returncode, result.stderr) == (2, "")
    assert result.stdout.rstrip("\n") == run(here, *words, "--help").stdout.rstrip("\n")


@pytest.mark.parametrize(("code", "on"), [("BOB001", ', on="values"'), ("EMB901", "")])
def test_ctrl_c_while_values_are_read_reports_what_the_headers_show(here: Path, code: str, on: str) -> None:
    """The verdict is incomplete, and a target that was finished keeps its report; rules on embeddings may be the first to wait."""
    (here / "mine").mkdir()
    body = "import os, signal\n    'sound' in ckpt.target or os.kill(os.getpid(), signal.SIGINT)\n    yield from ()"
    text = RULE.format(body=body).replace('severity="warning"', f'severity="warning"{on}').replace("BOB001", code)
    (here / "mine/bob001_other_name.py").write_text(text)
    result = run(here, "scan", "sound", "broken", "--rules", "mine")
    assert result.returncode == 130
    assert result.stderr == "ckptcheck: interrupted\n"
    sound, broken = result.stdout.split("\nbroken\n")
    assert "✓ clean · " in sound
    assert "  error   IDX001 missing-shard\n" in broken
    assert "✗ incomplete: interrupted before its values were checked, 1 error · " in broken

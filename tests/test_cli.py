"""The command as a user runs it: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from cases import CHECKPOINTS, ROOT

import ckptcheck

SCHEMA = json.loads((ROOT / "ckptcheck/reporters/report.schema.json").read_text(encoding="utf-8"))
RULE = '''"""Every model is called Bob.

## What it checks
Its name.
"""
from ckptcheck import Problem, rule


@rule("BOB001", "other-name", severity="warning")
def check(ckpt):
    {body}
'''


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working directory with a sound and a broken checkpoint in it."""
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "sound")
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "broken")
    (tmp_path / "broken/model-00002-of-00003.safetensors").unlink()
    return tmp_path


def run(here: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", *arguments],
        cwd=here,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
        check=False,
    )


def test_version(here: Path) -> None:
    for arguments in (["--version"], ["--version", "--version"]):
        result = run(here, *arguments)
        assert (result.returncode, result.stdout) == (0, f"ckptcheck {ckptcheck.__version__}\n")


def test_clean(here: Path) -> None:
    result = run(here, "scan", "sound")
    assert result.returncode == 0
    assert result.stdout.startswith("sound\nLlamaForCausalLM · 3 files · 30 tensors · 8.03 kB\n\n✓ clean · ")
    assert result.stderr == ""


def test_findings(here: Path) -> None:
    result = run(here, "scan", "broken")
    assert result.returncode == 1
    assert "  error   IDX001 missing-shard\n          model.safetensors.index.json weight_map\n" in result.stdout
    assert "→ fetch model-00002-of-00003.safetensors again" in result.stdout
    assert "skipped CFG003" in result.stdout
    assert "ckptcheck rule IDX001 explains the first one" in result.stdout
    assert not any(line.endswith(" ") for line in result.stdout.splitlines())
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["scan", "nowhere"], "ckptcheck: nowhere does not exist\n"),
        (["scan", "empty"], "ckptcheck: empty holds no file that can be checked\n"),
        (["scan", "pickles"], "ckptcheck: pickles holds no safetensors file, only pytorch_model.bin\n"),
        (["scan", "sound/config.json"], "ckptcheck: sound/config.json is neither a .safetensors file nor an index"),
        (["scan", "sound", "--selct", "IDX"], "ckptcheck: No such option: --selct"),
        (["scan", "sound", "--select", "IDX01x"], "ckptcheck: no rule has the code 'IDX01x'; did you mean IDX01"),
        (["scan", "sound", "--ignore", "misssing-shard"], "did you mean missing-shard?"),
        (["scan", "sound", "--format", "yaml"], "ckptcheck: Invalid value for '--format'"),
        (["scan", "sound", "--fix", "--diff"], "choose one\n"),
        (["scan", "sound", "--baseline", "none.json"], "ckptcheck: cannot read the baseline none.json"),
        (["scan", "sound", "--rules", "empty"], "ckptcheck: the rule folder empty holds no rule\n"),
        (["scan", "sound", "-o", "nowhere/report.txt"], "ckptcheck: cannot write nowhere/report.txt"),
        (
            ["scan", "sound", "--stats", "x.json", "-o", "sound/../x.json"],
            "ckptcheck: --stats and -o would both write sound/../x.json",
        ),
        (
            ["scan", "sound", "--write-baseline", "x", "-o", "x"],
            "ckptcheck: --write-baseline and -o would both write x",
        ),
        (["scan", "sound", "--config", "none.toml"], "ckptcheck: cannot read none.toml"),
        (["rule", "XYZ"], "ckptcheck: no rule has the code 'XYZ'"),
        (["rule", "IDX01"], "ckptcheck: IDX01 is the beginning of 3 codes: IDX010, IDX011, IDX012"),
        (["scna"], "Did you mean 'scan'?\n"),
        (["scan"], "ckptcheck: Missing argument 'TARGET"),
        (["parity", "judge", "x", "--max-k", "1"], "\n           see ckptcheck parity judge --help\n"),
        (["parity", "judge", "--max-kl"], "\n           see ckptcheck parity judge --help\n"),
        (["refit", "sound", "--attach"], "\n           see ckptcheck refit --help\n"),
        (["refit", "history", "-o"], "\n           see ckptcheck refit history --help\n"),
        (["--versio"], "\n           see ckptcheck --help, ckptcheck scan --help\n"),
        (["scan", "./nowhere"], "ckptcheck: ./nowhere does not exist\n"),
        (["scan", "~nobody-of-that-name/x"], "ckptcheck: ~nobody-of-that-name/x does not exist\n"),
        (
            ["diff", "sound", "sound", "--atol", "inf"],
            "Invalid value for '--atol': inf is no finite number from 0 on\n",
        ),
        (
            ["diff", "sound", "sound", "--rtol", "nan"],
            "Invalid value for '--rtol': nan is no finite number from 0 on\n",
        ),
        (["diff", "sound", "sound", "--atol", "-1"], "Invalid value for '--atol': -1 is no finite number from 0 on\n"),
        (["scan", "sound", "--near-zero-threshold", "nan"], "'--near-zero-threshold': nan is no finite number"),
        (["scan", "sound", "--near-zero-threshold", "-1"], "'--near-zero-threshold': -1 is no finite number"),
        (["scan", "sound", "--identical-threshold", "inf"], "'--identical-threshold': inf is no finite number"),
        (["refit", "x", "--bucket-mb", "nan"], "'--bucket-mb': nan is no finite number"),
        (["refit", "x", "--bucket-mb", "inf"], "'--bucket-mb': inf is no finite number"),
        (["refit", "x", "--perturb", "nan"], "'--perturb': nan is no finite number"),
        (["refit", "x", "--engine-gpus", "x"], "'--engine-gpus': 'x' is no GPU: they are numbers or UUIDs"),
        (["refit", "x", "--trainer-gpus", "0,,1"], "'--trainer-gpus': '' is no GPU: they are numbers or UUIDs"),
        (["refit", "x", "--trainer-gpus", "1,0,1"], "'--trainer-gpus': 1,0,1 names a GPU twice"),
        (["parity", "localize", "x", "--timeout", "inf"], "'--timeout': inf is no finite number"),
        (["parity", "record", "x", "-o", "y", "--temperature", "nan"], "'--temperature': nan is no finite number"),
        (["parity", "record", "x", "-o", "y", "--top-p", "nan"], "'--top-p': nan is no finite number"),
        (["parity", "judge", "x", "--max-kl", "nan"], "'--max-kl': nan is no finite number"),
        (["parity", "judge", "x", "--max-floor-multiple", "nan"], "'--max-floor-multiple': nan is no finite number"),
    ],
)
def test_trouble_is_a_sentence_and_exit_2(here: Path, arguments: list[str], sentence: str) -> None:
    (here / "empty").mkdir()
    (here / "pickles").mkdir()
    (here / "pickles/pytorch_model.bin").write_bytes(b"\x80\x02.")
    result = run(here, *arguments)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 2
    assert result.stdout == ""


def test_a_broken_target_does_not_stop_the_others(here: Path) -> None:
    result = run(here, "scan", "nowhere", "sound", "broken", "--format", "json")
    assert result.returncode == 2
    reports = json.loads(result.stdout)
    assert [report["verdict"] for report in reports] == ["incomplete", "clean", "findings"]
    assert reports[0]["error"].startswith("nowhere does not exist (name a folder")
    jsonschema.validate(reports, SCHEMA)


@pytest.mark.parametrize("form", ["text", "json", "sarif", "junit", "github"])
def test_every_format_goes_to_stdout_or_to_a_file(here: Path, form: str) -> None:
    printed = run(here, "scan", "broken", "--format", form)
    assert printed.returncode == 1
    assert "IDX001" in printed.stdout
    filed = run(here, "scan", "broken", "--format", form, "-o", "report")
    assert (filed.returncode, filed.stdout, filed.stderr) == (1, "", "")
    assert (here / "report").read_text(encoding="utf-8") == printed.stdout
    assert not list(here.glob(".report*"))


def test_json_report(here: Path) -> None:
    report = json.loads(run(here, "scan", "broken", "--format", "json").stdout)
    jsonschema.validate(report, SCHEMA)
    assert report["subject"].startswith("LlamaForCausalLM · ")
    assert report["counts"] == {"error": 1, "warning": 0, "info": 0, "files": 2, "tensors": 20, "bytes": 5920}
    assert report["findings"][0] == {
        "code": "IDX001",
        "name": "missing-shard",
        "severity": "error",
        "message": "model-00002-of-00003.safetensors is not there, but the index places 10 tensors in it",
        "file": "model.safetensors.index.json",
        "key": "weight_map",
        "hint": "fetch model-00002-of-00003.safetensors again, or find out why it was never uploaded",
    }
    codes = {*report["passed"], *(entry["code"] for entry in report["skipped"]), "IDX001"}
    assert len(codes) == len(report["passed"]) + len(report["skipped"]) + 1


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--fail-on", "never"], 0),
        (["--fail-on", "error"], 1),
        (["--select", "CFG002,IDX006"], 0),
        (["--select", "IDX"], 1),
        (["--ignore", "IDX001"], 0),
        (["--select", "missing-shard"], 1),
        (["--select", "ADP"], 2),
        (["--select", "IDX001", "--ignore", "IDX001"], 2),
    ],
)
def test_selection_decides_the_exit(here: Path, flags: list[str], code: int) -> None:
    result = run(here, "scan", "broken", *flags)
    assert result.returncode == code, result.stdout
    if code == 2:
        assert "incomplete: no selected rule looked at this target" in result.stdout


def test_ignored_is_skipped_with_the_reason(here: Path) -> None:
    (here / "ckptcheck.toml").write_text('fail-on = "warning"\n[ignore]\nIDX001 = "the second half is in the cloud"\n')
    report = json.loads(run(here, "scan", "broken", "--format", "json").stdout)
    assert {"code": "IDX001", "reason": "the second half is in the cloud"} in report["skipped"]
    assert "IDX001" not in report["passed"]
    assert report["verdict"] == "clean"


def test_severity_override_and_fail_on_from_settings(here: Path) -> None:
    (here / "pyproject.toml").write_text(
        '[tool.ckptcheck]\nfail-on = "warning"\n[tool.ckptcheck.severity]\nIDX001 = "info"\nIDX = "warning"\n'
    )
    result = run(here, "scan", "broken", "--format", "json")
    assert json.loads(result.stdout)["findings"][0]["severity"] == "info"
    assert result.returncode == 0
    assert run(here, "scan", "broken", "--fail-on", "info").returncode == 1


def test_settings_inside_the_target_are_not_believed(here: Path) -> None:
    (here / "broken/ckptcheck.toml").write_text('rules = ["evil"]\n[ignore]\nIDX001 = "trust me"\n')
    (here / "broken/evil").mkdir()
    (here / "broken/evil/evi001_x.py").write_text("raise SystemExit('owned')")
    for target, cwd in (("broken", here), (".", here / "broken")):
        assert run(cwd, "scan", target).returncode == 1


def test_baseline(here: Path) -> None:
    written = run(here, "scan", "broken", "--write-baseline", "known.json")
    assert (written.returncode, written.stderr) == (0, "1 finding written to known.json\n")
    again = run(here, "scan", "broken", "--baseline", "known.json")
    assert again.returncode == 0
    assert "1 known finding in the baseline" in again.stdout
    (here / "broken/model-00003-of-00003.safetensors").unlink()
    new = json.loads(run(here, "scan", "broken", "--baseline", "known.json", "--format", "json").stdout)
    assert [finding["message"][:32] for finding in new["findings"]] == ["model-00003-of-00003.safetensors"]
    assert new["known"] == 1
    (here / "known.json").write_text("[]")
    assert "known.json is not a baseline of ckptcheck" in run(here, "scan", "broken", "--baseline", "known.json").stderr


def test_a_rule_of_ones_own(here: Path) -> None:
    (here / "mine").mkdir()
    rule = here / "mine/bob001_other_name.py"
    rule.write_text(RULE.format(body='yield Problem("it is not called Bob", file="config.json")'))
    result = run(here, "scan", "sound", "--rules", "mine")
    assert result.returncode == 0
    assert "warning BOB001 other-name\n          config.json\n          it is not called Bob\n" in result.stdout
    assert "Every model is called Bob." in run(here, "rule", "BOB001", "--rules", "mine").stdout
    (here / "ckptcheck.toml").write_text('rules = ["mine"]')
    assert "BOB001" in run(here, "rules").stdout


def test_a_rule_that_crashes_makes_the_run_incomplete_and_the_others_run(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/bob001_other_name.py").write_text(RULE.format(body='yield Problem("first")\n    1 / 0'))
    result = run(here, "scan", "broken", "--rules", "mine", "--format", "json")
    assert result.returncode == 2
    report = json.loads(result.stdout)
    assert report["verdict"] == "incomplete"
    assert report["crashed"] == [
        {"code": "BOB001", "error": "ZeroDivisionError: division by zero (bob001_other_name.py, line 12)"}
    ]
    assert [finding["code"] for finding in report["findings"]] == ["IDX001", "BOB001"]
    assert len(report["passed"]) > 20
    assert "could not check BOB001: ZeroDivisionError" in run(here, "scan", "broken", "--rules", "mine").stdout


def test_a_rule_file_that_cannot_be_loaded(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/bob001_other_name.py").write_text("import nothing_of_this_name")
    result = run(here, "scan", "sound", "--rules", "mine")
    assert result.returncode == 2
    assert "cannot be loaded: ModuleNotFoundError" in result.stderr


def test_fix_and_diff(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    before = index.read_text(encoding="utf-8")
    index.write_text(before.replace('"total_size": 8032', '"total_size": 1'))
    shown = run(here, "scan", "sound", "--diff")
    assert shown.returncode == 1
    assert '-    "total_size": 1\n+    "total_size": 8032\n' in shown.stdout
    assert index.read_text(encoding="utf-8") != before
    fixed = run(here, "scan", "sound", "--fix")
    assert fixed.returncode == 0
    assert "✓ clean" in fixed.stdout
    assert fixed.stderr == (
        "sound: corrected metadata.total_size in model.safetensors.index.json; the old one is model.safetensors.index.json.orig\n"
    )
    assert json.loads(index.read_text(encoding="utf-8")) == json.loads(before)
    assert '"total_size": 1\n' in Path(f"{index}.orig").read_text(encoding="utf-8")
    assert run(here, "scan", "sound", "--diff").returncode == 0


def test_fix_refuses_where_a_new_index_would_hide_a_loss(here: Path) -> None:
    result = run(here, "scan", "broken", "--fix")
    assert result.returncode == 1
    assert (
        result.stderr
        == "broken: the index was not repaired: model-00002-of-00003.safetensors is missing or unreadable\n"
    )
    assert not list((here / "broken").glob("*.orig"))


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


def _terminal(here: Path, *arguments: str, columns: int) -> str:
    """Run in a real terminal of some width and return what it shows."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(here)
        os.environ.update(COLUMNS=str(columns), TERM="xterm-256color")
        os.execv(sys.executable, [sys.executable, "-m", "ckptcheck", *arguments])
    shown = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.waitpid(pid, 0)
    os.close(descriptor)
    return shown.decode()


def test_a_narrow_terminal_has_colour_and_no_line_is_too_long(here: Path) -> None:
    shown = _terminal(here, "scan", "broken", columns=44)
    assert "\x1b[1;31merror" in shown
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.replace("\r", "").split("\n")]
    assert max(map(len, lines)) <= 44
    assert "IDX001" in "".join(lines)


def test_names_cannot_draw_on_the_terminal(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    value = json.loads(index.read_text(encoding="utf-8"))
    value["weight_map"]["\x1b[31mred\nline"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(value))
    result = run(here, "scan", "sound")
    assert "\x1b" not in result.stdout
    assert "\\x1b[31mred\\nline" in result.stdout


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
    assert process.returncode == 2
    assert errors == "ckptcheck: interrupted\n"
    assert sorted(path.name for path in here.iterdir()) == ["broken", "mine", "sound"]


def test_a_scan_loads_no_framework(here: Path) -> None:
    program = (
        "import os, sys; sys.argv = ['ckptcheck', 'scan', 'sound', *sys.argv[1:]]\n"
        "os._exit = sys.exit\n"  # its way out, which would leave no time to look
        "from ckptcheck.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        "heavy = {'torch', 'transformers', 'vllm', 'sglang', 'megatron', 'ray', 'huggingface_hub', 'numpy', 'safetensors'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    for flags, loaded in ((["--headers-only"], "[]"), ([], "['numpy']")):
        command = [sys.executable, "-c", program, *flags]
        result = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
        assert result.stdout.splitlines()[-1] == loaded


def test_the_version_loads_nothing(here: Path) -> None:
    program = (
        "import sys; sys.argv = ['ckptcheck', '--version']\nfrom ckptcheck.__main__ import main\nmain()\n"
        "print('typer' in sys.modules, 'rich' in sys.modules)"
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


def test_doctor(here: Path) -> None:
    result = run(here, "doctor", HF_ENDPOINT="http://127.0.0.1:1")
    assert result.returncode == 0
    assert "✓ safetensors" in result.stdout
    assert "endpoint http://127.0.0.1:1" in result.stdout
    assert f"rules from {ROOT / 'rules'}" in result.stdout


def test_rules_lists_every_rule_and_rule_prints_its_page(here: Path) -> None:
    from ckptcheck import pack

    listed = json.loads(run(here, "rules", "--format", "json").stdout)
    assert [entry["code"] for entry in listed] == [rule.code for rule in pack.load()]
    page = run(here, "rule", "idx001").stdout
    assert page.startswith(
        "# IDX001 missing-shard (error)\n\nThe index names a shard that is not there.\n\n## What it checks\n"
    )

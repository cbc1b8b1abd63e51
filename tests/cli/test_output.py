"""What the command prints where: formats, files and terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from msgspec import structs

from ckptcheck.linter.report import Reports
from ckptcheck.reporters import ReportFormat
from tests.factories.command_line import SCHEMA, run


def test_clean(here: Path) -> None:
    result = run(here, "scan", "sound")
    assert result.returncode == 0
    assert result.stdout.startswith("sound\nLlamaForCausalLM · 3 files · 30 tensors · 8.03 kB\n\n✓ clean · ")
    assert result.stdout.splitlines()[-1].startswith("  --dry-load vllm asks the engine's own loader; ")
    assert "embed_tokens" in run(here, "scan", "sound", "-v").stdout, "the table of rows that are all there"
    assert run(here, "scan", "sound", "-q").stdout.startswith("✓ clean · ")
    assert len(run(here, "scan", "sound", "broken", "-q").stdout.splitlines()) == 3
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


@pytest.mark.parametrize("form", get_args(ReportFormat))
def test_every_format_goes_to_stdout_or_to_a_file(here: Path, form: str) -> None:
    printed = run(here, "scan", "broken", "--format", form)
    assert printed.returncode == 1
    assert "IDX001" in printed.stdout
    filed = run(here, "scan", "broken", "--format", form, "-o", "report")
    assert (filed.returncode, filed.stdout) == (1, "")
    assert filed.stderr.splitlines()[-1].endswith(" skipped · the report is report")
    assert ("IDX001 missing-shard" in filed.stderr) is (form != "text"), (
        "the log has the findings beside a machine's format"
    )
    assert (here / "report").read_text(encoding="utf-8") == printed.stdout
    assert not list(here.glob(".report*"))


def test_json_report(here: Path) -> None:
    report = json.loads(run(here, "scan", "broken", "--format", "json").stdout)
    jsonschema.validate(report, SCHEMA)
    assert report["subject"].startswith("LlamaForCausalLM · ")
    assert report["counts"] == {"error": 1, "warning": 0, "info": 0, "files": 2, "tensors": 20, "bytes": 5920}
    names = report["findings"][0].pop("names")
    assert (len(names), names[0]) == (10, "model.layers.0.self_attn.v_proj.weight")
    assert report["findings"][0] == {
        "code": "IDX001",
        "name": "missing-shard",
        "severity": "error",
        "message": "model-00002-of-00003.safetensors is missing, but the index places 10 tensors in it",
        "file": "model.safetensors.index.json",
        "key": "weight_map",
        "hint": "fetch model-00002-of-00003.safetensors again; if it lies nowhere, the save or the upload did not finish: "
        "export again",
    }
    codes = {*report["passed"], *(entry["code"] for entry in report["skipped"]), "IDX001"}
    assert len(codes) == len(report["passed"]) + len(report["skipped"]) + 1


def _terminal(here: Path, *arguments: str, columns: int, bar_delay: float) -> str:
    """Run in a real terminal of some width and return what it receives. bar_delay: seconds before a progress bar appears."""
    program = (
        f"import sys; sys.argv[0] = 'ckptcheck'; from ckptcheck.cli import output; output.BAR_DELAY = {bar_delay}\n"
        "from ckptcheck.__main__ import main; main()"
    )
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(here)
        os.environ.update(COLUMNS=str(columns), TERM="xterm-256color")
        os.execv(sys.executable, [sys.executable, "-c", program, *arguments])
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


@pytest.mark.parametrize("bar_delay", [-1, 3600], ids=["slow machine", "fast machine"])
def test_a_narrow_terminal_has_colour_and_no_line_is_too_long(here: Path, bar_delay: float) -> None:
    """On a slow machine a progress bar is drawn and taken away again before the report."""
    shown = _terminal(here, "scan", "broken", columns=44, bar_delay=bar_delay)
    assert ("\x1b[?25l" in shown) == (bar_delay < 0), "hides the cursor while a bar is drawn"
    assert "\x1b[1;31merror" in shown
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
    assert max(map(len, lines)) <= 44
    assert "IDX001" in "".join(lines)


def test_an_error_is_wrapped_between_words(here: Path) -> None:
    shown = _terminal(here, "scan", "nowhere/at/all", columns=44, bar_delay=3600)
    assert shown.splitlines() == [
        "ckptcheck: nowhere/at/all does not exist",
        "           name a folder, a .safetensors",
        "           file, its index, or hf://org/name",
        "           for the Hub",
    ]


def test_names_cannot_draw_on_the_terminal(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    value = json.loads(index.read_text(encoding="utf-8"))
    value["weight_map"]["\x1b[31mred\nline"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(value))
    result = run(here, "scan", "sound")
    assert "\x1b" not in result.stdout
    assert "\\x1b[31mred\\nline" in result.stdout


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from ckptcheck.cli.output import log_progress

    seconds = iter([0.0, 1.0, 29.0, 31.0, 60.0, 62.0, 200.0])
    advance = log_progress("model", bytewise=True, clock=lambda: next(seconds))
    for done in (1, 2, 25, 30, 50, 100):
        advance(done * 10**9, 10**11)
    assert capsys.readouterr().err == (
        "model: 25 % done after 31 seconds, 25 GB of 100 GB, about 93 seconds left\n"
        "model: 50 % done after 62 seconds, 50 GB of 100 GB, about 62 seconds left\n"
    )
    seconds = iter([0.0, 40.0, 45.0])
    advance = log_progress("scor\ning", bytewise=False, clock=lambda: next(seconds))
    advance(1, 1200)
    advance(2, 1200)
    assert capsys.readouterr().err == "scor\\ning: 0 % done after 40 seconds, 1 of 1,200, about 13.3 hours left\n"


def test_what_the_headers_show_is_written_before_long_reading_goes_on(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ckptcheck
    from ckptcheck.cli import output

    observer = output.TerminalObserver()
    report = ckptcheck.scan(here / "broken", headers_only=True)
    observer.note_report(structs.replace(report[0], target="broken"))
    monkeypatch.setattr(output, "LINE_INTERVAL", 0.0)
    with observer.progress("broken") as advance:
        assert advance is not None
        advance(1, 4)
        advance(2, 4)
    errors = capsys.readouterr().err
    assert errors.startswith("broken: found in the headers so far:\n\n  error   IDX001 missing-shard\n")
    assert errors.count("IDX001") == 1
    assert errors.count("% done after") == 2


def test_a_phase_says_how_long_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from ckptcheck.cli.output import repeat_line

    clock, answers = iter([0.0, 30.0, 61.0]), iter([False, False, True])
    repeat_line("cold load", 600, lambda _: next(answers), lambda: next(clock))
    assert capsys.readouterr().err.splitlines() == [
        "  cold load: 30 seconds so far, at most 10 minutes left",
        "  cold load: 61 seconds so far, at most 9 minutes left",
    ]


def test_a_phase_is_announced_and_in_a_terminal_has_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ckptcheck.cli import output

    with output.TERMINAL.phase("cold load", 600):
        assert capsys.readouterr().err == "cold load\n"
    monkeypatch.setattr(output, "SHORT", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(KeyError), output.TERMINAL.phase("look\n"):
        raise KeyError  # a phase that fails gives the terminal back
    assert capsys.readouterr().err.endswith("look\\n (1 second)\n")


def test_the_values_of_a_scan_and_a_manifest_are_followed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every call of a clock that runs fast is a line, where the report goes to a file and the messages to a log."""
    import ckptcheck
    from ckptcheck.cli import output
    from ckptcheck.values import value_pass

    monkeypatch.setattr(output, "LINE_INTERVAL", -1.0)
    monkeypatch.setattr(value_pass, "MIN_BYTES_FOR_WORKERS", 1 << 60)
    monkeypatch.setattr(value_pass, "READ_BYTES", 512)
    monkeypatch.setattr(value_pass, "MAX_BATCH_BYTES", 512)
    for work in (
        lambda: ckptcheck.scan(here / "sound", observer=output.TERMINAL),
        lambda: ckptcheck.manifest(here / "sound", observer=output.TERMINAL),
    ):
        work()
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) > 1
        assert all(
            re.search(r"sound: \d+ % done after \d+ seconds?, .* of 8.03 kB, about \d+ seconds? left$", line)
            for line in lines
        )


@pytest.mark.parametrize("form", ["text", "junit", "sarif", "github"])
def test_a_shard_that_cannot_be_read_is_said_once(form: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ckptcheck
    from ckptcheck.checkpoint.source import Folder
    from ckptcheck.cli import output

    read = Folder.read

    def broken(folder: Folder, name: str, start: int, length: int) -> bytes:
        if "00002" in name:
            raise OSError(5, "Input/output error")
        return read(folder, name, start, length)

    monkeypatch.setattr(Folder, "read", broken)
    report = ckptcheck.scan(here / "sound")
    output.write_reports([report], report.rules, form, here / "report")
    text = (here / "report").read_text(encoding="utf-8")
    times = 2 if form == "junit" else 1  # a JUnit error has its message as attribute and as text
    assert text.count("could not read model-00002-of-00003.safetensors: Input/output error") == times
    assert report.verdict == "incomplete"
    assert not report.passed
    if form == "text":
        assert text.count("model-00002") == 1


def run_in_shell(here: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in which $CKPTCHECK is the command."""
    environment = {**os.environ, "CKPTCHECK": f"{sys.executable} -m ckptcheck"}
    return subprocess.run(["sh", "-c", script], cwd=here, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(
    "command",
    ["scan sound", "scan broken", "scan sound --format json", "diff sound sound", "rules", "rule IDX001", "--version"],
)
@pytest.mark.parametrize(
    ("sink", "reason"), [(">&-", "standard output is closed"), ("> /dev/full", "No space left on device")]
)
def test_a_report_that_cannot_be_printed_is_not_clean(here: Path, command: str, sink: str, reason: str) -> None:
    result = run_in_shell(here, f"$CKPTCHECK {command} {sink}")
    assert (result.returncode, result.stderr) == (2, f"ckptcheck: the output: {reason}\n")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_report_of_which_a_disk_takes_a_part_is_not_clean(here: Path, form: str, unbuffered: str) -> None:
    """Without a buffer, as many images of containers have it, the rest of the report was lost and the exit code was 0."""
    limited = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (64, 64)); from ckptcheck.__main__ import main; main()"
    script = f'PYTHONUNBUFFERED={unbuffered} {sys.executable} -c "{limited}" scan sound --format {form} > cut.txt'
    result = run_in_shell(here, script)
    assert (result.returncode, result.stderr) == (2, "ckptcheck: the output: File too large\n")
    assert (here / "cut.txt").stat().st_size == 64


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("scan broken --format html", "/dev/stdout"),
        ("diff sound sound", "/dev/fd/1"),
        ("manifest sound", "/proc/self/fd/1"),
        ("manifest sound", "link"),
    ],
)
def test_an_output_that_is_closed_standard_output_is_not_written(here: Path, command: str, path: str) -> None:
    """Another file has taken its number, and would take what nobody reads."""
    (here / "link").symlink_to("/dev/stdout")
    result = run_in_shell(here, f"$CKPTCHECK {command} -o {path} >&-")
    assert (result.returncode, result.stderr) == (2, f"ckptcheck: cannot write {path}: standard output is closed\n")


def test_a_report_for_closed_standard_error_is_not_clean(here: Path) -> None:
    assert run_in_shell(here, "$CKPTCHECK scan sound -o /dev/stderr 2>&-").returncode == 2


def test_a_report_in_a_file_needs_no_standard_output(here: Path) -> None:
    result = run_in_shell(here, "$CKPTCHECK scan broken -o report >&-")
    assert (result.returncode, "cannot write" in result.stderr) == (1, False)
    assert "IDX001" in (here / "report").read_text(encoding="utf-8")


@pytest.mark.parametrize("existing", [False, True])
def test_where_the_disk_is_full_the_report_is_printed(here: Path, existing: bool) -> None:
    if existing:
        (here / "report").write_text("before")
    # a limit on the size of files: the first bytes can be written, as on a disk that is almost full
    limited = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (64, 64)); from ckptcheck.__main__ import main; main()"
    arguments = [sys.executable, "-c", limited, "scan", "broken", "-o", "report"]
    result = subprocess.run(arguments, cwd=here, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "ckptcheck: cannot write report: File too large\n")
    assert "IDX001" in result.stdout
    assert [path.name for path in here.glob("*report*")] == ["report"] * existing
    assert not existing or (here / "report").read_text() == "before"
    assert not list(here.glob(".report*"))


@pytest.mark.parametrize(
    ("name", "begins"), [("x.JSON", "{"), ("x.sarif", "{"), ("x.html", "<!doctype html>"), ("x.xml", "<?xml")]
)
def test_the_ending_of_the_file_names_the_format(here: Path, name: str, begins: str) -> None:
    run(here, "scan", "broken", "-o", name)
    assert (here / name).read_text(encoding="utf-8").startswith(begins)
    run(here, "scan", "broken", "-o", name, "--format", "text")
    assert (here / name).read_text(encoding="utf-8").startswith("broken\n")


def test_one_run_writes_several_formats(here: Path) -> None:
    names = ("r.json", "r.sarif", "r.xml", "r.md", "r.html")
    result = run(here, "scan", "broken", *(word for name in names for word in ("-o", name)))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].endswith(" · the report is r.json, r.sarif, r.xml, r.md and r.html")
    assert all("IDX001" in (here / name).read_text(encoding="utf-8") for name in names)
    result = run(here, "scan", "broken", "-o", "r.json", "-o", "r.md", "--format", "json")
    assert (result.returncode, "leave --format out" in result.stderr) == (2, True)
    result = run(here, "scan", "broken", "-o", "r.md", "-o", "./r.md")
    assert (result.returncode, "would both write r.md" in result.stderr) == (2, True)
    assert run(here, "scan", "nothing", "-o", "r.md", "-o", "s.json").returncode == 2
    assert all("nothing does not exist" in (here / name).read_text(encoding="utf-8") for name in ("r.md", "s.json"))


@pytest.mark.parametrize("name", ["a|b", "<img>", "[x](http://y)", "*a*_b_", "`c`", "@me", "##[error]", "::error::x"])
def test_no_name_is_obeyed_as_markdown(name: str) -> None:
    from ckptcheck.linter.report import Report
    from ckptcheck.linter.rule import Finding
    from ckptcheck.reporters import markdown

    finding = Finding("ST001", "broken-file", "error", name, file=name, hint=name)
    row = markdown.render([Report(name, findings=(finding,))], ()).splitlines()[-1]
    assert row.count("|") - row.count("\\|") == 4
    assert re.search(r"(?<!\\)" + re.escape(name), row) is None
    assert "](http:" not in row


def test_the_log_has_the_verdict_and_the_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from click.exceptions import Exit

    import ckptcheck
    from ckptcheck.cli import output

    one, two = ckptcheck.scan(here / "sound"), ckptcheck.diff(here / "sound", here / "sound")
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda there=is_terminal: there)
        for reports in (one, two, Reports((one, two))):
            with pytest.raises(Exit):
                output.finish(reports, [("json", here / "report.json")])
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 3
    assert said[0].startswith("✓ clean · ")
    assert said[0].endswith(f" rules passed · the report is {here / 'report.json'}")
    assert f"{len(one.passed)} rules passed" in said[0]
    assert "tensors are equal bit for bit" in said[1]
    assert said[2] == f"✓ all 2 checkpoints are clean · the report is {here / 'report.json'}"


@pytest.mark.parametrize(
    "words",
    [
        ["scan", "sound", "-o", "sound/config.json"],
        ["scan", "sound", "-o", "sound/model-00001-of-00003.safetensors"],
        ["scan", "sound", "--format", "json", "-o", "broken/model.safetensors.index.json"],
        ["scan", "sound", "--stats", "sound/config.json"],
        ["scan", "broken", "--write-baseline", "sound/config.json"],
        ["diff", "sound", "sound", "-o", "sound/config.json"],
        ["manifest", "sound", "-o", "sound/config.json"],
        ["parity", "calibrate", "sound", "-o", "broken/config.json"],
    ],
    ids=" ".join,
)
def test_no_report_takes_the_place_of_a_models_file(here: Path, words: list[str]) -> None:
    before = {path: path.read_bytes() for path in sorted(here.rglob("*.*")) if path.is_file()}
    result = run(here, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"ckptcheck: {words[-1]} is a file of a model, and would be overwritten\n")
    assert {path: path.read_bytes() for path in sorted(here.rglob("*.*")) if path.is_file()} == before


def test_a_report_beside_the_weights_is_written_again(here: Path) -> None:
    for _ in range(2):
        assert run(here, "scan", "sound", "-o", "sound/report.txt").returncode == 0


def test_the_link_to_a_closed_stream_is_not_replaced(here: Path) -> None:
    """As root that link is /dev/stdout of every process."""
    link = here / "stdout"
    link.symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-m", "ckptcheck", "manifest", "sound", "-o", "stdout"]
    subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=here, check=False, capture_output=True)
    assert link.is_symlink()


def test_several_reports_end_with_one_line_on_all(here: Path) -> None:
    result = run(here, "scan", "sound", "broken", "nowhere", "--headers-only")
    assert result.stdout.splitlines()[-1] == (
        "✗ 1 of 3 checkpoints could not be checked: nowhere · 1 of 3 checkpoints has errors: broken"
    )
    assert " of 1" not in run(here, "scan", "sound", "--headers-only").stdout

"""The kit over transports in this process: each weakness gets its answer, and a careful one gets none but refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.conformance import faults
from ckptcheck.live.conformance.own_transport import OwnTransport, load_transport, split_evenly
from ckptcheck.live.conformance.run import ConformanceRun
from ckptcheck.live.conformance.trace import ConformanceTrace
from tests.conftest import needs
from tests.paths import DOUBLES, ROOT

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs/adding-a-transport.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late bucket comes at once."""
    needs("torch")
    monkeypatch.setattr("time.sleep", lambda _: None)


def try_class(name: str, **options: Any) -> ConformanceTrace:
    from tests.doubles import sample_transports

    return ConformanceRun(OwnTransport(getattr(sample_transports, name), name, **options)).run()


def answers(trace: ConformanceTrace) -> dict[str, set[str]]:
    """Fault → its answers at all places."""
    found: dict[str, set[str]] = {}
    for outcome in trace.outcomes:
        found.setdefault(outcome.kind, set()).add(outcome.answer)
    return found


def codes(trace: ConformanceTrace) -> set[str]:
    report = run_rules(trace, load_rules())
    assert not report.crashed
    return {finding.code for finding in report.findings if finding.severity != "info"}


def test_a_careful_transport_refuses_and_comes_back() -> None:
    trace = try_class("Careful")
    assert not codes(trace)
    found = answers(trace)
    assert found.pop("kill-receiver") == {"untried"}
    harmless = {"poison", "reorder", "delay", "generation"}
    assert {kind for kind, seen in found.items() if seen == {"harmless"}} == harmless
    assert set().union(*(seen for kind, seen in found.items() if kind not in harmless)) == {"refused"}
    assert {outcome.recovery for outcome in trace.outcomes if outcome.answer == "refused"} == {"a sound update"}


def test_a_careless_transport_accepts_everything() -> None:
    trace = try_class("Careless")
    assert codes(trace) == {"REF057"}
    found = answers(trace)
    for kind in ("drop", "drop-tensor", "stale-duplicate", "truncate", "still-version", "two-updates"):
        assert found[kind] == {"ckptcheck"}, kind
    assert found["kill-sender"] == {"refused", "ckptcheck"}  # before the first bucket nothing has been written
    assert found["duplicate"] == found["reorder"] == {"harmless"}
    assert found["sleep"] == found["generation"] == found["kill-receiver"] == {"untried"}
    dropped = [outcome.place for outcome in trace.outcomes if outcome.kind == "drop"]
    assert dropped == [f"bucket {number} of 4" for number in (1, 2, 3, 4)]


def test_a_session_that_stays_open_is_found_by_the_next_update() -> None:
    trace = try_class("Locked")
    assert codes(trace) == {"REF057"}
    stuck = {outcome.kind for outcome in trace.outcomes if outcome.is_stuck}
    assert stuck == {"kill-sender"}
    assert not any(outcome.is_wrong_afterwards for outcome in trace.outcomes)


def test_tokens_without_a_version_are_silent_and_copies_take_no_marks() -> None:
    trace = try_class("Nameless")
    assert codes(trace) == {"REF057"}
    found = answers(trace)
    assert found["generation"] == {"silent"}
    assert found["poison"] == found["still-version"] == {"untried"}


def test_a_transport_that_drops_a_tensor_is_not_tried() -> None:
    trace = try_class("Forgetful")
    assert codes(trace) == {"REF057"}
    assert "a sound update did not write 1 tensor: norm" in trace.problems
    assert set().union(*answers(trace).values()) == {"untried"}
    assert trace.summary == f"no fault was tried; {len(trace.outcomes)} not tried, which is no pass"


def test_a_transport_that_waits_for_ever_is_ended() -> None:
    trace = try_class("Waiting", timeout=0.5)
    assert codes(trace) == {"REF057"}
    assert answers(trace)["drop"] == {"unanswered"}
    assert {outcome.recovery for outcome in trace.outcomes if outcome.kind == "drop"} == {"a restart"}


def test_a_refused_sound_update_is_said() -> None:
    trace = try_class("Broken")
    assert trace.problems == (
        'a sound update of the new weights was answered "ConnectionError: no route to the receiver"',
    )


def test_a_fault_that_spoils_later_updates_is_an_error() -> None:
    from tests.doubles import sample_transports

    class Spoilt(sample_transports.Careless):
        """After a tensor that was cut it keeps that tensor for ever."""

        def __init__(self) -> None:
            super().__init__()
            self.kept: set[str] = set()

        def send(self, bucket: Any) -> None:
            self.kept |= {name for name, tensor in bucket.items() if tensor.shape != self.model[name].shape}
            super().send({name: tensor for name, tensor in bucket.items() if name not in self.kept})

    trace = ConformanceRun(OwnTransport(Spoilt, "Spoilt")).run()
    (cut,) = [outcome for outcome in trace.outcomes if outcome.kind == "truncate"]
    assert cut.is_wrong_afterwards
    (found,) = [each for each in run_rules(trace, load_rules()).findings if each.severity == "error"]
    assert found.message.endswith("brought the receiver back")


def test_an_error_of_the_kit_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "Parcel", None)
    with pytest.raises(TypeError):
        try_class("Careless")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sample_transports:Nothing", "cannot be imported: AttributeError"),
        ("no_such_module:X", "cannot be imported: ModuleNotFoundError"),
        (":X", "is no class of a transport"),
        ("collections:OrderedDict", "has no method begin, send, end, tensors, version"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOUBLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(CkptcheckError, match=message):
        load_transport(name)


def test_a_file_beside_the_transport_hides_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import colorsys\nclass Mine:\n    begin = send = end = tensors = version = colorsys.rgb_to_hsv\n"
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    (tmp_path / "colorsys.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert load_transport("mine:Mine").__name__ == "Mine"


def test_buckets_are_never_empty() -> None:
    assert split_evenly({"a": 9, "b": 1, "c": 1}, 4) == [["a"], ["b"], ["c"]]
    assert split_evenly({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}, 3) == [["a", "b"], ["c", "d"], ["e", "f"]]
    for sizes in ([100, 1, 1, 1, 1], [1, 1, 1, 1, 100], [1] * 17, [5, 5]):
        groups = split_evenly({str(place): size for place, size in enumerate(sizes)}, 4)
        assert [name for group in groups for name in group] == [str(place) for place in range(len(sizes))]
        assert all(groups)
        assert len(groups) == min(4, len(sizes))


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckptcheck", "conformance", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_example_of_the_page_is_what_the_command_prints(tmp_path: Path) -> None:
    text = re.search(r"```python\n(import torch.+?)```", PAGE, re.DOTALL)
    command = "ckptcheck conformance --transport my_transport:MyTransport"
    shown = re.search(rf"\$ {command}\n(.+?)```\n\n## A job", PAGE, re.DOTALL)
    assert text
    assert shown
    (tmp_path / "my_transport.py").write_text(text[1], encoding="utf-8")
    result = run_command(tmp_path, "--transport", "my_transport:MyTransport")
    assert result.returncode == 0
    printed = re.sub(r" +\n", "\n", result.stdout)
    for part in filter(None, shown[1].split("…\n")):  # the page shows some of the lines
        before, found, printed = printed.partition(part)
        assert found == part, before


def test_json_markdown_and_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((DOUBLES / "sample_transports.py").read_text(encoding="utf-8"))
    result = run_command(tmp_path, "--transport", "mine:Careless", "--format", "json", "--markdown", "table.md")
    assert result.returncode == 0
    (section,) = json.loads(result.stdout)["sections"]
    assert section["columns"] == ["fault", "where", "answer", "what was seen", "brought back by"]
    table = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert f"| {' | '.join(section['columns'])} |" in table
    assert len([line for line in table if line.startswith("| ")]) == len(section["rows"]) + 2
    assert run_command(tmp_path, "--transport", "mine:Careless", "--fail-on", "warning").returncode == 1
    assert run_command(tmp_path, "--transport", "mine:Nameless").returncode == 1
    assert run_command(tmp_path, "--transport", "mine:Forgetful").returncode == 1
    assert run_command(tmp_path, "--transport", "mine:Absent").returncode == 2
    assert run_command(tmp_path).returncode == 2
    refused = run_command(tmp_path, "--transport", "mine:Careless", "--engine", "vllm")
    assert refused.returncode == 2
    assert "--engine has no effect with a transport of your own" in refused.stderr


def test_a_jobs_own_push_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from ckptcheck.watch import module, try_transport

    def make() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))

    engine, trainer = make(), make()

    def push(pairs: Iterable[tuple[str, Any]]) -> None:
        held = dict(engine.named_parameters())
        with torch.no_grad():
            for name, tensor in pairs:
                held[name].copy_(tensor)

    report = try_transport(push, module(engine), dict(trainer.named_parameters()))
    assert {finding.code for finding in report.findings} == {"REF057"}
    for name, tensor in trainer.named_parameters():
        assert torch.equal(tensor, dict(engine.named_parameters())[name])

    def push_whole(pairs: Iterable[tuple[str, Any]]) -> None:
        received = dict(pairs)
        if received.keys() != dict(engine.named_parameters()).keys():
            raise ValueError("not all came")
        engine.load_state_dict(received)

    report = try_transport(push_whole, module(engine), dict(trainer.named_parameters()))
    accepted = {finding.key for finding in report.findings if finding.severity == "warning"}
    assert accepted == {"stale-duplicate"}  # a dict keeps the last of two

"""A host outlives whatever its far side does, and leaves nothing of it behind."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.process import deadlines
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.process.process import WORKER_FOLDER
from ckptcheck.live.runtime.worker.ckptcheck_worker import wire
from tests.factories import hostile_folder
from tests.factories.checkpoint_cases import ROOT
from tests.paths import DOUBLES

RPC_METHODS = DOUBLES / "misbehaving.py"
PYTHON = Path(sys.executable)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and PR_SET_CHILD_SUBREAPER")


@pytest.fixture
def host() -> Iterator[WorkerClient]:
    with WorkerClient(PYTHON, RPC_METHODS) as running:
        yield running


def gone(process: int) -> bool:
    """Whether a process is no more; a zombie is gone as well."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def test_verbs_are_functions_with_a_memory(host: WorkerClient) -> None:
    assert "echo" in host.methods
    assert host.python_version == sys.version.split()[0]
    assert [host.call("count"), host.call("count")] == [1, 2]


@pytest.mark.parametrize(
    "value", [None, 1.5, -0.0, "zwölf 🙂 \ud800 \n", [1, [2]], {"a": {"b": []}}, float("inf")], ids=repr
)
def test_values_come_back_as_they_were(host: WorkerClient, value: object) -> None:
    assert repr(host.call("echo", value=value)) == repr(value)


def test_a_huge_message_goes_both_ways(host: WorkerClient) -> None:
    value = "ü" * 20_000_000
    assert host.call("echo", value=value) == value


def test_two_hosts_answer_side_by_side(host: WorkerClient) -> None:
    with WorkerClient(PYTHON, RPC_METHODS, name="other") as other:
        assert (host.call("count"), other.call("count")) == (1, 1)
        host.close()
        assert other.call("count") == 2


def test_what_is_printed_is_neither_an_answer_nor_lost(host: WorkerClient, capfd: pytest.CaptureFixture[str]) -> None:
    assert host.call("talk", text="zwölf 🙂 \ud800") is None
    assert host.read_log_tail() == ("zwölf 🙂 \\ud800", "zwölf 🙂 \\ud800", "raw \ufffd bytes", "a child speaks")
    assert capfd.readouterr() == ("", "")


def test_an_error_of_a_verb_is_told_and_survived(host: WorkerClient) -> None:
    with pytest.raises(RemoteError) as caught:
        host.call("boom", message="no such layer\nin line 2")
    error = caught.value
    assert error.message == "misbehaving could not boom: ValueError: no such layer"
    assert (error.exception_type, error.remote_message) == ("ValueError", "no such layer\nin line 2")
    assert "raise ValueError(message)\nValueError: no such layer\nin line 2\n" in error.remote_traceback
    for verb, arguments, kind in [
        ("leave", {"code": 3}, "SystemExit"),
        ("unsayable", {}, "TypeError"),
        ("echo", {"wrong": 1}, "TypeError"),
        ("absent", {}, "LookupError"),
    ]:
        with pytest.raises(RemoteError) as caught:
            host.call(verb, **arguments)
        assert caught.value.exception_type == kind
    assert host.call("count") == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "1 validation error for ModelConfig\n  Value error, User-specified max_model_len (512) is too much. To allow\nit,"
            " set it. [type=value_error, input_value=ArgsKwargs((), {'m': 1}), input_type=ArgsKwargs]\n    For further"
            " information visit https://errors.pydantic.dev/2.13/v/value_error",
            "User-specified max_model_len (512) is too much. To allow it, set it.",
        ),
        (
            "2 validation errors for ParallelConfig\ntensor_parallel_size\n  Input should be a valid integer [type=int_parsing,"
            " input_value='x', input_type=str]\nrank\n  Field required [type=missing]",
            "tensor_parallel_size: Input should be a valid integer",
        ),
        ("1 validation error for C\nname", "name"),
        ("1 validation error for C", "1 validation error for C"),
        ("no such layer\n  of 3 [type=x]", "no such layer"),
        (" \n", "it did not say why"),
    ],
)
def test_the_reason_of_an_error_is_not_the_line_that_counts_them(said: str, reason: str) -> None:
    error = RemoteError("vllm", "start", "ValidationError", said, "")
    assert error.message == f"vllm could not start: ValidationError: {reason}"
    assert error.remote_message == said


def test_what_json_cannot_say_is_not_sent(host: WorkerClient) -> None:
    with pytest.raises(TypeError):
        host.call("echo", value=b"bytes")
    assert host.call("count") == 1


@pytest.mark.parametrize(
    ("verb", "arguments", "ending", "word"),
    [
        ("vanish", {"code": 0}, "exit code 0", "out of memory: cannot allocate"),
        ("vanish", {"code": 7}, "exit code 7", "out of memory: cannot allocate"),
        ("shoot", {"number": signal.SIGKILL}, "SIGKILL: out of memory, or killed by somebody", "about to be shot"),
        ("shoot", {"number": signal.SIGTERM}, "SIGTERM", "about to be shot"),
        ("crash", {}, "SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("kill_group", {}, "SIGKILL: out of memory, or killed by somebody", None),
        ("fork_and_vanish", {}, "exit code 3", "the child is"),
        pytest.param("kill_the_family", {}, "SIGKILL: out of memory, or killed by somebody", None, marks=linux),
        ("kill_the_parent", {}, "SIGKILL: out of memory, or killed by somebody", None),
    ],
)
def test_its_death_is_an_error_with_its_last_words(
    verb: str, arguments: dict[str, int], ending: str, word: str | None
) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        with WorkerClient(PYTHON, RPC_METHODS) as host:
            children = host.call("start_children")
            with pytest.raises(WorkerDied) as caught:
                host.call(verb, **arguments)
        assert caught.value.message == f"misbehaving died ({ending}) when asked to {verb.replace('_', ' ')}"
        assert not isinstance(caught.value, WorkerTimeout)
        if word is None:
            assert caught.value.log_tail == ()
        else:
            assert any(line.startswith(word) for line in caught.value.log_tail)
        with pytest.raises(WorkerDied, match="misbehaving is closed"):
            host.call("count")
        assert bystander.poll() is None
        if verb != "kill_the_parent":  # nobody is left who could find the orphans
            assert [child for child in children if not gone(child)] == []
    finally:
        bystander.kill()
        bystander.wait()
        for child in children:
            if not gone(child):
                os.kill(child, signal.SIGKILL)


def test_the_line_that_names_the_error_is_the_one_to_quote() -> None:
    words = ("Traceback:", "AssertionError: shape (1,) is not (64,)", "py-spy: not found")
    assert WorkerDied("it died", words).hint == "its last output: AssertionError: shape (1,) is not (64,)"
    assert WorkerDied("it died", ("so be it", "farewell")).hint == "its last output: farewell"
    assert WorkerDied("it died").hint is None


@pytest.mark.parametrize("verb", ["hang_here", "hang_deaf"])
def test_a_hang_is_ended_and_says_where(verb: str) -> None:
    with WorkerClient(PYTHON, RPC_METHODS) as host:
        with pytest.raises(WorkerTimeout) as caught:
            host.call(verb, timeout=0.5)
        assert (
            caught.value.message
            == f"misbehaving did not answer in time when asked to {verb.replace('_', ' ')}, and was ended"
        )
        assert any("in hang_here" in line for line in caught.value.log_tail)
        assert (caught.value.hint or "").startswith("it was in hang_here (misbehaving.py, line ")


def test_all_that_is_asked_in_a_block_has_its_time_together() -> None:
    with WorkerClient(PYTHON, RPC_METHODS) as host, deadlines.time_budget(600), deadlines.time_budget(0.5):
        assert host.call("count", timeout=900) == 1
        with pytest.raises(WorkerTimeout):
            host.call("hang_here", timeout=900)
    with pytest.raises(WorkerTimeout, match="did not answer in time when asked to start"), deadlines.time_budget(0.01):
        WorkerClient(PYTHON, RPC_METHODS)
    assert deadlines.compute_deadline() is None
    assert (deadlines.default_timeout(7), deadlines.remaining_seconds(7) > 6) == (7, True)
    with deadlines.time_budget(None):
        assert deadlines.default_timeout(7) == 7
    with deadlines.time_budget(3):
        assert deadlines.default_timeout(7) is None
        assert deadlines.remaining_seconds(7) <= 3


def test_one_that_is_at_work_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    with WorkerClient(PYTHON, RPC_METHODS) as host:
        close = host._process.close
        monkeypatch.setattr(host._process, "close", lambda grace: (given.append(grace), close(grace)))
        threading.Timer(0.5, host.close).start()
        with pytest.raises(WorkerDied, match="when asked to hang here"):
            host.call("hang_here")
    assert given == [0]


def test_what_it_leaves_among_the_temporary_files_goes_with_it(host: WorkerClient) -> None:
    assert host.call("where")["environment"]["TMPDIR"].startswith(str(host.folder))


def test_one_that_stopped_entirely_is_ended() -> None:
    with WorkerClient(PYTHON, RPC_METHODS) as host, pytest.raises(WorkerTimeout):
        host.call("stop", timeout=0.5)


def test_one_that_does_not_listen_to_a_huge_message_is_ended() -> None:
    with WorkerClient(PYTHON, RPC_METHODS) as host:
        os.kill(host._process.pid or 0, signal.SIGSTOP)
        with pytest.raises(WorkerTimeout):
            host.call("echo", value="x" * 50_000_000, timeout=1)


def test_one_that_closes_the_wire_is_dead_to_us() -> None:
    with WorkerClient(PYTHON, RPC_METHODS) as host, pytest.raises(WorkerDied, match="when asked to close the wire"):
        host.call("close_the_wire")


@linux
def test_close_ends_all_that_it_started(tmp_path: Path) -> None:
    with WorkerClient(PYTHON, RPC_METHODS) as host:
        children = host.call("start_children", hold_the_socket=True)
        folder = host.folder
        host.call("at_exit", path=str(tmp_path / "cleaned up"), linger=True)
    assert [child for child in children if not gone(child)] == []
    assert not folder.exists()
    assert (tmp_path / "cleaned up").exists()
    host.close()


@linux
def test_shared_memory_is_given_back_by_who_dies() -> None:
    with WorkerClient(PYTHON, RPC_METHODS) as host:
        block = Path("/dev/shm", host.call("share_memory"))
        assert block.exists()
        with pytest.raises(WorkerDied):
            host.call("vanish", code=1)
        assert not block.exists()


@linux
def test_an_interrupted_call_ends_the_process() -> None:
    # a shell's background job has SIGINT ignored, and Python then leaves it so
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with WorkerClient(PYTHON, RPC_METHODS) as host:
        children = host.call("start_children")
        with pytest.raises(KeyboardInterrupt):
            host.call("interrupt", process=os.getpid())
        signal.signal(signal.SIGINT, before)
        assert [child for child in children if not gone(child)] == []


@linux
def test_it_does_not_outlive_us(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.process.client import WorkerClient
exchange = TensorExchange("memory")
host = WorkerClient(Path(sys.executable), Path({str(RPC_METHODS)!r}), scratch=[exchange.folder])
print(host.folder, exchange.folder, host._process.pid, *host.call("start_children"), flush=True)
host.call("hang_deaf")
"""
    us = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert us.stdout is not None
    folder, tensors, *processes = us.stdout.readline().split()
    us.kill()
    us.wait()
    us.stdout.close()
    wait_until(lambda: all(gone(int(process)) for process in processes))
    wait_until(lambda: not Path(folder).exists() and not Path(tensors).exists())


def wait_until(done: object) -> None:
    """Poll; the supervisor gives them three seconds before it kills."""
    assert callable(done)
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_imports_do_not_look_for_garbage() -> None:
    with WorkerClient(PYTHON, RPC_METHODS) as host:
        assert host.call("prepare") is False
        assert host.call("collects") == [True, True]


def test_the_far_side_sees_none_of_our_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.py").write_text("")
    marks = hostile_folder.fill(tmp_path)
    with WorkerClient(PYTHON, RPC_METHODS, env={"ADDED": "1", "HOME": None}) as host:
        seen = host.call("where")
        assert (seen["path"][0], seen["path"][-1]) == (str(WORKER_FOLDER), str(RPC_METHODS.parent))
        assert str(tmp_path) not in seen["path"]
        assert seen["modules"] == []
        assert seen["environment"]["ADDED"] == "1"
        assert not {"HOME", "VIRTUAL_ENV"} & set(seen["environment"])
        assert Path(seen["cwd"]).parent == host.folder
        assert seen["session"] not in (os.getsid(0), seen["parent"])
        assert seen["parent"] != os.getpid()
        assert seen["stdin"] == ""
        with pytest.raises(RemoteError, match="No module named 'ours'"):
            host.call("find", module="ours")
        assert host.call("spawn") == "from a spawned child"
        host.call("talk", text="with a child")
    assert hostile_folder.read_marks(marks) == {}


def test_a_bare_environment_is_enough(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    with WorkerClient(tmp_path / "bare/bin/python", "ckptcheck_worker.env_report") as host:
        assert host.call("versions", packages=["msgspec", "torch"]) == {"msgspec": None, "torch": None}
        assert host.call("imported", module="json")["version"] == "2.0.9"
        with pytest.raises(RemoteError, match="No module named 'msgspec'"):
            host.call("imported", module="msgspec")


def test_spawned_children_find_the_verbs(host: WorkerClient) -> None:
    assert host.call("spawn") == "from a spawned child"


def test_the_log_is_kept_where_asked(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with WorkerClient(PYTHON, RPC_METHODS, log=log) as host:
        host.call("talk", text="kept")
    assert log.read_bytes().startswith(b"kept\n")


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import json\nimport not_there\n")
    with pytest.raises(RemoteError, match="broken could not start: ModuleNotFoundError: No module named 'not_there'"):
        WorkerClient(PYTHON, broken)
    other = tmp_path / "json.py"
    other.write_text("RPC_METHODS = {}\n")
    with pytest.raises(
        RemoteError,
        match=r"json could not start: ImportError: this Python already has a module json at .*: rename .*json\.py",
    ):
        WorkerClient(PYTHON, other)
    leaves = tmp_path / "leaves.py"
    leaves.write_text("import os\nprint('never mind', flush=True)\nos._exit(5)\n")
    with pytest.raises(WorkerDied, match=r"leaves died \(exit code 5\) when asked to start") as caught:
        WorkerClient(PYTHON, leaves)
    assert caught.value.log_tail == ("never mind",)
    sleeps = tmp_path / "sleeps.py"
    sleeps.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(WorkerTimeout, match="sleeps did not answer in time when asked to start"):
        WorkerClient(PYTHON, sleeps, start_timeout=1)
    with pytest.raises(CkptcheckError, match=r"cannot run .*no-python: No such file or directory"):
        WorkerClient(tmp_path / "no-python", RPC_METHODS)
    with pytest.raises(WorkerDied, match=r"env_report died \(exit code 1\) when asked to start"):
        WorkerClient(Path("/bin/false"), "ckptcheck_worker.env_report")


def test_the_wire_refuses_noise() -> None:
    message = {"id": 1, "result": [1.5, "ü"]}
    data = wire.encode(message) * 2
    decoder = wire.FrameDecoder()
    assert [found for byte in data for found in decoder.feed(bytes([byte]))] == [message, message]
    for noise in (b"Traceback (most recent call last)", wire.LENGTH.pack(2) + b"no", wire.LENGTH.pack(1) + b"1"):
        with pytest.raises(ValueError):  # noqa: PT011
            wire.FrameDecoder().feed(noise)


def test_nonsense_on_the_wire_ends_the_host(tmp_path: Path) -> None:
    noisy = tmp_path / "noisy.py"
    noisy.write_text(
        "import os, stat\n"
        "def noise():\n"
        "    for fd in range(3, 4096):\n"
        "        try:\n"
        "            if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, b'INFO 11-21 engine.py: started\\n')\n"
        "        except OSError: pass\n"
        "RPC_METHODS = {'noise': noise}\n"
    )
    with WorkerClient(PYTHON, noisy) as host, pytest.raises(WorkerDied, match="noisy sent a malformed answer to noise"):
        host.call("noise")


@pytest.mark.slow
def test_tensors_pass_between_far_sides() -> None:
    pytest.importorskip("torch")
    rows = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    with WorkerClient(PYTHON, RPC_METHODS) as trainer, WorkerClient(PYTHON, RPC_METHODS) as engine:
        for medium in ("file", "memory") if Path("/dev/shm").is_dir() else ("file",):
            with TensorExchange(medium) as exchange:
                folder = exchange.folder
                assert folder.stat().st_mode & 0o777 == 0o700
                for dtype, size in (("bfloat16", 2), ("float8_e4m3fn", 1)):
                    address = exchange.address(dtype)
                    parcel = trainer.call("put", address=address, dtype=dtype)
                    assert parcel == {**address, "tensors": 4, "bytes": (12 + 12 + 12 + 8) * size}
                    found = engine.call("get", file=parcel)
                    assert found["weight"] == found["tied"] == [f"torch.{dtype}", rows]
                    assert found["turned"][1] == [list(column) for column in zip(*rows, strict=True)]
                    assert found["rows"][1] == rows[1:]
                assert sorted(path.name for path in folder.iterdir()) == [
                    "bfloat16.safetensors",
                    "float8_e4m3fn.safetensors",
                ]
                with pytest.raises(RemoteError, match="holds 4 tensors, but 5 were written"):
                    engine.call("get", file=parcel | {"tensors": 5})
            assert not folder.exists()
        with pytest.raises(
            RemoteError, match="tensors are not written to files over nccl; only file and memory are files"
        ):
            trainer.call("put", address={"kind": "nccl"}, dtype="bfloat16")


def test_an_exchange_takes_the_medium_that_has_room() -> None:
    with TensorExchange(need=1 << 10) as exchange:
        assert exchange.medium == ("memory" if Path("/dev/shm").is_dir() else "file")
    with pytest.raises(
        CkptcheckError, match=r"has room for [0-9,]+ bytes, and 1,152,921,504,606,846,976 bytes of tensors"
    ):
        TensorExchange(need=1 << 60)


def test_the_far_side_runs_on_an_old_python() -> None:
    files = sorted((WORKER_FOLDER / "ckptcheck_worker").glob("*.py"))
    assert len(files) >= 5
    for file in files:
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))

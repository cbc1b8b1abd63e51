"""Files are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.text import file_io
from ckptcheck.text.file_io import (
    expand_home,
    open_for_replace,
    path_exists,
    replace_file,
    require_distinct_outputs,
    require_output_apart,
    require_writable,
)


def test_a_file_keeps_its_permissions_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["index.json"]


def test_what_fails_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    path.write_bytes(b"old")

    def write_half() -> None:
        with open_for_replace(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["index.json"]


def test_a_stream_of_the_process_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """Where a shell has redirected it, /dev/stdout leads to a regular file, and a rename would take its place for everybody."""
    stream, target = tmp_path / "stdout", tmp_path / "redirected"
    stream.symlink_to("/proc/self/fd/1")
    program = (
        "import sys; from pathlib import Path; from ckptcheck.text.file_io import replace_file, require_writable\n"
        "require_writable(Path(sys.argv[1])); replace_file(Path(sys.argv[1]), b'text')"
    )
    with target.open("wb") as file:
        subprocess.run([sys.executable, "-c", program, str(stream)], stdout=file, check=True)
    assert stream.is_symlink()
    assert target.read_bytes() == b"text"


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError, match=r"cannot write .*nowhere/x: No such file or directory"):
        replace_file(tmp_path / "nowhere/x", b"")
    with pytest.raises(CkptcheckError, match="it is a folder"):
        require_writable(tmp_path)


def test_an_output_is_neither_an_input_nor_another_output(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "report.json").touch()
    with pytest.raises(CkptcheckError, match="is what the command reads"):
        require_output_apart(tmp_path / "model.safetensors", tmp_path)
    require_output_apart(tmp_path / "report.json", None, tmp_path / "gone")
    with pytest.raises(CkptcheckError, match="--stats and -o would both write"):
        require_distinct_outputs({"--stats": tmp_path / "a", "-o": tmp_path / "b/../a", "--x": None})


def test_a_home_that_nobody_has_stays_as_it_is() -> None:
    assert expand_home("~nobody-of-that-name/x") == "~nobody-of-that-name/x"
    assert expand_home("a\0b") == "a\0b"


def test_what_cannot_be_known_is_not_absent(tmp_path: Path) -> None:
    """`Path.exists` says no to all of these since Python 3.14."""
    (tmp_path / "loop").symlink_to("loop")
    assert path_exists(tmp_path)
    assert not path_exists(tmp_path / "nowhere" / "at" / "all")
    assert not path_exists(tmp_path / "a\0b")
    for name in ("loop", "a" * 5000):
        with pytest.raises(OSError, match=r"Too many levels|File name too long"):
            path_exists(tmp_path / name)


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_stream_of_the_process_is_written_on_where_it_stands(tmp_path: Path, path: str) -> None:
    """A log that the shell appends to keeps what it has, and what is printed before and after lands around it."""
    log = tmp_path / "log"
    log.write_text("before, ")
    program = (
        "import sys; from pathlib import Path; from ckptcheck.text.file_io import replace_file\n"
        f"print('first', end=', '); replace_file(Path({path!r}), b'written, '); print('last')"
    )
    subprocess.run(["sh", "-c", '"$0" -c "$1" >> "$2"', sys.executable, program, str(log)], check=True)
    assert log.read_text() == "before, first, written, last\n"


def test_a_file_that_would_wait_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``/proc/kmsg`` calls itself a regular file, and a read of it waits for the next message of the kernel."""
    readable, written = os.pipe()
    os.set_blocking(readable, False)
    monkeypatch.setattr(file_io, "open_regular_file", lambda path: readable)
    with pytest.raises(OSError, match="it has nothing to read now"):
        file_io.read_regular_file(tmp_path / "kmsg", 100)
    os.close(written)

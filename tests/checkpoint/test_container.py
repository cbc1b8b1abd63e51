"""What the cases of the container rules cannot show: races, refusals of the system, traps, links, lone findings."""

from __future__ import annotations

import os
import socket
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ckptcheck.checkpoint import header
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.source import File, Folder
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from tests.factories.checkpoint_cases import CHECKPOINTS, Case, build_checkpoint, format_finding, load_cases
from tests.fuzz import check_scan

RULES = rule_loader.load_rules()
CONTAINER = [rule for rule in RULES if rule.code.startswith("ST")]
TINY = CHECKPOINTS / "tiny-llama"
WEIGHTS = (TINY / "model.safetensors").read_bytes()


class Played:
    """A source whose files do what a test wants when they are read."""

    target = "played"
    local = None
    allows_sampling = False

    def __init__(self, sizes: Mapping[str, int], read: Callable[[str, int, int], bytes]) -> None:
        self.files = {name: File(name, size) for name, size in sizes.items()}
        self.read = read


def only(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, format_finding(finding)) for finding in report.findings]


def refuse(error: OSError) -> Callable[[str, int, int], bytes]:
    def read(name: str, start: int, length: int) -> bytes:
        raise error

    return read


GONE = "model.safetensors: the file disappeared while it was being read"
CHANGED = "model.safetensors: the file changed while it was being read: it had {} when it was listed"


@pytest.mark.parametrize(
    ("size", "read", "message"),
    [
        (10936, refuse(FileNotFoundError(2, "No such file")), GONE),
        (10936, lambda name, start, length: b"", CHANGED.format("10,936 bytes")),
        (10936, lambda name, start, length: WEIGHTS[:5000], CHANGED.format("10,936 bytes")),
        (10936, lambda name, start, length: WEIGHTS + b"more", CHANGED.format("10,936 bytes")),
        (0, lambda name, start, length: WEIGHTS, CHANGED.format("0 bytes")),
    ],
    ids=["gone", "emptied", "shorter", "longer", "filled"],
)
def test_a_shard_that_disappears_or_changes_while_it_is_read(
    size: int, read: Callable[[str, int, int], bytes], message: str
) -> None:
    report = run_rules(Checkpoint(Played({"model.safetensors": size}, read)), CONTAINER)
    assert only(report) == [("ST001", message)]
    assert report.verdict == "findings"


@pytest.mark.parametrize("then", ["gone", "shorter"])
def test_a_shard_that_disappears_or_shrinks_between_two_reads(then: str) -> None:
    long = (header.FIRST_READ * 2).to_bytes(8, "little") + b"{" + b" " * header.FIRST_READ * 2

    def read(name: str, start: int, length: int) -> bytes:
        if length > header.FIRST_READ:
            if then == "gone":
                raise FileNotFoundError
            return long[start : header.FIRST_READ + 1]
        return long[start : start + length]

    report = run_rules(Checkpoint(Played({"model.safetensors": len(long)}, read)), CONTAINER)
    assert [finding.code for finding in report.findings] == ["ST001"]


def test_a_shard_deleted_after_the_folder_was_listed(tmp_path: Path) -> None:
    folder = build_checkpoint({"base": "tiny-llama-sharded"}, tmp_path / "ckpt")
    ckpt = open_checkpoint(str(folder))
    (folder / "model-00002-of-00003.safetensors").unlink()
    report = run_rules(ckpt, RULES)
    assert not report.crashed
    gone = "model-00002-of-00003.safetensors: the file disappeared while it was being read"
    assert only(report) == [("ST001", gone)]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_without_permission_the_verdict_is_incomplete(name: str) -> None:
    folder = Folder(TINY, "played")

    def read(asked: str, start: int, length: int) -> bytes:
        if asked == name:
            raise PermissionError(13, "Permission denied")
        return folder.read(asked, start, length)

    report = run_rules(Checkpoint(Played({name: file.size for name, file in folder.files.items()}, read)), RULES)
    assert report.verdict == "incomplete"
    assert report.exit_code("never") == 2
    assert report.passed == ()
    assert {error for _, error in report.crashed} == {f"could not read {name}: Permission denied"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_on_disk(tmp_path: Path) -> None:
    folder = build_checkpoint({"base": "tiny-llama"}, tmp_path / "ckpt")
    (folder / "model.safetensors").chmod(0)
    assert run_rules(open_checkpoint(str(folder)), CONTAINER).verdict == "incomplete"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_sockets_and_folders_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build_checkpoint({"base": "tiny-llama"}, tmp_path / "ckpt")
    os.mkfifo(folder / "a.safetensors")  # opening it would wait for a writer for ever
    monkeypatch.chdir(folder)  # the path of a socket may have some 100 characters only
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("b.safetensors")
        (folder / "c.safetensors").mkdir()
        (folder / "d.safetensors").symlink_to("a.safetensors")
        ckpt = open_checkpoint(str(folder))
        assert set(ckpt.files) == {"config.json", "model.safetensors"}
        assert only(run_rules(ckpt, CONTAINER)) == []


def sparse(path: Path, length: int, size: int, start: bytes) -> None:
    with path.open("wb") as file:
        file.write(length.to_bytes(8, "little") + start)
        file.truncate(size)


def peak(folder: Path) -> tuple[Report, int]:
    tracemalloc.start()
    try:
        report = run_rules(open_checkpoint(str(folder)), CONTAINER)
        return report, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("length", "start", "message"),
    [
        (99_999_992, b"", "the header is not a JSON object: it begins with "),
        (99_999_993, b"{", "the file ends after 100,000,000 bytes, inside its header, which has 99,999,993"),
        (2**62, b"{", "the header has 4,611,686,018,427,387,904 bytes"),
        (2**64 - 1, b"", "this is not a safetensors file: "),
    ],
)
def test_a_length_that_leads_to_nothing_is_not_followed(
    length: int, start: bytes, message: str, tmp_path: Path
) -> None:
    sparse(tmp_path / "model.safetensors", length, 100_000_000, start)
    report, memory = peak(tmp_path)
    assert [finding.message.startswith(message) for finding in report.findings] == [True]
    assert memory < 5_000_000


def test_a_long_header_of_zeros_takes_memory_for_itself_only(tmp_path: Path) -> None:
    sparse(tmp_path / "model.safetensors", 49_999_992, 50_000_000, b"{")
    report, memory = peak(tmp_path)
    assert [finding.message.startswith("the header cannot be read") for finding in report.findings] == [True]
    assert memory < 4 * 50_000_000


def test_a_long_header_that_is_legal_but_a_trap_is_not_examined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(header, "MAX_UNUSUAL", 1000)
    text = b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    report = run_rules(open_checkpoint(str(tmp_path)), CONTAINER)
    assert report.verdict == "incomplete"
    assert "too long to be examined entry by entry" in report.crashed[0][1]


def test_what_a_hostile_header_says_does_not_fill_the_report(tmp_path: Path) -> None:
    long = "x" * 200_000
    entries = [
        f'"{long}":{{"dtype":"{long}","shape":[{",".join(["1"] * 50_000)}],"data_offsets":[0,1]}}',
        f'"b":{{"dtype":"U8","shape":[{",".join(["1"] * 50_000)}],"data_offsets":[7,9]}}',
        '"c":{"dtype":"U8","shape":[1],"data_offsets":[11,12]}',
    ]
    text = ("{" + ",".join(entries) + "}").encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    report = run_rules(open_checkpoint(str(tmp_path)), CONTAINER)
    for words in ("knows no dtype", "belong to no tensor", "its data takes 2 bytes"):
        assert sum(words in finding.message for finding in report.findings) == 1
    assert all(len(finding.message) < 500 for finding in report.findings)


def test_a_snapshot_of_the_hugging_face_cache_is_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--org--tiny/blobs", tmp_path / "models--org--tiny/snapshots/0123abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted((CHECKPOINTS / "tiny-llama-sharded").iterdir())):
        (blobs / str(number)).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    report = run_rules(open_checkpoint(str(snapshot)), RULES)
    assert only(report) == []
    assert report.verdict == "clean"
    assert report.counts["tensors"] == 30


def test_a_snapshot_whose_blob_is_gone(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots/0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/0")
    report = run_rules(open_checkpoint(str(snapshot)), CONTAINER)
    text = "model.safetensors: it is only a link, to a file that does not exist, and was not followed"
    assert only(report) == [("ST022", text)]


def test_a_link_out_of_the_folder_is_never_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("version https://git-lfs")
    folder = build_checkpoint(
        {"base": "tiny-llama", "link": {"merges.txt": str(secret), "model.safetensors": "../x"}}, tmp_path / "c"
    )
    report = run_rules(open_checkpoint(str(folder)), CONTAINER)
    assert [(finding.code, finding.file) for finding in report.findings] == [
        ("ST022", "merges.txt"),
        ("ST022", "model.safetensors"),
    ]


def test_a_circle_of_links(tmp_path: Path) -> None:
    folder = build_checkpoint(
        {"base": "tiny-llama", "link": {"a.json": "b.json", "b.json": "a.json"}}, tmp_path / "ckpt"
    )
    report = run_rules(open_checkpoint(str(folder)), CONTAINER)
    assert [(finding.code, finding.file) for finding in report.findings] == [("ST022", "a.json"), ("ST022", "b.json")]


@pytest.mark.parametrize("base", ["tiny-llama", "tiny-llama-sharded"])
def test_a_tensor_whose_entry_cannot_be_understood_is_not_missing(base: str, tmp_path: Path) -> None:
    """Its name is in the header; what rules about the model would say of it is not known."""
    folder = build_checkpoint({"base": base}, tmp_path / "ckpt")
    path = sorted(folder.glob("*.safetensors"))[0]
    raw = path.read_bytes()
    assert raw.count(b'"lm_head.weight":{"dtype":"F32"') == 1
    path.write_bytes(raw.replace(b'"lm_head.weight":{"dtype":"F32"', b'"lm_head.weight":{"dtype":12345'))
    report = run_rules(open_checkpoint(str(folder)), RULES)
    assert only(report) == [("ST001", f"{path.name} lm_head.weight: its dtype is not a string")]


CASES = [
    case for case in load_cases() if case.rule.code.startswith("ST") and case.kind == "bad" and "base" in case.table
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_defect_is_one_finding(case: Case, tmp_path: Path) -> None:
    """No other container rule has something to say about what one of them found."""
    report = run_rules(open_checkpoint(str(build_checkpoint(case.table, tmp_path / "ckpt"))), CONTAINER)
    assert not report.crashed
    assert {finding.code for finding in report.findings} == {case.rule.code}


WHOLE = {"truncate", "append", "patch", "link"}
"""What a case does to a file and leaves the rest of the checkpoint as it was."""


@pytest.mark.parametrize("case", [case for case in CASES if case.table.keys() & WHOLE], ids=str)
def test_a_damaged_file_is_one_finding_among_all_rules(case: Case, tmp_path: Path) -> None:
    """Rules about the model must not take for missing what could not be read."""
    report = run_rules(open_checkpoint(str(build_checkpoint(case.table, tmp_path / "ckpt"))), RULES)
    assert not report.crashed
    assert {finding.code for finding in report.findings} == {case.rule.code}


@pytest.mark.parametrize(
    "name",
    [
        b"model-\xff.safetensors",
        b"a\nb.safetensors",
        b"\x1b[31m.safetensors",
        b"\xe2\x80\xae.safetensors",
        b"-.safetensors",
    ],
)
def test_a_file_name_of_any_bytes(name: bytes, tmp_path: Path) -> None:
    """It may be no UTF-8, or move the cursor: every report can be written all the same."""
    try:
        (tmp_path / os.fsdecode(name)).write_bytes(WEIGHTS[:-1])
    except (OSError, ValueError):
        pytest.skip("this file system does not take such a name")
    report = check_scan(tmp_path)
    assert report is not None
    assert [finding.code for finding in report.findings if finding.code.startswith("ST")] == ["ST001"]


def exchange_for_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def exchange_for_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("exchange", [exchange_for_link, exchange_for_pipe])
def test_a_file_that_is_exchanged_after_the_listing_is_not_read(
    tmp_path: Path, exchange: Callable[[Path], None]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    folder = Folder(tmp_path, "target")
    assert folder.read("config.json", 0, 10) == b"{}"
    exchange(tmp_path / "config.json")
    with pytest.raises(OSError, match=r"it (has become|is) a "):
        folder.read("config.json", 0, 10)


def test_a_link_that_is_turned_elsewhere_after_the_listing_is_read_where_it_led(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("a")
    (tmp_path / "b.json").write_text("b")
    (tmp_path / "config.json").symlink_to("a.json")
    folder = Folder(tmp_path, "target")
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("/etc/hostname")
    assert folder.read("config.json", 0, 10) == b"a"


def test_a_file_that_took_the_place_of_a_listed_one_is_not_read(tmp_path: Path) -> None:
    """A sound file put in place of a listed one is another checkpoint's; one that is written to, or moved, is the same."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"listed")
    folder = Folder(tmp_path, "x")
    (tmp_path / "new").write_bytes(b"listed too")
    os.replace(tmp_path / "new", tmp_path / "a")
    (tmp_path / "b").write_bytes(b"others")
    with pytest.raises(OSError, match="it was replaced by another file since it was listed"):
        folder.read("a", 0, 100)
    assert folder.read("b", 0, 100) == b"others"

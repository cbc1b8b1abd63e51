"""A store that lies: keys that lead out, lists that say too much, objects that are exchanged. Each is a report or one sentence."""

from __future__ import annotations

from xml.sax.saxutils import escape

import pytest

import ckptcheck
from ckptcheck.checkpoint.objects import find
from ckptcheck.checkpoint.targets import resolve_targets
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.reporters import render
from tests.doubles.object_server import ObjectServer
from tests.paths import FIXTURES

TARGET = "s3://models/runs/step_1"
SIZE = (FIXTURES / "checkpoints/tiny-llama/model.safetensors").stat().st_size


def list_objects(*entries: tuple[str, str, object], etag: str = "<ETag>x</ETag>") -> str:
    """Write a list: entries of key, ETag and size; etag: in place of those that are empty."""
    return "<ListBucketResult>" + "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-23T03:00:00.123Z</LastModified>"
        f"{f'<ETag>{tag}</ETag>' if tag else etag}<Size>{size}</Size></Contents>"
        for key, tag, size in entries
    ) + "</ListBucketResult>"  # fmt: skip


@pytest.mark.parametrize(
    "key",
    [
        "..",
        "../x.safetensors",
        "/x.safetensors",
        "//x",
        "a\nb.safetensors",
        "\x01[2Jx.safetensors",
        ".",
        "./x.safetensors",
    ],
)
def test_a_key_that_is_no_path_is_one_sentence(key: str, store: ObjectServer) -> None:
    store.buckets["models"][f"runs/step_1/{key}"] = b"x"
    with pytest.raises(EvidenceError, match="the request to s3://models failed"):
        ckptcheck.scan(TARGET)


@pytest.mark.parametrize(
    "name", ["::error::x.safetensors", "##[error]x.safetensors", "x" * 900 + ".safetensors", "é\u202e.safetensors", " .safetensors",
             "a\\b.safetensors", "a?b#c.safetensors", "%2e%2e.safetensors"],
)  # fmt: skip
def test_a_name_that_means_something_elsewhere_is_a_name(name: str, store: ObjectServer) -> None:
    objects = store.buckets["models"]
    objects[f"runs/step_1/{name}"] = objects["runs/step_1/model.safetensors"]
    report = ckptcheck.scan(TARGET)[0]
    assert report.counts["files"] == 2
    assert any("safetensors" in finding.message + str(finding.file) for finding in report.findings)
    for form in ("json", "html", "sarif", "junit", "github"):
        written = render(form, [report], ())
        assert "\u202e" not in written
        assert not any(line.lstrip().startswith(("::error::", "##[error]")) for line in written.splitlines())


LISTS = {
    "a size below zero": (list_objects(("runs/step_1/model.safetensors", "", -5)), "failed"),
    "a size that is none": (list_objects(("runs/step_1/model.safetensors", "", "x")), "failed"),
    "one object five times": (
        list_objects(*(("runs/step_1/model.safetensors", str(at), at) for at in range(5))), "lists an object twice",
    ),
    "an ETag of two lines": (list_objects(("runs/step_1/model.safetensors", "&#10;x: y", SIZE)), "an ETag that is none"),
    "an ETag beyond ASCII": (list_objects(("runs/step_1/model.safetensors", "é", SIZE)), "an ETag that is none"),
    "tags without end": ("<ListBucketResult>" * 50_000, "failed"),
    "an entity": (
        '<!DOCTYPE l [<!ENTITY a SYSTEM "file:///etc/passwd">]><ListBucketResult><Contents><Key>&a;</Key></Contents></ListBucketResult>',
        "failed",
    ),
    "a folder above": ("<ListBucketResult><CommonPrefixes><Prefix>../../x/</Prefix></CommonPrefixes></ListBucketResult>", "failed"),
    "no key": (list_objects(("", "", 1)), "holds no safetensors file"),
}  # fmt: skip


@pytest.mark.parametrize("what", LISTS)
def test_a_list_that_is_none_is_one_sentence(what: str, store: ObjectServer) -> None:
    answer, said = LISTS[what]
    store.answer_list = lambda _: answer
    with pytest.raises(CkptcheckError, match=said):
        ckptcheck.scan(TARGET)


@pytest.mark.parametrize(
    ("key", "size"),
    [
        ("elsewhere/model.safetensors", 10),
        ("runs/step_1/model.safetensors", 2**62),
        ("runs/step_1/model.safetensors", 2**63),
    ],
)
def test_an_object_that_is_not_what_was_listed_is_incomplete(key: str, size: int, store: ObjectServer) -> None:
    store.answer_list = lambda _: list_objects((key, "", size))
    assert ckptcheck.scan(TARGET).verdict == "incomplete"


def test_an_object_without_an_etag_is_known_by_its_time(store: ObjectServer) -> None:
    """A replaced object of the same size was read as if it were the one that was listed."""
    entry = ("runs/step_1/model.safetensors", "", SIZE)
    store.answer_list = lambda _: list_objects(entry, etag="")
    assert ckptcheck.scan(TARGET).counts["tensors"] > 0
    store.answer_list = lambda _: list_objects(entry, etag="").replace("2026-11-23T03:00:00", "2026-11-23T02:59:58")
    report = ckptcheck.scan(TARGET)
    assert (report.verdict, "it was replaced" in str(report.error)) == ("incomplete", True)


def list_one_more(prefix: str) -> str:
    return f"<ListBucketResult><CommonPrefixes><Prefix>{prefix}a/</Prefix></CommonPrefixes></ListBucketResult>"


def list_many_more(prefix: str) -> str:
    inner = "".join(f"<CommonPrefixes><Prefix>{prefix}{at}/</Prefix></CommonPrefixes>" for at in range(9))
    return f"<ListBucketResult>{inner}</ListBucketResult>"


def test_folders_without_end_have_one(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "MOST_FOLDERS", 80)
    store.answer_list = list_one_more
    with pytest.raises(EvidenceError, match="more than 64 levels of folders"):
        resolve_targets(["s3://models/runs"], recursive=True, log=print)
    store.answer_list = list_many_more
    with pytest.raises(EvidenceError, match="more than 80 folders"):
        resolve_targets(["s3://models/runs"], recursive=True, log=print)
    with pytest.raises(EvidenceError, match="more than 80 folders"):
        resolve_targets(["s3://models/*/*/*"], log=print)
    with pytest.raises(CkptcheckError):
        ckptcheck.scan(TARGET)

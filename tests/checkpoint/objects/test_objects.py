"""Checkpoints in object stores: real HTTP over the loopback interface, through the real obstore."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.header import FIRST_READ
from ckptcheck.checkpoint.objects import bucket_of_obstore as bucket
from ckptcheck.checkpoint.objects.address import parse_object_address
from ckptcheck.checkpoint.objects.folder import PIECE, ObjectTree
from ckptcheck.checkpoint.open import open_target
from ckptcheck.checkpoint.targets import resolve_targets
from ckptcheck.errors import CkptcheckError, EvidenceError
from tests.doubles.object_server import Kind, ObjectServer
from tests.paths import FIXTURES

TARGET = "s3://models/runs/step_1"
LLAMA = FIXTURES / "checkpoints" / "tiny-llama"


def form(report: ckptcheck.Report) -> dict[str, Any]:
    """The report without the name of its target."""
    return {key: value for key, value in report.to_dict().items() if key != "target"}


@pytest.mark.parametrize(
    ("kind", "name"), [("s3", "tiny-w4a16"), ("s3", "tiny-qwen3-moe"), ("gs", "tiny-llama"), ("az", "tiny-llama")]
)
def test_the_report_of_the_folder(store: ObjectServer, kind: Kind, name: str) -> None:
    store.push("models", FIXTURES / "checkpoints" / name, "copy")
    here = ckptcheck.scan(FIXTURES / "checkpoints" / name)
    assert here.passed
    assert form(ckptcheck.scan(f"{kind}://models/copy", values=True)) == form(here)


def test_headers_only_by_default(store: ObjectServer) -> None:
    report = ckptcheck.scan(TARGET)
    assert report.verdict == "clean"
    assert ("VAL001", "values in an object store are read only with --values") in report.skipped
    assert max(store.count_reads().values()) == 1


def test_the_index_says_how_long_headers_are(store: ObjectServer) -> None:
    """A longer header than the first read takes one request where there is an index; no byte comes twice where there is none."""
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    names = {f"model.layers.{at}.mlp.experts.{at}.gate_proj.weight": files[at % 2] for at in range(6000)}
    assert 3000 * 60 < FIRST_READ < 3000 * 130
    objects = store.buckets["models"]
    for shard in files:
        own = [name for name, holder in names.items() if holder == shard]
        entries = {
            name: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * at, 2 * at + 2]} for at, name in enumerate(own)
        }
        header = json.dumps(entries).encode()
        objects[f"long/{shard}"] = len(header).to_bytes(8, "little") + header + bytes(2 * len(own))
    lone = len(objects[f"long/{shard}"]) - 2 * len(own)
    objects["alone/model.safetensors"] = objects[f"long/{shard}"]
    objects["long/model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": names}).encode()
    for target, most in (("long", 1), ("alone", 2)):
        store.reads.clear()
        ckpt = open_target(f"s3://models/{target}")
        assert isinstance(ckpt, Checkpoint)
        assert sum(len(shard.tensors) for shard in ckpt.shards.values()) == (6000 if target == "long" else 3000)
        reads = {key: count for key, count in store.count_reads().items() if key.endswith(".safetensors")}
        assert set(reads.values()) == {most}
    ranges = [tuple(map(int, asked.removeprefix("bytes=").split("-"))) for _, asked, _ in store.reads]
    assert sorted(ranges) == [(0, FIRST_READ - 1), (FIRST_READ, lone - 1)]


def test_every_read_is_conditional(store: ObjectServer) -> None:
    ckptcheck.scan(TARGET, values=True)
    assert store.reads
    assert all(condition and asked for _, asked, condition in store.reads)


def test_a_file_an_index_and_a_slash_at_the_end(store: ObjectServer) -> None:
    store.push("models", FIXTURES / "checkpoints" / "tiny-llama-sharded", "sharded")
    index = ckptcheck.scan("s3://models/sharded/model.safetensors.index.json")
    assert index.counts == ckptcheck.scan("s3://models//sharded/").counts
    assert index.counts["files"] > 1
    assert ckptcheck.scan("s3://models/runs/step_1/model.safetensors").counts["files"] == 1
    with pytest.raises(CkptcheckError, match="does not exist"):
        ckptcheck.scan("s3://models/runs/step_1/other.safetensors")


def test_a_file_address_is_a_path() -> None:
    assert form(ckptcheck.scan(f"file://{LLAMA}")) == form(ckptcheck.scan(LLAMA))


def test_manifest_verify_and_diff(store: ObjectServer, tmp_path: Path) -> None:
    manifest = ckptcheck.manifest(TARGET, tmp_path / "manifest.json")
    assert manifest.tensors == ckptcheck.manifest(LLAMA).tensors
    assert ckptcheck.verify(TARGET, tmp_path / "manifest.json").verdict == "clean"
    assert ckptcheck.diff(LLAMA, TARGET).verdict == "clean"
    content = bytearray(store.buckets["models"]["runs/step_1/model.safetensors"])
    content[-1] ^= 1
    store.buckets["models"]["runs/step_1/model.safetensors"] = bytes(content)
    assert [finding.code for finding in ckptcheck.verify(TARGET, tmp_path / "manifest.json").findings] == ["MAN001"]
    assert [finding.code for finding in ckptcheck.diff(TARGET, LLAMA).findings] == ["CMP005"]


def test_a_manifest_beside_the_objects(store: ObjectServer, tmp_path: Path) -> None:
    ckptcheck.manifest(TARGET, tmp_path / "manifest.json")
    store.buckets["models"]["runs/manifest.json"] = (tmp_path / "manifest.json").read_bytes()
    assert ckptcheck.verify(TARGET, "s3://models/runs/manifest.json").verdict == "clean"
    with pytest.raises(CkptcheckError, match=r"cannot read the manifest s3://models/runs/none\.json"):
        ckptcheck.verify(TARGET, "s3://models/runs/none.json")


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_manifest_that_is_written_to_a_store(store: ObjectServer, tmp_path: Path, kind: Kind) -> None:
    address = f"{kind}://models/runs/step 1.json"
    assert ckptcheck.manifest(LLAMA, address) == ckptcheck.manifest(LLAMA, tmp_path / "manifest.json")
    assert store.buckets["models"]["runs/step 1.json"] == (tmp_path / "manifest.json").read_bytes()
    assert ckptcheck.verify(f"{kind}://models/runs/step_1", address).verdict == "clean"
    ckptcheck.write_part("manifest", LLAMA, part="0/1", folder=tmp_path / "parts")
    ckptcheck.join(tmp_path / "parts", f"{kind}://models/joined.json")
    assert store.buckets["models"]["joined.json"] == (tmp_path / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("s3://models/m.json", 403, "cannot write s3://models/m.json: s3://models does not let you write it (403)"),
        ("s3://models/m.json", 500, "cannot write s3://models/m.json: s3://models has an internal error (500)"),
        ("s3://none/m.json", 0, "cannot write s3://none/m.json: there is no bucket s3://none"),
        ("s3://models", 0, "s3://models names no object"),
        ("s3://models/folder/", 0, "s3://models/folder/ names no object"),
    ],
)
def test_a_manifest_that_cannot_be_written(store: ObjectServer, address: str, status: int, message: str) -> None:
    before = dict(store.buckets["models"])
    if status:
        store.fail("put m.json", status)
    with pytest.raises(CkptcheckError) as caught:
        ckptcheck.manifest(LLAMA, address)
    assert caught.value.message == message
    assert store.buckets["models"] == before


def test_the_command_writes_a_manifest_to_a_store(store: ObjectServer, tmp_path: Path) -> None:
    from ckptcheck.cli.app import build_app

    app, address = build_app(), "s3://models/runs/m.json"
    app(["manifest", TARGET, "-o", address], standalone_mode=False)
    assert not app(["verify", TARGET, address], standalone_mode=False)
    ckptcheck.write_part("manifest", LLAMA, part="0/1", folder=tmp_path / "parts")
    app(["join", str(tmp_path / "parts"), "-o", "s3://models/joined.json"], standalone_mode=False)
    assert "joined.json" in store.buckets["models"]
    ckptcheck.write_part("scan", LLAMA, part="0/1", folder=tmp_path)
    with pytest.raises(CkptcheckError, match="a report can be written to a file of this machine only"):
        app(["join", str(tmp_path), "-o", "s3://models/r.json"], standalone_mode=False)


@pytest.mark.parametrize("run", ["critic", "tp2-pp2", "legacy-tp2"])
def test_a_megatron_run(store: ObjectServer, run: str) -> None:
    folder = FIXTURES / "megatron" / run
    store.push("models", folder, "megatron")
    here = ckptcheck.scan(folder)
    assert "values" in {rule.on for rule in here.rules if rule.code in here.passed}
    assert form(ckptcheck.scan("s3://models/megatron", values=True)) == form(here)
    assert ckptcheck.diff(folder, "s3://models/megatron").verdict == "clean"


def test_a_fleet(store: ObjectServer) -> None:
    store.page = 2  # every listing has several pages
    for number in (2, 10):
        store.push("models", LLAMA, f"runs/step_{number}")
    fleet = [f"s3://models/runs/step_{number}" for number in (1, 2, 10)]
    assert resolve_targets(["s3://models/runs/*/"], log=print) == fleet
    assert resolve_targets(["s3://models/runs"], recursive=True, log=print) == fleet
    assert [report.target for report in ckptcheck.scan("s3://models/r*/step_?")] == fleet[:2]
    with pytest.raises(CkptcheckError, match="matches no folder"):
        ckptcheck.scan("s3://models/runs/epoch_*")
    with pytest.raises(CkptcheckError, match=r"holds 3 checkpoints: step_1, step_2, step_10"):
        ckptcheck.scan("s3://models/runs")


def test_a_job_that_names_one(store: ObjectServer, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(f"vllm serve {TARGET}\n")
    damaged = dict(store.buckets["models"])
    assert ckptcheck.preflight(tmp_path / "job.sh").verdict == "clean"
    damaged["runs/step_1/model.safetensors"] = damaged["runs/step_1/model.safetensors"][:-4]
    store.buckets["models"] = damaged
    found = [finding for finding in ckptcheck.preflight(tmp_path / "job.sh").findings if finding.code == "JOB017"]
    assert f"ckptcheck scan {TARGET} --headers-only" in (found[0].hint or "")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_refusal_that_passes(store: ObjectServer, status: int) -> None:
    store.fail("model.safetensors", status, times=2)
    store.fail("list", status, times=1)
    assert ckptcheck.scan(TARGET, values=True).verdict == "clean"


@pytest.mark.parametrize("way", ["cut", "drop"])
def test_an_answer_that_breaks_off_once(store: ObjectServer, way: Any) -> None:
    store.fail("model.safetensors", way=way, times=1)
    assert ckptcheck.scan(TARGET, values=True).verdict == "clean"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"status": 503}, "s3://models accepts no more requests for now (503)"),
        ({"status": 500}, "s3://models has an internal error (500)"),
        ({"status": 403}, "s3://models does not let you read it (403)"),
        ({"way": "cut"}, "s3://models cannot be reached, or broke off its answer"),
        ({"way": "replace"}, "it was replaced while it was being read"),
        ({"way": "other-etag"}, "it was replaced while it was being read"),
    ],
)
def test_an_object_that_cannot_be_read_is_incomplete(store: ObjectServer, fault: Any, reason: str) -> None:
    store.fail("model.safetensors", **fault)
    report = ckptcheck.scan(TARGET, values=True)
    assert report.verdict == "incomplete"
    assert report.error == f"could not read model.safetensors: {reason}"
    assert not report.passed


def test_an_object_replaced_between_two_reads(store: ObjectServer) -> None:
    """The header is of the old object; the values would be of the new one."""
    run = open_target(TARGET)
    assert isinstance(run, Checkpoint)
    assert run.shards
    store.buckets["models"]["runs/step_1/model.safetensors"] = bytes(len(run.shards["model.safetensors"].tensors))
    with pytest.raises(OSError, match="it was replaced while it was being read"):
        run.source.read("model.safetensors", 8, 8)


def test_a_deadline_for_each_request(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(bucket, "RETRIES", 0)
    store.fail("model.safetensors", way="slow")
    report = ckptcheck.scan(TARGET)
    assert report.error == "could not read model.safetensors: s3://models did not answer in time"


def test_a_store_that_trickles_is_asked_no_more(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file was waited for anew, for three minutes."""
    source = ObjectTree(TARGET, parse_object_address(TARGET)).open_folders([""])  # has a bucket of its own
    clock = itertools.count(step=60)
    monkeypatch.setattr(bucket, "monotonic", lambda: next(clock))
    monkeypatch.setattr(bucket, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(bucket, "RETRIES", 0)
    store.fail("step_1", way="slow")
    said = []
    for name in ("config.json", "model.safetensors", "config.json"):
        with pytest.raises(OSError, match="s3://models") as caught:
            source.read(name, 0, 100)
        said.append(caught.value.strerror)
    in_time = "s3://models did not answer in time"
    assert said == [in_time, in_time, "s3://models answered too slowly, and is not asked again"]


def test_a_long_read_in_pieces(store: ObjectServer) -> None:
    content = bytes(range(256)) * (PIECE // 100)
    store.buckets["models"]["big/x.bin"] = content
    source = ObjectTree("s3://models/big", parse_object_address("s3://models/big")).open_folders([""])
    assert source.read("x.bin", 5, 1 << 40) == content[5:]
    assert source.read("x.bin", len(content), 10) == b""
    assert len(store.reads) == -(-(len(content) - 5) // PIECE)
    store.reads.clear()
    assert source.view("x.bin", 5, PIECE + 4096) == content[5 : 5 + PIECE + 4096], "a piece and a row of a matrix"
    assert len(store.reads) == 1
    assert source.view("x.bin", 5, 1 << 40) == content[5:]
    assert source.view("x.bin", len(content), 10) == b""


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("s3://none/x", "there is no bucket s3://none", "check its name, its region and the endpoint"),
        ("s3://models/nothing", "s3://models/nothing holds no object", "name the folder that holds the checkpoint"),
        ("s3://", "s3:// names no bucket", "write it as s3://bucket/folder"),
    ],
)
def test_what_is_not_there(store: ObjectServer, target: str, message: str, hint: str) -> None:
    with pytest.raises(CkptcheckError) as caught:
        open_target(target)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_bucket_without_rights(store: ObjectServer) -> None:
    store.fail("list", 403)
    with pytest.raises(CkptcheckError, match=r"s3://models does not let you read it \(403\)") as caught:
        open_target(TARGET)
    assert not isinstance(caught.value, EvidenceError)


def test_a_server_that_cannot_be_reached(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(EvidenceError, match="s3://models cannot be reached"):
        open_target(TARGET)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "find_spec", lambda name: None)
    with pytest.raises(CkptcheckError) as caught:
        open_target(TARGET)
    assert caught.value.message == "s3:// is read with the package obstore, which is not installed"
    assert caught.value.hint == "pip install obstore"


def test_without_credentials(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(bucket, "RETRY_SECONDS", 1)
    monkeypatch.setattr(bucket, "RETRIES", 0)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # where the role of the machine is asked for
    with pytest.raises(CkptcheckError, match="there are no credentials for s3://models"):
        open_target(TARGET)


def test_a_scan_of_a_folder_loads_no_store() -> None:
    code = f"import sys, ckptcheck; ckptcheck.scan({str(LLAMA)!r}); print('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("kind", ["s3", "az"])
def test_a_list_that_never_ends(store: ObjectServer, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may say for ever that there is one more page."""
    store.is_endless = True
    monkeypatch.setattr(bucket, "LISTING_SECONDS", 0.5)
    with pytest.raises(CkptcheckError, match=f"the list of {kind}://models/runs/step_1 did not end within 0.5 seconds"):
        ckptcheck.scan(f"{kind}://models/runs/step_1")

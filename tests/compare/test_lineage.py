"""Lineage: what a manifest states about its origin, and chains of manifests, as the commands write and verify them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.compare.lineage import MalformedOrigin, read_origin, state_origin, trace_lineage
from ckptcheck.compare.manifest import Manifest, read_manifest
from ckptcheck.compare.signatures.sign import MANIFEST_NAME
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.linter.report import Report
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.lineage_cases import build_manifest
from tests.factories.signatures import NEEDED, write_key
from tests.limited_child import run_limited

SHARD = "model-00002-of-00003.safetensors"
CHANGED = "model.layers.1.self_attn.v_proj.weight"


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


def found(report: Report) -> list[tuple[str, str | None, str | None]]:
    return [(finding.code, finding.file, finding.key) for finding in report.findings]


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """train → quantized → served; the last is a copy of the second."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "quantized", "served"):
        shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", name)
    for name in ("quantized", "served"):
        flip(Path(name) / SHARD)
    ckptcheck.manifest("train", "train.json")
    ckptcheck.manifest(
        "quantized", "quantized.json", made_from="train", tool="llm-compressor", tool_version="0.9", command="oneshot …"
    )
    ckptcheck.manifest("served", "served.json", made_from=["quantized.json"])
    return tmp_path


def test_a_chain_that_holds(chain: Path) -> None:
    report = ckptcheck.verify("served", "served.json", made_from=["train.json", "quantized.json"])
    assert (report.verdict, "SIG003" in report.passed) == ("clean", True)
    (section,) = report.sections
    assert section.rows == (
        ("served", "quantized.json", "", "holds"),
        ("quantized.json", "train", "llm-compressor 0.9 · oneshot …", "holds"),
    )


def test_a_checkpoint_stands_for_its_manifest(chain: Path) -> None:
    """Its bytes are read; a manifest in its folder adds what it was made from itself."""
    shutil.copy("quantized.json", Path("quantized") / MANIFEST_NAME)
    assert ckptcheck.verify("served", "served.json", made_from=["train", "quantized"]).verdict == "clean"
    flip(Path("train") / SHARD)
    report = ckptcheck.verify("served", "served.json", made_from=["train", "quantized"])
    assert found(report) == [("SIG003", "quantized", CHANGED)]


def test_the_link_that_breaks_is_named_by_tensor(chain: Path) -> None:
    flip(Path("train") / SHARD)
    flip(Path("train") / "model-00001-of-00003.safetensors")
    ckptcheck.manifest("train", "train.json")
    report = ckptcheck.verify("served", "served.json", made_from=["train.json", "quantized.json"])
    (finding,) = report.findings
    assert (finding.code, finding.file, report.exit_code()) == ("SIG003", "quantized.json", 1)
    assert CHANGED in finding.names
    assert len(finding.names) == 2


def test_without_a_chain_nothing_is_said_of_it(chain: Path) -> None:
    report = ckptcheck.verify("served", "served.json")
    assert "SIG003" not in {*report.passed, *(code for code, _ in report.skipped)}
    assert report.sections == ()


def test_the_statement_is_one_of_in_toto(chain: Path) -> None:
    provenance = pytest.importorskip("in_toto_attestation.predicates.provenance.v1.provenance_pb2", reason=NEEDED)
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    written = json.loads((chain / "quantized.json").read_text(encoding="utf-8"))["made_from"]
    parsed = json_format.ParseDict(written, statement_pb2.Statement())
    Statement.copy_from_pb(parsed).validate()
    predicate = json_format.ParseDict(written["predicate"], provenance.Provenance())
    assert predicate.run_details.builder.id == "pkg:generic/llm-compressor@0.9"
    (source,) = predicate.build_definition.resolved_dependencies
    assert source.name == "train"
    assert dict(source.digest) == {"ckptcheckIdentityV1": ckptcheck.identity("train").identity}
    assert {each.name: dict(each.digest) for each in parsed.subject} == {
        "quantized": {"ckptcheckIdentityV1": ckptcheck.identity("quantized").identity}
    }


def test_an_origin_is_signed_and_survives_signing(chain: Path) -> None:
    pytest.importorskip("model_signing", reason=NEEDED)
    private, public = write_key(chain / "keys")
    shutil.copy("served.json", Path("served") / MANIFEST_NAME)
    ckptcheck.sign("served", private_key=private)
    given = {"public_key": public, "made_from": ["train.json", "quantized.json"]}
    assert read_manifest(Path("served") / MANIFEST_NAME).made_from == read_manifest("served.json").made_from
    assert ckptcheck.verify("served", **given).verdict == "clean"
    stated = json.loads((Path("served") / MANIFEST_NAME).read_text(encoding="utf-8"))
    stated["made_from"] = json.loads(Path("quantized.json").read_text(encoding="utf-8"))["made_from"]
    (Path("served") / MANIFEST_NAME).write_text(json.dumps(stated), encoding="utf-8")
    (finding,) = ckptcheck.verify("served", public_key=public).findings
    assert (finding.code, finding.file) == ("SIG002", MANIFEST_NAME)
    with pytest.raises(CkptcheckError, match="has no signed manifest"):
        ckptcheck.verify("served", **given)


def test_a_manifest_with_another_origin_is_not_the_signed_one(chain: Path) -> None:
    pytest.importorskip("model_signing", reason=NEEDED)
    private, public = write_key(chain / "keys")
    ckptcheck.sign("served", private_key=private)
    report = ckptcheck.verify("served", "served.json", public_key=public)
    assert [(finding.code, finding.message) for finding in report.findings] == [
        ("SIG001", "the manifest that was named states another origin of the weights than the signed one")
    ]


def test_a_manifest_of_other_tensors_is_not_the_signed_one(chain: Path) -> None:
    pytest.importorskip("model_signing", reason=NEEDED)
    private, public = write_key(chain / "keys")
    ckptcheck.sign("served", private_key=private)
    report = ckptcheck.verify("served", "train.json", public_key=public)
    assert [(finding.code, finding.key) for finding in report.findings if finding.code == "SIG001"] == [
        ("SIG001", CHANGED)
    ]


def test_a_signature_that_nobody_verified_is_said(chain: Path) -> None:
    (Path("served") / "model.sig").write_text("{}")
    (section,) = ckptcheck.verify("served", "served.json").sections
    assert section.lines[0].startswith("served/model.sig was not verified; --public-key")


@pytest.mark.parametrize(
    "made_from",
    [{}, {"_type": 1}, {"_type": "x", "subject": [], "predicateType": "y", "predicate": {"buildDefinition": {}}}],
)
def test_a_malformed_origin_is_a_finding(made_from: dict[str, Any], chain: Path) -> None:
    manifest: Manifest = read_manifest("served.json")
    manifest.made_from = made_from
    with pytest.raises(MalformedOrigin):
        read_origin(manifest)
    assert [code for code, *_ in found(ckptcheck.verify("served", manifest, made_from="train.json"))] == ["SIG003"]


def test_options_of_an_origin_need_an_input(chain: Path) -> None:
    with pytest.raises(UsageError, match="has no effect without --made-from"):
        ckptcheck.manifest("train", tool="llm-compressor")
    with pytest.raises(UsageError, match="--tool-version has no effect without --tool"):
        ckptcheck.manifest("train", made_from="train.json", tool_version="0.9")


@pytest.mark.parametrize("number", [250, 3000])
def test_many_inputs_and_many_tensors_are_followed_in_time(number: int) -> None:
    """Each input is held against each manifest that was given, whose digests are computed once."""
    given = {
        name: build_manifest(name, {f"{name}.{at}": f"{at:x}" for at in range(900)}, "Hugging Face")
        for name in ("a", "b", "c")
    }
    top = build_manifest("top", {"a": "1"}, "Hugging Face")
    top.made_from = state_origin(top, {})
    inputs = [{"name": "a" if at % 2 else f"{at}", "annotations": {"tensors": f"{at:012x}"}} for at in range(number)]
    top.made_from["predicate"]["buildDefinition"]["resolvedDependencies"] = inputs
    for each in given.values():
        each.made_from = dict(top.made_from)

    def follow() -> str:
        lineage = trace_lineage("top", top, given)
        return f"{len(lineage.links)} links, {lineage.trouble.get('top', '')}"

    outcome = run_limited(follow)
    assert not outcome.fault, outcome
    more = "0 links, its origin names more than 256 inputs"
    assert outcome.answer.startswith("500 links" if number == 250 else more), outcome

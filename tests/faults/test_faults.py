"""Every verb under every fault of the machine; docs/limits.md is the table for people."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.signatures import NEEDED
from tests.faults.inputs import write_inputs
from tests.faults.table import FAULTS, MORE_FAULTS, QUICK, VERBS, Fault, find_wrong, run_with_fault
from tests.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and a shim"),
]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("failing reads need a C compiler")
    path = tmp_path_factory.mktemp("shim") / "failing_reads.so"
    source = Path(__file__).with_name("failing_reads.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source), "-ldl"], check=True)
    return path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of every verb, and what takes the place of one."""
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def put_beside(here: Path) -> None:
    """Put what takes the place of a file beside the inputs."""
    (here / "link").symlink_to(here / "secret")
    (here / "endless").symlink_to("/dev/zero")
    (here / "another").write_text("another file\n" * 500)
    os.mkfifo(here / "pipe")


def find_all_wrong(verb: str, faults: Mapping[str, Fault], inputs: Path, shim: Path, place: Path) -> dict[str, str]:
    if verb == "sign":
        pytest.importorskip("model_signing", reason=NEEDED)
    wrong, takes = {}, 0.0
    for name, fault in {"no fault": Fault(), **faults}.items():
        here = Path(shutil.copytree(inputs, place / re.sub("[^a-z0-9]+", "-", name, flags=re.IGNORECASE)))
        put_beside(here)
        begun = time.monotonic()
        answer = run_with_fault(here, verb, fault, shim, takes)
        takes = takes or time.monotonic() - begun
        if found := find_wrong(here, verb, fault, answer):
            wrong[name] = found
        elif name == "no fault" and answer.code == 2:
            wrong[name] = f"it could not check: {answer.stderr[-300:]}"
        shutil.rmtree(here)
    return wrong


@pytest.mark.parametrize("verb", QUICK)
def test_a_verb_under_every_fault(verb: str, inputs: Path, shim: Path, tmp_path: Path) -> None:
    assert not find_all_wrong(verb, FAULTS, inputs, shim, tmp_path)


@pytest.mark.matrix
@pytest.mark.skipif("CKPTCHECK_MATRIX" not in os.environ, reason="some minutes: make matrix")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_under_more_faults(verb: str, inputs: Path, shim: Path, tmp_path: Path) -> None:
    """The faults above for the other verbs too; files that are replaced, little memory, signals at many moments."""
    faults = MORE_FAULTS if verb in QUICK else FAULTS | MORE_FAULTS
    assert not find_all_wrong(verb, faults, inputs, shim, tmp_path)


def test_the_page_lists_every_fault_and_verb() -> None:
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    plain = [re.sub(", at read .*| at [0-9]+%", "", name) for name in (*FAULTS, *MORE_FAULTS, *VERBS)]
    assert [name for name in plain if name not in page] == []

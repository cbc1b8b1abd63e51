"""Files that a user names, and that have no end or forty gigabytes of nothing: they are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck.text.file_io import read_whole_file
from tests.factories.limited_process import run_limited

READERS = {
    "manifest": "from ckptcheck.compare.manifest import read_manifest as read",
    "baseline": "from ckptcheck.linter.baseline import read_baseline as read",
    "settings": "from ckptcheck.linter.settings import load_settings as read",
    "gate file": "from ckptcheck.gate.gate_file import read_gate_request; read = lambda path: read_gate_request([str(path)])",
    "floor": "from ckptcheck.parity.metrics.noise_floor import read_noise_floor as read",
    "log": "from ckptcheck.parity.matrix.measurement_log import MeasurementLog; read = lambda path: MeasurementLog(path, {})",
    "prompts": "from ckptcheck.parity.prompts import read_prompts_file; read = lambda path: read_prompts_file(path, None)",
}
READ = """
import sys
from pathlib import Path
from ckptcheck.errors import CkptcheckError
{0}
try:
    read(Path(sys.argv[1]))
except CkptcheckError as error:
    print(error.message)
"""


@pytest.mark.parametrize("kind", ["a device", "a sparse file", "deep lists", "a long number"])
@pytest.mark.parametrize("name", READERS)
def test_what_has_no_end_is_refused_in_a_sentence(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "named.toml"
    if kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "deep lists":
        path.write_text(("a = " if name in ("settings", "gate file") else "") + "[" * 200_000 + "\n")
    elif kind == "a long number":
        path.write_text(("a = " if name in ("settings", "gate file") else "") + "9" * 10_000 + "\n")
    else:
        with path.open("wb") as file:
            file.truncate(40 << 30)
    said = run_limited(READ.format(READERS[name]), path)
    assert str(path) in said
    assert said.count("\n") == 1
    assert len(said) < 500


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_whole_file(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes, which no such file has"):
        read_whole_file(tmp_path / "file", 4)

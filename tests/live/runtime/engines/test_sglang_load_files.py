"""The file in which SGLang keeps a scheduler's load, on its own classes: it goes with the worker's folder."""

from __future__ import annotations

import pytest

from tests.conftest import needs_engine
from tests.live.runtime.engines.sglang_scripts import run_in_sglang

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
SCRIPT = """
import os, tempfile
from types import SimpleNamespace as Some
from ckptcheck_worker import sglang_plugins
from sglang.srt.managers import load_snapshot

folder = tempfile.mkdtemp()
own = "ckptcheck-test-" + os.urandom(6).hex()
stock = load_snapshot.shm_path_for(own)
sglang_plugins.keep_load_files()
without_folder = load_snapshot.shm_path_for(own)
os.environ[sglang_plugins.FOLDER_VARIABLE] = folder
sglang_plugins.keep_load_files()
path = load_snapshot.shm_path_for(own)
writer = load_snapshot.ShmLoadSnapshotWriter(path, 1, 0)
read = load_snapshot.ShmLoadSnapshotReader(load_snapshot.shm_path_for(own), 1).read(0)
answer({
    "stock": stock.startswith("/dev/shm/sglang_loads_"), "unchanged": without_folder == stock,
    "files": os.listdir(folder) == [os.path.basename(path)], "read": read.dp_rank,
    "left": [name for name in os.listdir("/dev/shm") if own in name],
})
"""


def test_nothing_is_left_in_shared_memory() -> None:
    needs_engine("sglang")
    found = run_in_sglang(SCRIPT)
    assert found == {"stock": True, "unchanged": True, "files": True, "read": 0, "left": []}

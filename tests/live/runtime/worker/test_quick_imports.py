"""What a worker imported is never searched for garbage, whatever an engine freezes and unfreezes."""

from __future__ import annotations

import subprocess
import sys

from ckptcheck.live.runtime import worker

PROGRAM = """
import gc, sys
sys.path.insert(0, sys.argv[1])
from ckptcheck_worker import quick_imports
assert not gc.isenabled()
quick_imports.end_quick_imports()
frozen = gc.get_freeze_count()
assert frozen > 1000 and gc.isenabled()
class Node: pass
made = Node()
made.itself = made
gc.freeze()
del made
gc.unfreeze()
assert gc.collect() > 0
quick_imports.end_quick_imports()
print(gc.get_freeze_count() - frozen)
"""


def test_an_engine_unfreezes_nothing_that_was_imported() -> None:
    (folder,) = worker.__path__
    ran = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "0"), ran.stderr

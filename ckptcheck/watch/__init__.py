"""Watches weight syncs from inside training code: records what was sent and what the engine holds, and reports faults.

    from ckptcheck.watch import Watch, servers

    watch = Watch(servers("http://127.0.0.1:30000"), record="syncs.jsonl")
    with watch(step=step, loss=loss) as sync:
        # export() gives pairs (name, tensor); sync.sent passes them through
        push(sync.sent(export()))

See docs/watch.md for slime, verl, NeMo-RL and TRL.
"""

from ckptcheck.watch.engine_side import WatchedEngine, module, servers
from ckptcheck.watch.watch import SyncError, Syncing, SyncWarning, Watch, digests

__all__ = ["SyncError", "SyncWarning", "Syncing", "Watch", "WatchedEngine", "digests", "module", "servers"]

"""Watches weight syncs from inside training code: what was sent, what the engine holds afterwards, and what is wrong with it.

    from ckptcheck.watch import Watch, servers

    watch = Watch(servers("http://127.0.0.1:30000"), record="syncs.jsonl")
    with watch(step=step, loss=loss) as sync:
        push(sync.sent(export()))  # an iterable of (name, tensor), passed through

See README.md beside this file for slime, verl and NeMo-RL.
"""

from ckptcheck.watch.engine_side import EngineSide, module, servers
from ckptcheck.watch.watch import SyncError, Syncing, SyncWarning, Watch, digests

__all__ = ["EngineSide", "SyncError", "SyncWarning", "Syncing", "Watch", "digests", "module", "servers"]

"""Watches weight syncs from inside training code: records what was sent and what the engine holds, and reports faults.

    from ckptcheck.watch import Watch, servers

    watch = Watch(servers("http://127.0.0.1:30000"), record="syncs.jsonl")
    with watch(step=step, loss=loss) as sync:
        # export() gives pairs (name, tensor); sync.sent passes them through
        push(sync.sent(export()))

`ckptcheck.watch.adapters` puts it into RL frameworks, `WatchCallback` into a trainer of TRL, and the environment variable
CKPTCHECK_WATCH into vLLM and SGLang; see docs/watch.md.
"""

from ckptcheck.watch.engine_side import WatchedEngine, module, servers
from ckptcheck.watch.job_log import watch_log
from ckptcheck.watch.probe import Probe, fixed_sequences, score_with_transformers, score_with_vllm
from ckptcheck.watch.push_transport import try_transport
from ckptcheck.watch.sync_check import SyncError
from ckptcheck.watch.syncing import Syncing
from ckptcheck.watch.tensor_digests import digests
from ckptcheck.watch.trl_callback import WatchCallback
from ckptcheck.watch.watch import Watch
from ckptcheck.watch.watch_state import SyncWarning

__all__ = [
    "Probe", "SyncError", "SyncWarning", "Syncing", "Watch", "WatchCallback", "WatchedEngine", "digests", "fixed_sequences",
    "module", "score_with_transformers", "score_with_vllm", "servers", "try_transport", "watch_log",
]  # fmt: skip

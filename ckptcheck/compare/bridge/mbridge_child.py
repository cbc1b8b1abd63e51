"""Asks mbridge for its mapping. Runs as a script in an interpreter that has mbridge: JSON on stdin, JSON on stdout.

Request: config (folder with a config.json), names (name → names to try), samples (name → shape).
Response: version, targets (name → Hugging Face names, null if mbridge knows none), rows (sample → for each target the runs of
rows that it takes); or error.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any


def main() -> None:
    """Answer one request."""
    answer_to = os.dup(1)
    # Libraries that print must not write into the response.
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    with os.fdopen(answer_to, "w", encoding="utf-8") as stream:
        try:
            json.dump(build_response(request), stream)
        # Whatever mbridge raises means that it cannot map this model.
        except Exception as error:
            json.dump({"error": f"{type(error).__name__}: {error}"}, stream)


def build_response(request: dict[str, Any]) -> dict[str, Any]:
    """Build the bridge of a config and ask it name by name.

    Each row of a sample holds its own number, so the answer shows its source.
    """
    warnings.simplefilter("ignore")
    import torch
    from mbridge import AutoBridge
    from mbridge.core.parallel_states import ParallelStates
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(request["config"], trust_remote_code=False, local_files_only=True)
    for key, value in (getattr(config, "rope_parameters", None) or {}).items():
        # transformers 5 stores rope_theta in rope_parameters; mbridge looks for it at the top level.
        if not hasattr(config, key):
            setattr(config, key, value)
    try:
        bridge = AutoBridge.from_config(config, parallel_states=ParallelStates())
    except TypeError:
        # mbridge builds Megatron's config, which the installed Megatron may reject. The mapping needs only two of its numbers.
        from mbridge.core.bridge import _MODEL_REGISTRY

        kind = _MODEL_REGISTRY[config.model_type]
        kind._build_config = lambda self: SimpleNamespace(
            num_layers=config.num_hidden_layers, mtp_num_layers=getattr(config, "num_nextn_predict_layers", None)
        )
        bridge = kind(config, parallel_states=ParallelStates())
    targets: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for name, candidates in request["names"].items():
        targets[name] = None
        for candidate in candidates:
            try:
                targets[name] = list(bridge._weight_name_mapping_mcore_to_hf(candidate))
            except (NotImplementedError, AssertionError, KeyError, IndexError):
                continue
            shape = request["samples"].get(name)
            if shape is not None:
                index = torch.arange(shape[0], dtype=torch.int32).reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
                _, parts = bridge._weight_to_hf_format(candidate, index.contiguous())
                rows[name] = [find_row_runs(part.reshape(part.shape[0], -1)) for part in parts]
            break
    return {"version": importlib.metadata.version("mbridge"), "targets": targets, "rows": rows}


def find_row_runs(part: Any) -> list[tuple[int, int]] | None:
    """Return the runs [begin, end) of source rows in a part; None if a row of it is not one row of the source."""
    first = part[:, 0]
    if not bool((part == first[:, None]).all()):
        return None
    runs: list[list[int]] = []
    for row in first.tolist():
        if runs and runs[-1][1] == row:
            runs[-1][1] = row + 1
        else:
            runs.append([row, row + 1])
    return [(begin, end) for begin, end in runs]


if __name__ == "__main__":
    main()

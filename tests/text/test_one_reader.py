"""Files that are parsed go through `file_io.read_to_parse`; other places that open a file are listed with their reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.paths import ROOT

READER = "ckptcheck/text/file_io.py"
OPENERS = re.compile(
    "open|fdopen|open_code|open_regular_file|open_regular_stream|read_listed|read_text|read_bytes|readlines|fromfile|genfromtxt"
    "|loadtxt|memmap|mmap|ZipFile|TarFile|safe_open|from_file|from_pretrained|ParquetFile|read_table|read_parquet"
)
"""Names of functions and methods that open a file, or read one whole."""
LOADERS = re.compile("json|tomllib|toml|yaml|pickle|marshal|plistlib|np|numpy|torch")
"""Modules whose `load` reads a file that is open."""
MAY_OPEN = re.compile(rf"\b({OPENERS.pattern}|read|\w*load\w*)\(")
OWN = ("__file__", "os.devnull", "'/proc/", "f'/proc/", "files('ckptcheck.")
"""Marks of files of the package, and of the system's own answers."""

WORKER = "ckptcheck/live/runtime/worker/ckptcheck_worker/"
ELSEWHERE: dict[str, str] = {
    "the bytes of tensors, in ranges that a header gives": """
        ckptcheck/checkpoint/source.py:read ckptcheck/checkpoint/source.py:_open_listed
        ckptcheck/values/tensor_stream.py:_sum_range ckptcheck/values/shard_digest.py:read_compiled
        ckptcheck/checkpoint/objects/bucket_of_nodes.py:read
        ckptcheck/checkpoint/megatron/megatron.py:archive ckptcheck/checkpoint/megatron/tensor_reader.py:read_tensor
        ckptcheck/compare/matching/tensor_files.py:_open ckptcheck/rollouts/files.py:_open_column
        ckptcheck/values/worker.py:serve_batches""",
    "a header, which begins with its length; 256 kB are read before that is believed": """
        ckptcheck/checkpoint/header.py:read_shard ckptcheck/rollouts/files.py:read_rollouts
        ckptcheck/live/runtime/dry_loading.py:copy_without_values""",
    "the first bytes, to recognise a file": """
        ckptcheck/checkpoint/checkpoint.py:_defects ckptcheck/checkpoint/deltas/target.py:is_disk_delta
        ckptcheck/checkpoint/objects/folder.py:read_start ckptcheck/text/model_files.py:_is_own""",
    "an object of a store, whose listed size is bounded before": """
        ckptcheck/checkpoint/objects/folder.py:read_object""",
    "copied for a trial, not parsed; `list_files_beside` bounds it": "ckptcheck/checkpoint/files_beside.py:copy_files_beside",
    "archives of pickles, read in ranges with bounds of their own": """
        ckptcheck/checkpoint/torch_archive.py:open_archive ckptcheck/checkpoint/torch_archive.py:read_pickles
        ckptcheck/checkpoint/torch_file.py:read_torch_file ckptcheck/runs/saves/state_files.py:explain_torn""",
    "rollouts and records of syncs, line by line up to the first zero byte": """
        ckptcheck/rollouts/json_text.py:read_text_lines ckptcheck/rollouts/lines.py:read_lines
        ckptcheck/rollouts/lines.py:is_rollout_lines ckptcheck/rollouts/convert/detect.py:_load_content
        ckptcheck/runs/history/record.py:read_lines ckptcheck/runs/history/record.py:_ends_with_newline""",
    "the log of a command that runs, a piece at a time": "ckptcheck/live/gate/first_step.py:read_on",
    "written to, or flushed to its disk": """
        ckptcheck/runs/history/record.py:check_writable ckptcheck/runs/history/record.py:append""",
    "bytes in memory": "ckptcheck/rollouts/convert/routing_payload.py:_from_npy",
    "what the system says of processes": f"""
        {WORKER}dry_load_answer.py:limit_memory {WORKER}inventory.py:memory_bytes {WORKER}supervisor.py:_read_proc""",
    "written by this process a moment ago": "ckptcheck/compare/signatures/sign.py:sign_folder",
    "a shell's own file, to see whether it has a line": "ckptcheck/cli/completion.py:_install",
    "rules, and scripts of ours, whose code runs too": """
        ckptcheck/runners/import_path.py:run
        ckptcheck/linter/rule_index.py:describe_rule ckptcheck/linter/rule_index.py:_find_condition
        ckptcheck/linter/rule_index.py:read_index""",
    "tables of the package": """
        ckptcheck/jobs/key_names.py:load_key_names ckptcheck/jobs/known_issues.py:load_issue_table
        ckptcheck/jobs/key_names.py:load_unread_table
        ckptcheck/consumers/structures.py:_load_file ckptcheck/jobs/dated_defaults.py:load_table
        ckptcheck/jobs/key_table.py:load_key_table ckptcheck/live/runtime/engines/known_issues.py:load_known_issues""",
    "environments that ckptcheck builds, from recipes of its own or the user's": """
        ckptcheck/live/runtime/environments/install.py:_apply_changes ckptcheck/live/runtime/environments/recipe.py:digest
        ckptcheck/live/runtime/environments/recipe.py:load_recipe ckptcheck/live/runtime/environments/store.py:find_environment
        ckptcheck/live/runtime/process/process.py:read_log_tail""",
    "pipes between ckptcheck and its children": f"""
        ckptcheck/checkpoint/sandbox_child.py:main
        ckptcheck/live/gate/call_process.py:_end_with_gate ckptcheck/values/forked_worker.py:__init__
        ckptcheck/values/forked_worker.py:_run_worker {WORKER}sglang_engine.py:call_ranks
        {WORKER}sglang_generate.py:force_decode""",
    "a folder, to see whether a sandbox holds": f"ckptcheck/checkpoint/sandbox_child.py:reach {WORKER}landlock.py:_allow",
    "a child reads, under limits, what `copy_without_values` or `copy_files_beside` bounded, or what its engine reads as well": f"""
        {WORKER}critic.py:__init__ {WORKER}critic.py:set_head
        {WORKER}critic.py:compare_gradients {WORKER}dry_load_sglang.py:_find_lost_class
        {WORKER}dry_load_transformers.py:dry_load {WORKER}lora_files.py:read_adapter {WORKER}lora_files.py:write_merged
        {WORKER}megatron_rank.py:read {WORKER}transformers_trainer.py:load {WORKER}vllm_images.py:takes_images
        {WORKER}vllm_launch.py:_state_cache_arguments""",
}
"""Why files are opened elsewhere → module:function."""


def list_openings(file: str, text: str) -> Iterator[str]:
    """Yield module:function for every call that opens a file to read it, or reads one whole."""

    def search(node: ast.AST, function: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
            if isinstance(child, ast.Call) and is_opening(child):
                yield f"{file}:{inner}"
            yield from search(child, inner)

    if MAY_OPEN.search(text):
        yield from search(ast.parse(text), "")


def is_opening(call: ast.Call) -> bool:
    """Whether a call opens a file to read it, or reads one whole; files of the package and of the system aside."""
    function = call.func
    if isinstance(function, ast.Attribute):
        name, owner = function.attr, getattr(function.value, "id", "")
    else:
        name, owner = getattr(function, "id", ""), ""
    constants = [getattr(argument, "value", None) for argument in call.args]
    is_whole = (
        name == "read" and isinstance(function, ast.Attribute) and constants[1:2] in ([], [0]) and len(constants) != 1
    )
    loads = LOADERS.fullmatch(owner) and "load" in name and not name.endswith("s")
    if not OPENERS.fullmatch(name) and not is_whole and not loads:
        return False
    is_written = any(isinstance(mode, str) and mode and set(mode) <= set("wabx+") for mode in constants)
    return not is_written and not any(mark in ast.unparse(call) for mark in OWN)


def list_files() -> Iterator[tuple[str, str]]:
    for folder in ("ckptcheck", "rules"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_every_other_place_that_opens_a_file_has_its_reason() -> None:
    listed = {place for places in ELSEWHERE.values() for place in places.split()}
    found = {place for file, text in list_files() if file != READER for place in list_openings(file, text)}
    unlisted = found - listed
    assert not unlisted, "call text.file_io or checkpoint.source.read_document, or list it with its reason"
    gone = listed - found
    assert not gone, "these open no file any more"


@pytest.mark.parametrize(
    "line",
    [
        "raw = ckpt.source.read(file, 0, ckpt.files[file].size)",
        "json.load(path.open())",
        "path.read_text()",
        "open(path).readlines()",
        "tomllib.load(file)",
        "np.load(path)",
        "np.fromfile(path)",
        "zipfile.ZipFile(path)",
        "torch.load(path)",
        "os.open(path, os.O_RDONLY)",
        "file.read()",
        "yaml.safe_load(stream)",
    ],
)
def test_a_new_opening_is_found(line: str) -> None:
    assert [*list_openings("new.py", f"def read():\n    {line}\n")][:1] == ["new.py:read"]

"""A safetensors file is broken, so safetensors refuses it.

## What it checks
- The file is there in full: it is not empty, does not begin with zero bytes, ends neither before its last tensor nor after it,
  and does not change while ckptcheck reads its header.
- The first 8 bytes give the length of the header, at most 100,000,000 bytes. Other formats have letters there, which read as a
  huge number; the finding names a PyTorch `.bin`, GGUF and other known ones.
- The header is UTF-8, begins with `{`, and is one object of strict JSON. Its `__metadata__` holds only strings.
- Every entry has a `dtype`, a `shape` and `data_offsets`, in the form that the format gives them.
- The dtype is one of safetensors 0.8: `BOOL`, `U8` to `U64`, `I8` to `I64`, `F16`, `BF16`, `F32`, `F64`, `C64`, `F8_E4M3`,
  `F8_E5M2`, `F8_E8M0`, `F8_E4M3FNUZ`, `F8_E5M2FNUZ`, `F4`, `F6_E2M3`, `F6_E3M2`.
- Every tensor has the bytes that its dtype and shape need, and the tensors cover the data without a hole and without overlap.

A defect that follows from another one is not reported. The values of a tensor are read only where the file holds the bytes that
its dtype and shape need, and no other tensor has them too; else the rules on values say that they skip it.

## Why it matters
safetensors refuses the file, and with it transformers, vLLM and SGLang, often after minutes of loading the other shards, in
words that rarely name the cause: `header too large` for a renamed `.bin`, `incomplete metadata, file not fully covered` for a
download that broke off. Readers that do not check load one tensor's bytes into another, or read past the end of the file: mlx
did until 2026. Where the header is damaged, the data, which has no checksum, may be damaged too.

## How to fix
Fetch or copy the file again, and compare its size or SHA-256 with the original. Write a file of your own with safetensors'
`save_file` (`save_model` leaves out tensors that share memory), flush it, and rename it when it is complete.

## When it can be wrong
- A file that is still being downloaded or written: scan it again when nothing writes to it. A network file system may list an
  old size for seconds.
- safetensors loads a header with white space before the `{`, an entry written as a list, and a dtype written as an object. The
  format forbids the first, and readers such as fastsafetensors and Galaxy stop at all three.
- A newer safetensors may have further dtypes or take longer headers; every program with an older version refuses such files.
- A reader of your own may accept padding, holes or shared bytes. No other program will: use `--ignore ST001` for such files.
- Lengths are checked, not meaning: F16 in place of BF16 takes as many bytes. If a download reserved the full length and only
  the beginning arrived, VAL004 and VAL005 find the zeros. A header above 32 MB in an unusual form is not examined entry by
  entry; the scan then reports that it could not check it.

## Seen in
lyogavin/airllm#137 and hiyouga/LlamaFactory#2922 (truncated), sgl-project/sglang#13870 and #14465 (zero bytes),
kijai/ComfyUI-CogVideoXWrapper#239 (empty), huggingface/safetensors#414 (a PyTorch file), huggingface/safetensors#668 (1,290,000
tensors in one file), huggingface/safetensors#466 and #601 (`{},"__metadata__"…`), huggingface/safetensors#278 and #849 (numbers
in `__metadata__`), foundation-model-stack/fastsafetensors#96 (no data_offsets), foundation-model-stack/fastsafetensors#69
(dtype), Comfy-Org/ComfyUI#15602 (trailing bytes), ml-explore/mlx#4439 (holes), huggingface/safetensors#586 (overlap),
ml-explore/mlx#3363 (a shape that does not fit)
"""

from collections.abc import Iterator

from msgspec import structs

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint

SAVE = "write the file again with safetensors' save_file"
HINTS = {
    "vanished": "check again when nothing writes to the folder",
    "empty-file": "fetch or write the file again, or remove it",
    "zeroed-header": "fetch or write the file again",
    "truncated": "fetch or copy the file again; if it is as short where it was written, take the save before",
    "trailing-bytes": f"fetch the file again, or {SAVE}",
    "oversized-header": "fetch the right file, or convert it: renaming does not make it safetensors",
    "header-not-utf8": "fetch the file again: the values may be damaged too",
    "header-not-json": f"fetch the file again, or {SAVE}",
    "malformed-metadata": "write the values as strings, for example with json.dumps",
    "malformed-entry": SAVE,
    "unknown-dtype": "write the tensor with a dtype that safetensors has; packed integers are stored as U8 or I32",
    "shape-overflow": "do not use the file; fetch it again from a source you trust",
    "size-mismatch": f"correct the tensor's dtype, shape or offsets, or {SAVE}",
    "hole": SAVE,
    "overlap": SAVE,
}
"""Kind of defect → what to do."""


@rule("ST001", "broken-file", severity="error", when=lambda ckpt: ckpt.has_shards)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for kind, hint in HINTS.items():
        for problem in ckpt.defects(kind):
            yield structs.replace(problem, hint=hint)
    ckpt.require_headers()

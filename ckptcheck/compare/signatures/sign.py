"""Signs a model's folder: every file of it, among them a manifest of its tensors, so that a change can be named by tensor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.source import list_rewritten
from ckptcheck.compare.manifest import Manifest, build_manifest, read_manifest, write_manifest
from ckptcheck.compare.signatures.keys import SigningKey, describe_sigstore_failure, quiet, require_packages
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.text.file_io import real_path, replace_file, require_writable
from ckptcheck.text.formatting import join_truncated

DEFAULT_NAME = "model.sig"
"""The file name that model_signing gives a signature by default."""
MANIFEST_NAME = "ckptcheck.manifest.json"
"""The file in the folder that lists the tensors. The signature covers it like any other."""
LEFT_OUT = (".cache",)
"""The folder in which `hf download` keeps its own notes; model_signing itself leaves out git's files."""


def sign_folder(
    ckpt: Checkpoint | Megatron,
    folder: Path,
    key: SigningKey,
    *,
    signature: Path | None = None,
    follow_links: bool = False,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the manifest of a model into its folder, sign all files there, and return the file of the signature.

    A manifest that lies there already keeps its identity. Raises CkptcheckError if it describes other weights than the
    folder holds, or if a tensor, the key or a file cannot be read.
    """
    require_packages()
    from model_signing import hashing, signing

    signature = signature or folder / DEFAULT_NAME
    require_writable(signature)
    config = signing.Config()
    with quiet():
        key.configure(config)
    manifest = build_manifest(ckpt, jobs=jobs, progress=progress)
    path = folder / MANIFEST_NAME
    if path.exists():
        manifest = _keep_identity(manifest, read_manifest(path), path)
    write_manifest(manifest, path)
    ignored = [*LEFT_OUT, *([inside] if (inside := find_inside(signature, folder)) is not None else [])]
    hashes = hashing.Config().set_ignored_paths(paths=ignored).set_allow_symlinks(follow_links)
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / DEFAULT_NAME
        try:
            config.set_hashing_config(hashes).sign(folder, written)
        except OSError as error:
            if key.keyless and error.filename is None:  # no file
                raise describe_sigstore_failure(error, "signed") from error
            raise EvidenceError(f"cannot sign {folder}: {error.strerror or error}") from error
        except ValueError as error:
            raise describe_hash_failure(error) from error
        except Exception as error:
            if key.keyless:
                raise describe_sigstore_failure(error, "signed") from error
            raise EvidenceError(f"cannot sign {folder}: {type(error).__name__}: {error}") from error
        content = written.read_bytes()
    if changed := list_rewritten(ckpt.source, ckpt.source.files.keys() - {MANIFEST_NAME, signature.name}):
        # Between manifest and signature the bytes may have changed.
        raise EvidenceError(f"{join_truncated(changed)} was replaced or written to while {folder} was being signed")
    replace_file(signature, content)
    return signature


def find_inside(path: Path, folder: Path) -> str | None:
    """Return the path of a file relative to a folder; None if it lies elsewhere."""
    try:
        return real_path(path).relative_to(real_path(folder)).as_posix()
    except ValueError:
        return None


def describe_hash_failure(error: Exception) -> EvidenceError:
    """Return the error for files that model_signing does not read."""
    if "symlink" in str(error):
        message = str(error).partition(" because ")[0].removeprefix("Cannot use ").strip("'")
        return EvidenceError(f"{message} is a link", "add --follow-links, if what it links to may be read")
    return EvidenceError(f"the files cannot be read for the signature: {error}")


def _keep_identity(current: Manifest, recorded: Manifest, path: Path) -> Manifest:
    """Return the manifest of the present weights, with the identity from an earlier manifest. Raises CkptcheckError."""
    contents = ({name: entry.content for name, entry in each.tensors.items()}.items() for each in (current, recorded))
    others = sorted({name for name, _ in next(contents) ^ next(contents)})
    if others:
        raise CkptcheckError(
            f"{path} does not match the weights beside it: {join_truncated(others)}",
            f"ckptcheck manifest {path.parent} -o {path} writes it again",
        )
    if recorded.identity is None:
        return current
    # an identity under Hugging Face's names (--like) says more than one under Megatron's
    tensors = {
        name: msgspec.structs.replace(entry, file=current.tensors[name].file)
        for name, entry in recorded.tensors.items()
    }
    return msgspec.structs.replace(recorded, target=current.target, tensors=tensors)

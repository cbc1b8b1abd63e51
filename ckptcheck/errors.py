"""The errors that ckptcheck raises on purpose. A broken checkpoint is none of them: it is a finding."""

import errno


class CkptcheckError(Exception):
    """Something that the user has to change before ckptcheck can check anything. The command exits with 2.

    message: one sentence, without a full stop. hint: what to do about it, or None.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class EvidenceError(CkptcheckError):
    """Evidence exists but cannot be read (permission, I/O, network): the verdict is incomplete."""


class UsageError(CkptcheckError):
    """Options that contradict each other, have no effect, or name one file twice: no report is written, least of all there."""


class OutputError(CkptcheckError):
    """A file that the command should write cannot be written."""


def describe_shortage(error: BaseException) -> str | None:
    """Say what this process gets no more of: memory, open files, threads, temporary files; None for any other error."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM or "failed to map segment" in str(error):
        return "this process gets no more memory (ulimit -v)"
    if number in (errno.EMFILE, errno.ENFILE):
        return "this process may open no more files (ulimit -n)"
    # a stream that would block raises the same error, and says how much it wrote
    if str(error) == "can't start new thread" or (number == errno.EAGAIN and not hasattr(error, "characters_written")):
        return "this process may start no more threads and processes (ulimit -u)"
    if "No usable temporary directory" in str(error):
        return "there is no folder where temporary files can be written (TMPDIR)"
    return None

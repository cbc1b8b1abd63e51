"""The errors that ckptcheck raises on purpose. A broken checkpoint is none of them: it is a finding."""


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

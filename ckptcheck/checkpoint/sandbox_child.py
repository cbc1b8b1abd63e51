"""The child process that sandbox.py starts: renders chat templates, or loads a tokenizer.json, under hard limits.

It runs as a script and imports no package of ckptcheck. Its job is one line of JSON on stdin, followed by raw bytes. Its answer
is lines of JSON on stdout, each flushed, so that lines written before a limit ends it are kept. The jinja environment is that
of transformers 5.23 (utils/chat_template_utils.py, `_cached_compile_jinja_template`), except that the date is fixed.

The filter of system calls: seccomp(2), linux/filter.h, linux/seccomp.h, linux/audit.h; numbers of calls from the tables of Linux
6.12 (arch/x86/entry/syscalls/syscall_64.tbl, scripts/syscall.tbl).
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import datetime
import errno
import importlib
import json
import os
import re
import resource
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

TOO_LONG, NO_ROOM = 3, 4
"""Exit codes of a child whose answer is longer than MOST_OUTPUT, and of one that cannot write it."""
MOST_TEXT = 1 << 18
"""Longest rendered conversation in the answer, in characters: the probes render to a few thousand."""
MOST_OUTPUT = 1 << 25
"""Longest answer, in bytes: the system ends a child that writes more."""
MOST_NAMES, MOST_NAME = 64, 100
"""Most names of a kind that are taken from one template, and their length: a message names the first few."""
DUNDER = re.compile(r"__\w+__")
ROLE = re.compile(r"[A-Za-z][\w-]{0,30}")
FORMAT_FIELD = re.compile(r"\{[^{}]*\}")
ENCODINGS = ("unicode-escape", "raw-unicode-escape", "utf-16", "utf-32", "cp1252", "punycode", "base64")
"""Codecs to load beforehand, for Python loads each at its first use: jinja's lexer needs one, a template may ask for others."""
TODAY = datetime.datetime(2025, 1, 1)
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050001
"""What the filter returns: the call is made, or fails with EPERM."""
_CALLS = {
    # read write close poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn sched_yield mremap madvise
    # getpid exit gettimeofday getrusage sigaltstack futex clock_gettime exit_group getrandom
    "x86_64": (
        0xC000003E, (0, 1, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 39, 60, 96, 98, 131, 202, 228, 231, 318),
    ),
    "aarch64": (
        0xC00000B7,
        (63, 64, 57, 73, 62, 222, 226, 215, 214, 134, 135, 139, 124, 216, 233, 172, 93, 169, 165, 132, 98, 113, 94, 278),
    ),
}  # fmt: skip
"""Machine → its audit architecture, and the numbers of the system calls that stay allowed."""


def say(**line: Any) -> None:
    """Write one line of the answer; exit when the answer exceeds its limit."""
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except OSError as error:
        os._exit(TOO_LONG if error.errno == errno.EFBIG else NO_ROOM)


def confine(seconds: int, memory: int, *, threads: bool) -> None:
    """Limit processor time (seconds), memory (bytes), disk and, unless `threads`, processes, irrevocably.

    Where the kernel filters calls, the process can open, connect and start nothing from then on, so load libraries before.
    """
    limit(resource.RLIMIT_CPU, seconds, seconds + 1)
    limit(resource.RLIMIT_AS, memory, memory)
    limit(resource.RLIMIT_FSIZE, MOST_OUTPUT, MOST_OUTPUT)
    limit(resource.RLIMIT_CORE, 0, 0)
    if not threads:
        with contextlib.suppress(ValueError, OSError):
            limit(resource.RLIMIT_NPROC, 0, 0)
    filter_calls()


def limit(kind: int, soft: int, hard: int) -> None:
    """Limit a resource of this process, and keep a limit of its own that is lower. Raises OSError and ValueError."""
    # -1, which stands for no limit, becomes the largest number
    own_soft, own_hard = (own % (1 << 64) for own in resource.getrlimit(kind))
    resource.setrlimit(kind, (min(soft, own_soft), min(hard, own_hard)))


def filter_calls() -> None:
    """Make the kernel refuse every system call outside `_CALLS`. Where this kernel cannot filter, the limits still hold."""
    if (known := _CALLS.get(os.uname().machine)) is None:
        return
    architecture, calls = known
    # load the machine; another one (32 bits): refuse. load the number; one of the calls: allow; else refuse
    program = [(0x20, 0, 0, 4), (0x15, 0, len(calls) + 1, architecture), (0x20, 0, 0, 0)]
    program += [(0x15, len(calls) - place, 0, number) for place, number in enumerate(calls)]
    program += [(0x06, 0, 0, REFUSE), (0x06, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_void_p(ctypes.addressof(head)), 0, 0)


def words(error: BaseException) -> str:
    """Describe an error in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def environment() -> tuple[Any, type[Exception]]:
    """Return the jinja sandbox in which transformers renders chat templates, and the exception of its `raise_exception`."""
    from jinja2 import constants, debug, ext, nodes  # noqa: F401 - jinja itself would load the first two when it cannot
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Refusal(TemplateError):
        """The template's own `raise_exception`."""

    class Generation(ext.Extension):
        """``{% generation %}``, which marks the assistant's text; here its body is rendered unchanged."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_through"), [], [], body).set_lineno(line)

        def _through(self, caller: Any) -> Any:
            return caller()

    class TemplateDict:
        """`dict` without the class's attributes."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    class TemplateNamespace(Namespace):
        """A namespace that refuses names with a leading underscore."""

        # No named `self`, like jinja's own class: `namespace(self=...)` works.
        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *rest = args
            attributes = dict(*rest, **kwargs)
            for name in attributes:
                TemplateNamespace.allow(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            TemplateNamespace.allow(name)
            super().__setitem__(name, value)

        @staticmethod
        def allow(name: Any) -> None:
            if isinstance(name, str) and name.startswith("_"):
                raise SecurityError(f"a namespace takes no name such as {name!r}")

    def raise_exception(message: str) -> NoReturn:
        raise Refusal(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    for encoding in ENCODINGS:
        codecs.lookup(encoding)
    made.filters["tojson"] = tojson
    made.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": TODAY.strftime,
        "dict": TemplateDict(),
        "namespace": TemplateNamespace,
    }
    return made, Refusal


def literals(tree: Any) -> Iterable[str]:
    """Yield the text and the string constants of a parsed template."""
    from jinja2 import nodes

    for node in tree.find_all((nodes.TemplateData, nodes.Const)):
        text = node.data if isinstance(node, nodes.TemplateData) else node.value
        if isinstance(text, str) and text:
            yield text


def as_role(role: str, question: str) -> dict[str, Any]:
    """Return a conversation whose question comes from a role that only this template has."""
    messages = [{"role": role, "content": question}]
    return {"name": f"as {role}", "input": {"messages": messages, "add_generation_prompt": True, "tools": None}}


def escapes(tree: Any) -> Iterable[str]:
    """Yield the names by which a parsed template reaches for Python's machinery, or for other files."""
    from jinja2 import nodes

    for node in tree.find_all((nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Const)):
        names = []
        if isinstance(node, nodes.Getattr):
            names = [node.attr]
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            names = [node.arg.value]
        elif (
            isinstance(node, nodes.Filter)
            and node.name == "attr"
            and node.args
            and isinstance(node.args[0], nodes.Const)
        ):
            names = [node.args[0].value]
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            names = [name for field in FORMAT_FIELD.findall(node.value) for name in DUNDER.findall(field)]
        yield from (name for name in names if isinstance(name, str) and DUNDER.fullmatch(name))
    for kind in (nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends):
        yield from (f"{{% {kind.__name__.lower()} %}}" for _ in tree.find_all(kind))


def list_roles(tree: Any, known: Iterable[str]) -> list[str]:
    """Return the texts of a parsed template that may be roles other than the known ones."""
    from jinja2 import nodes

    texts = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    return [text for text in dict.fromkeys(texts) if ROLE.fullmatch(text) and text not in known][:MOST_NAMES]


def templates(job: dict[str, Any], _: bytes, library: tuple[Any, type[Exception]]) -> None:
    """Parse every template, then render each conversation with it."""
    made, refusal = library
    for name, source in job["templates"].items():
        try:
            tree = made.parse(source)
            text = "\0".join(literals(tree))
            template = made.from_string(source)
        except MemoryError:
            say(template=name, bound="memory")
            continue
        except Exception as error:  # TemplateSyntaxError, RecursionError, and whatever a hostile text provokes
            say(template=name, broken=words(error), line=getattr(error, "lineno", None))
            continue
        say(template=name, literals=text[:MOST_TEXT])
        if names := list(dict.fromkeys(escapes(tree)))[:MOST_NAMES]:
            say(template=name, escapes=[part[:MOST_NAME] for part in names])
        # only a scan tries further roles; parity renders its own prompts
        roles = list_roles(tree, job["roles"]) if "roles" in job else []
        for talk in (*job["conversations"], *(as_role(role, job["question"]) for role in roles)):
            answer: dict[str, Any] = {"template": name, "conversation": talk["name"]}
            try:
                rendered = str(template.render(**talk["input"], **job["variables"]))
            except MemoryError:
                say(**answer, bound="memory")
            except refusal as error:
                say(**answer, refused=words(error))
            except Exception as error:
                say(**answer, failed=words(error))
            else:
                say(**answer, **({"text": rendered} if len(rendered) <= MOST_TEXT else {"bound": "output"}))


def tokenizer(job: dict[str, Any], raw: bytes, tokenizers: Any) -> None:
    """Load a tokenizer.json as transformers does; encode the text `encode` of the job, and decode its ids `decode`.

    For each of the job's `steps`, put them in place of the file's and encode the texts `cut`.
    """
    try:
        loaded = tokenizers.Tokenizer.from_buffer(raw)
        if "encode" in job:
            say(ids=loaded.encode(job["encode"], add_special_tokens=False).ids)
        for ids in job.get("decode", ()):
            say(text=loaded.decode(ids, skip_special_tokens=False)[:MOST_TEXT])
        for steps in job.get("steps", ()):
            empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
            parts = {"normalizer": steps["normalizer"], "pre_tokenizer": steps["pre_tokenizer"]}
            built = tokenizers.Tokenizer.from_str(json.dumps({**empty, **parts}))
            for name in parts:
                setattr(loaded, name, getattr(built, name))
            for flag, value in steps["model"].items():
                setattr(loaded.model, flag, value)
            say(cut=[loaded.encode(text, add_special_tokens=False).tokens for text in job["cut"]])
    except MemoryError:
        say(bound="memory")
    except BaseException as error:  # a panic of the Rust code is no Exception
        say(refused=words(error), version=tokenizers.__version__)
    else:
        say(loaded=True, version=tokenizers.__version__)


def reach(*_: Any) -> None:
    """Say whether a file can still be opened: ``ckptcheck doctor`` asks."""
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError as error:
        say(refused=errno.errorcode.get(error.errno or 0, ""))


TASKS: dict[str, tuple[Callable[[], Any], Callable[..., None]]] = {
    "templates": (environment, templates),
    "tokenizer": (lambda: importlib.import_module("tokenizers"), tokenizer),
    "reach": (lambda: None, reach),
}
"""Task → what it loads before it is confined, and the task itself."""


def main() -> None:
    """Run the job on stdin."""
    job = json.loads(sys.stdin.buffer.readline())
    raw = sys.stdin.buffer.read()
    load, task = TASKS[job["task"]]
    try:
        library = load()
        confine(job["seconds"], job["memory"], threads=task is tokenizer)
    except ModuleNotFoundError as error:
        say(missing=error.name or str(error))
    except (ImportError, MemoryError, OSError, ValueError) as error:  # it cannot be mapped, or a limit cannot be set
        say(unstarted=words(error))
    else:
        task(job, raw, library)
    say(done=True)
    os._exit(0)  # the answer is written; skip finalizers, which a template may have left behind


if __name__ == "__main__":
    main()

"""The engine has a version that is known to serve wrong weights after an update.

## What it checks
- The rule compares the engine, its version, the kind of device, the architecture and the kinds of weights (tied,
  INT4, a draft model) with the reports in `runtime/engines/known_issues.toml`. Each report says where the fault was
  seen.
- For a server, the first four come from what it says of itself, and the kinds of weights from SOURCE.

## Why it matters
- These faults are silent: the update call answers success, and the first sync may be right.
- Many faults show only on the hardware or with the kernels of a job. A trial elsewhere is then clean, and the job is
  not.

## How to fix
- Do what the report says; usually, use another version.

## When it can be wrong
- A report may name a condition that ckptcheck cannot ask for (a backend, a flag). The rule then warns although
  nothing happens; a trial (`ckptcheck refit`) shows whether it does.
- ckptcheck does not know a fix that came after the report was written.

## Seen in
The issue that the message names
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.runtime.engines.known_issues import EngineIdentity, load_known_issues


@rule("REF033", "known-bad-version", severity="warning", on="engines", when=bool)
def check(engines: tuple[EngineIdentity, ...]) -> Iterator[Problem]:
    for engine in engines:
        for issue in load_known_issues():
            if issue.applies_to(engine):
                address_note = f" at {engine.address}" if engine.address else ""
                yield Problem(
                    f"{engine.engine} {engine.version}{address_note} with {engine.architecture}: {issue.what} ({issue.seen})",
                    hint=issue.instead,
                )

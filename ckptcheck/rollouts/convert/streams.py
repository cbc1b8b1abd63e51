"""Puts streamed answers together again: events as they came, one after the other, those of several requests mixed or not.

Events of one answer have one id. OpenAI's form gives what is new in each; SGLang's /generate gives all that there is so far,
unless it was started with --incremental-streaming-output. A choice is complete with its finish_reason: what comes later under the
same id is another answer. Where an event cannot be read, nothing of its answer is taken: a hole would pair tokens with
logprobs of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ckptcheck.rollouts.build import Misfit
from ckptcheck.rollouts.convert.answers import Answer, Choice, Said, Told, answer

T = TypeVar("T")
CUT = "its stream ends before the answer does"


def events(raw: bytes) -> bytes:
    """Return the JSON of a stream of server-sent events, a line for each; other content as it is."""
    if not raw.lstrip().startswith((b"data:", b"event:", b":")):
        return raw
    said = (line[5:].strip() for line in raw.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line for line in said if line and line != b"[DONE]")


@dataclass
class Group:
    """Events of one answer. seen, finished: choices. broken: why those that are not `safe` cannot be put together."""

    events: list[Answer] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    broken: Misfit | None = None
    safe: frozenset[int] = frozenset()

    @property
    def streamed(self) -> bool:
        """Whether it began with an event, and not with a whole answer."""
        return bool(self.events) and self.events[0].streamed

    @property
    def open(self) -> bool:
        """Whether more of it has to come."""
        return self.streamed and not (self.seen and self.seen <= self.finished)

    def takes(self, event: Answer) -> bool:
        """Whether an event of the same id is of this answer."""
        return self.streamed and not self.finished & event.told

    def add(self, event: Answer) -> None:
        """Add an event."""
        self.events.append(event)
        self.seen |= event.told
        self.finished |= event.finished

    def lose(self, misfit: Misfit) -> None:
        """Note that an event cannot be read. Choices that were complete before have lost nothing."""
        if self.broken is None:
            self.broken, self.safe = misfit, frozenset(self.finished)


def joined(contents: Iterable[Any]) -> list[Answer | Misfit]:
    """Put events together; everything else stays as it is and where it is. What cannot be read becomes a Misfit."""
    groups: list[Group] = []
    latest: dict[tuple[str, int], Group] = {}
    nameless: list[Group] = []
    running: list[Group] = []
    for content in contents:
        try:
            event = answer(content)
        except Misfit as misfit:
            running = [group for group in running if group.open]
            for group in running:  # it may be of any of them
                group.lose(Misfit(f"an event of its stream is lost: {misfit}"))
            if not running:
                groups.append(Group(broken=misfit))
            continue
        known = latest.get(event.key) if event.key is not None else None
        if known is not None and not event.told and not known.streamed:
            continue  # what was used, told after the last choice
        if known is not None and known.takes(event):
            group = known
        else:
            groups.append(group := Group())
            running += [group] if event.streamed else []
            if event.key is None:
                nameless.append(group)
            else:
                latest[event.key] = group
        group.add(event)
    if any(group.streamed for group in nameless):
        for group in nameless:
            group.broken = Misfit("it is of a stream whose events have no id, so that they cannot be put together")
    return [one for group in groups for one in _whole(group)]


def _whole(group: Group) -> list[Answer | Misfit]:
    """Return what a group is: one answer, and what of it cannot be had."""
    if not group.streamed:
        return [group.broken or group.events[0]]
    if group.events[0].meta_info is None:
        return _choices(group)
    return [group.broken or (_generated(group.events) if group.finished else Misfit(CUT))]


def first(values: Sequence[T | None]) -> T | None:
    """Return the first value that holds something; where none does, the first that is there at all."""
    return next((value for value in values if value), next((value for value in values if value is not None), None))


def _choices(group: Group) -> list[Answer | Misfit]:
    """Join events of OpenAI's form, choice by choice."""
    parts: dict[int, list[Choice]] = {}
    for event in group.events:
        for choice in event.choices or ():
            parts.setdefault(choice.index or 0, []).append(choice)
    complete = group.finished if group.broken is None else group.safe
    found: list[Answer | Misfit] = [group.broken or Misfit(CUT) for number in parts if number not in complete]
    if complete:
        whole = Answer(
            model=first([event.model for event in group.events]),
            prompt_token_ids=first([event.prompt_token_ids for event in group.events]),
            metadata=first([event.metadata for event in reversed(group.events)]),
            choices=[_choice(number, each) for number, each in sorted(parts.items()) if number in complete],
        )
        found.insert(0, whole)
    return found or [group.broken or Misfit(CUT)]


def _choice(number: int, parts: Sequence[Choice]) -> Choice:
    return Choice(
        index=number,
        finish_reason=first([part.finish_reason or None for part in parts]),
        prompt_token_ids=first([part.prompt_token_ids for part in parts]),
        token_ids=_chained([part.token_ids for part in parts]),
        response_token_ids=_chained([part.response_token_ids for part in parts]),
        logprobs=_said([part.logprobs for part in parts if part.logprobs is not None]),
    )


def _said(parts: Sequence[Said]) -> Said | None:
    if not parts:
        return None
    return Said(
        _chained([part.content for part in parts]),
        _chained([part.token_logprobs for part in parts]),
        _chained([part.tokens for part in parts]),
    )


def _chained(parts: Sequence[list[T] | None]) -> list[T] | None:
    """Return all that the parts have; None where none has anything, not even nothing."""
    if all(part is None for part in parts):
        return None
    return [one for part in parts for one in part or ()]


def _generated(parts: Sequence[Answer]) -> Answer | Misfit:
    """Join events of SGLang's /generate."""
    last, told = parts[-1], [part.meta_info or Told() for part in parts]
    due = told[-1].completion_tokens or 0
    if len(last.output_ids or ()) >= due:
        return last  # the last event has everything
    last.output_ids = _chained([part.output_ids for part in parts])
    told[-1].output_token_logprobs = _chained([each.output_token_logprobs for each in told])
    if len(last.output_ids or ()) < due and last.output_ids is not None:
        return Misfit(f"events of its stream are lost: it has {len(last.output_ids):,} of its {due:,} tokens")
    return last

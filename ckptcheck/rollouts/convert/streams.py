"""Joins the events of streamed answers, in the order in which they came; events of several requests may be mixed.

Events of one answer have the same id. In OpenAI's form an event holds only what is new; in SGLang's /generate it holds everything
so far, unless the server was started with --incremental-streaming-output. A choice is complete with its finish_reason: a later
event with the same id belongs to another answer. Where an event cannot be read, its whole answer is left out, because a hole would
pair tokens with logprobs of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ckptcheck.rollouts.build import UnusableSequence
from ckptcheck.rollouts.convert.answers import Answer, Choice, ChoiceLogprobs, MetaInfo, parse_answer

T = TypeVar("T")
CUT = "its stream ends before the answer does"


def events(raw: bytes) -> bytes:
    """Return the JSON of a stream of server-sent events, one line for each event; other content is returned unchanged."""
    if not raw.lstrip().startswith((b"data:", b"event:", b":")):
        return raw
    payloads = (line[5:].strip() for line in raw.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line for line in payloads if line and line != b"[DONE]")


@dataclass
class EventGroup:
    """The events of one answer, or one whole answer."""

    events: list[Answer] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """Indices of the choices that have an event."""
    finished: set[int] = field(default_factory=set)
    """Indices of the choices that are complete."""
    broken: UnusableSequence | None = None
    """Why the choices that are not `safe` cannot be joined; None where nothing is lost."""
    safe: frozenset[int] = frozenset()
    """Indices of the choices that were complete before an event was lost."""

    @property
    def streamed(self) -> bool:
        """Whether the group began with an event, and not with a whole answer."""
        return bool(self.events) and self.events[0].is_event

    @property
    def open(self) -> bool:
        """Whether more events of the answer must follow."""
        return self.streamed and not (self.seen and self.seen <= self.finished)

    def takes(self, event: Answer) -> bool:
        """Whether an event with the same id belongs to this answer."""
        return self.streamed and not self.finished & event.choice_indices

    def add(self, event: Answer) -> None:
        """Add an event of this answer."""
        self.events.append(event)
        self.seen |= event.choice_indices
        self.finished |= event.finished_choices

    def lose(self, misfit: UnusableSequence) -> None:
        """Record that an event cannot be read. Choices that were complete before stay usable."""
        if self.broken is None:
            self.broken, self.safe = misfit, frozenset(self.finished)


def join_events(contents: Iterable[Any]) -> list[Answer | UnusableSequence]:
    """Join the events of each answer, and keep whole answers in their order. What cannot be read becomes an UnusableSequence."""
    groups: list[EventGroup] = []
    latest: dict[tuple[str, int], EventGroup] = {}
    groups_without_id: list[EventGroup] = []
    open_groups: list[EventGroup] = []
    for content in contents:
        try:
            event = parse_answer(content)
        except UnusableSequence as error:
            open_groups = [group for group in open_groups if group.open]
            # the event may belong to any open answer
            for group in open_groups:
                group.lose(UnusableSequence(f"an event of its stream is lost: {error}"))
            if not open_groups:
                groups.append(EventGroup(broken=error))
            continue
        previous = latest.get(event.key) if event.key is not None else None
        if previous is not None and not event.choice_indices and not previous.streamed:
            # an event after the last choice, which reports the token usage
            continue
        if previous is not None and previous.takes(event):
            group = previous
        else:
            groups.append(group := EventGroup())
            open_groups += [group] if event.is_event else []
            if event.key is None:
                groups_without_id.append(group)
            else:
                latest[event.key] = group
        group.add(event)
    if any(group.streamed for group in groups_without_id):
        for group in groups_without_id:
            group.broken = UnusableSequence(
                "it is of a stream whose events have no id, so that they cannot be put together"
            )
    return [answer for group in groups for answer in _join_group(group)]


def _join_group(group: EventGroup) -> list[Answer | UnusableSequence]:
    """Return the answer of a group, and an UnusableSequence for each part of it that is lost."""
    if not group.streamed:
        return [group.broken or group.events[0]]
    if group.events[0].meta_info is None:
        return _join_choices(group)
    return [group.broken or (_join_generate_events(group.events) if group.finished else UnusableSequence(CUT))]


def first_nonempty(values: Sequence[T | None]) -> T | None:
    """Return the first value that is not empty; where all are empty, the first that is not None."""
    return next((value for value in values if value), next((value for value in values if value is not None), None))


def _join_choices(group: EventGroup) -> list[Answer | UnusableSequence]:
    """Join events of OpenAI's form, choice by choice."""
    parts: dict[int, list[Choice]] = {}
    for event in group.events:
        for choice in event.choices or ():
            parts.setdefault(choice.index or 0, []).append(choice)
    complete = group.finished if group.broken is None else group.safe
    answers: list[Answer | UnusableSequence] = [
        group.broken or UnusableSequence(CUT) for number in parts if number not in complete
    ]
    if complete:
        answer = Answer(
            model=first_nonempty([event.model for event in group.events]),
            prompt_token_ids=first_nonempty([event.prompt_token_ids for event in group.events]),
            metadata=first_nonempty([event.metadata for event in reversed(group.events)]),
            choices=[
                _join_choice(number, choice_parts)
                for number, choice_parts in sorted(parts.items())
                if number in complete
            ],
        )
        answers.insert(0, answer)
    return answers or [group.broken or UnusableSequence(CUT)]


def _join_choice(number: int, parts: Sequence[Choice]) -> Choice:
    return Choice(
        index=number,
        finish_reason=first_nonempty([part.finish_reason or None for part in parts]),
        prompt_token_ids=first_nonempty([part.prompt_token_ids for part in parts]),
        token_ids=_concatenate([part.token_ids for part in parts]),
        response_token_ids=_concatenate([part.response_token_ids for part in parts]),
        routed_experts=first_nonempty([part.routed_experts for part in reversed(parts)]),
        logprobs=_join_logprobs([part.logprobs for part in parts if part.logprobs is not None]),
    )


def _join_logprobs(parts: Sequence[ChoiceLogprobs]) -> ChoiceLogprobs | None:
    if not parts:
        return None
    return ChoiceLogprobs(
        _concatenate([part.content for part in parts]),
        _concatenate([part.token_logprobs for part in parts]),
        _concatenate([part.tokens for part in parts]),
    )


def _concatenate(parts: Sequence[list[T] | None]) -> list[T] | None:
    """Return the items of all parts in one list; None where every part is None."""
    if all(part is None for part in parts):
        return None
    return [item for part in parts for item in part or ()]


def _join_generate_events(parts: Sequence[Answer]) -> Answer | UnusableSequence:
    """Join events of SGLang's /generate."""
    last, meta_infos = parts[-1], [part.meta_info or MetaInfo() for part in parts]
    expected_tokens = meta_infos[-1].completion_tokens or 0
    if len(last.output_ids or ()) >= expected_tokens:
        # the last event holds the whole answer
        return last
    last.output_ids = _concatenate([part.output_ids for part in parts])
    meta_infos[-1].output_token_logprobs = _concatenate([meta_info.output_token_logprobs for meta_info in meta_infos])
    if len(last.output_ids or ()) < expected_tokens and last.output_ids is not None:
        return UnusableSequence(
            f"events of its stream are lost: it has {len(last.output_ids):,} of its {expected_tokens:,} tokens"
        )
    return last

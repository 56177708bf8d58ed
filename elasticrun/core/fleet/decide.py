"""Which replicas to start and remove: one function of what is wished, seen and remembered.

Theory. The record says which replicas are meant to run. Each that has ended is judged once: that takes it out
of the record (``fates.py``). Then the record is filled up with new indices, or cut down, and each difference
between record and sight becomes an action. Whoever carries this out keeps the record first, and only if
nobody else has changed it meanwhile; so of two who decide at the same time one has to look again.

A replica in the record that was never seen is started again, under the same index: whoever decided to start
it may have died before it did. One that was seen, and is not there any more, was deleted. (One that is
deleted without a trace before anybody saw it is taken for the former.)

A world that has lost too many of its members cannot be followed by another one, as those may train on
elsewhere (``core/membership/quorum.py``). Its master tells how many nodes are with it then. If that is as
many as run, nobody else is left who could come back to it, or train on. So these are removed, and the job
begins again, in replicas that know nothing of that world. A count that is wrong costs a beginning, which is
counted, and never gives two worlds: all replicas have ended before others start.

Agents of one job refuse one that was told other bounds. So the bounds stay those of the replicas that run,
and others hold once none of them does.

Invariants. Indices only grow, and none is used twice. At most ``max_replicas`` are meant to run or hold a
place because they still end. A decision on the same sight, with the record of the first one, starts no other
index. A job whose agents end with 0 has succeeded: nothing is replaced. While a job is suspended nothing is
started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from elasticrun.core.fleet.fates import OF_JOB, Fate, Judgement, in_words, judge, more_memory
from elasticrun.core.fleet.pauses import CALM, LOSS_CALM, forgiven, is_within, not_before_of
from elasticrun.core.fleet.replicas import (
    UNMEASURED,
    Action,
    Amounts,
    Cause,
    CleanPolicy,
    Decision,
    Live,
    Note,
    Operation,
    Phase,
    Record,
    Remove,
    Result,
    Seen,
    Start,
    Usage,
    Verdict,
    Wish,
)
from elasticrun.core.fleet.scaling import Scene, scale, wanted_of
from elasticrun.core.fleet.sizing import size, why_too_much
from elasticrun.core.fleet.story import conditions_of, hindrance, phase_of

#: Seconds for the other replicas to end by themselves, once one has said that the job is over.
OVER = 120.0
#: Seconds beyond its grace after which a replica that should be gone holds no place any more.
OVERDUE = 30.0
#: How many hosts are avoided, and how many replicas that end while the job goes on are kept for their logs.
MOST_AVOIDED, MOST_KEPT = 16, 8


def decide(
    wish: Wish,
    seen: Iterable[Seen],
    record: Record,
    now: float,
    refused: str = "",
    operations: Sequence[Operation] = (),
    usage: Usage = UNMEASURED,
    unstarted: str = "",
    stranded: int = 0,
) -> Decision:
    """Decide what to do at ``now``, in seconds of the wall clock.

    ``refused``: why the platform did not do what was decided before, to be told. ``operations``: for more or
    fewer replicas, the oldest first; those that were told to have ended may be left out. ``usage``: measured.
    ``unstarted``: why a start was refused. ``stranded``: how many replicas a master has with it that lacks
    others of the last world; 0: it lacks none.
    """
    draft = _Draft(wish, {each.index: each for each in seen}, size(wish, record, usage), now)
    draft.adopt()
    draft.judge_all()
    draft.settle(stranded)
    draft.scale(operations)
    draft.fill(unstarted)
    return draft.decision(refused)


class _Draft:
    """A decision in the making."""

    def __init__(self, wish: Wish, seen: Mapping[int, Seen], record: Record, now: float) -> None:
        self._wish = wish
        self._seen = seen
        self._now = now
        self._record = record
        self._shape = record.shape or wish.shape
        self._live = {each.index: each for each in record.live}
        self._notes: list[Note] = []
        self._removals: dict[int, str] = {}
        self._looks: list[float] = []
        self._results: tuple[Result, ...] = ()

    # -- what has happened

    def adopt(self) -> None:
        """Take in replicas that the record does not know: it was lost.

        Those that have ended only if that was the end of the job, which would else run again.
        """
        unknown = sorted(index for index in self._seen if index >= self._record.next_index)
        for index in unknown:
            seen = self._seen[index]
            if not seen.is_leaving if seen.phase is not Phase.ENDED else judge(seen).fate in OF_JOB:
                self._live[index] = Live(index, seen.slot, seen=True)
        if unknown:
            self._note("Adopted", f"replicas {_list(unknown)} are not in the record: they are taken over")
            self._change(next_index=unknown[-1] + 1)

    def judge_all(self) -> None:
        """Take what has ended, or is going to, out of what is meant to run."""
        for live in list(self._live.values()):
            seen = self._seen.get(live.index)
            if seen is None:
                if live.seen:
                    self._end(Seen(live.index, Phase.ENDED, cause=Cause.DELETED))
            elif seen.phase is Phase.ENDED or seen.is_leaving or seen.cause is Cause.HOST_LOST:
                self._end(seen)
            else:
                self._live[live.index] = replace(live, seen=True)

    def _end(self, seen: Seen) -> None:
        del self._live[seen.index]
        judgement = judge(seen)
        text = f"replica {seen.index} {judgement.text}"
        if judgement.avoid and seen.host:
            others = [host for host in self._record.avoided if host != seen.host]
            self._change(avoided=(*others, seen.host)[-MOST_AVOIDED:])
        match judgement.fate:
            case Fate.SUCCEEDED:
                self._conclude(Verdict.SUCCEEDED, f"replica {seen.index} ended with 0")
            case Fate.JOB_FAILED:
                self._conclude(Verdict.FAILED, text)
            case Fate.AGAIN:
                self._conclude(Verdict.AGAIN, text)
            case Fate.DRAINED:
                self._change(drained_at=self._now)
                self._note("Left", text)
            case Fate.HOPELESS:
                self._halt(text)
            case _:
                self._replace(seen, judgement, text)

    def _replace(self, seen: Seen, judgement: Judgement, text: str) -> None:
        self._note("Lost", text, is_warning=True)
        self._change(drained_at=None)
        if judgement.fate is Fate.MORE_MEMORY:
            memory, cap = more_memory(self._wish, self._record.memory, seen)
            if seen.memory >= cap:
                self._halt(f"{text}, and there may be no more than {in_words(cap)}")
            elif memory != self._record.memory:
                self._note("MoreMemory", f"new replicas get {in_words(memory)}, as one had too little")
                self._change(memory=memory)
        if judgement.fate is not Fate.FREE:
            self._count(text)
            return
        is_row = is_within(LOSS_CALM, self._record.lost_at, self._now)
        self._change(losses=self._record.losses + 1 if is_row else 1, lost_at=self._now)

    def _count(self, text: str) -> None:
        """Spend a replacement."""
        is_row = is_within(CALM, self._record.failed_at, self._now)
        streak = self._record.streak + 1 if is_row else 1
        self._change(failures=self._record.failures + 1, streak=streak, failed_at=self._now)
        if self._record.failures > self._wish.max_failures:
            self._halt(f"{text}, and {self._wish.max_failures} replacements were spent")

    def _halt(self, why: str) -> None:
        if not self._record.halted:
            self._change(halted=why)
            self._note("NotReplaced", f"nothing is replaced any more: {why}", is_warning=True)

    def _conclude(self, verdict: Verdict, why: str) -> None:
        """What was known first stands; but an end with 0 proves that all is done."""
        known = self._record.verdict
        if known is not verdict and (known in (None, Verdict.AGAIN) or verdict is Verdict.SUCCEEDED):
            self._change(verdict=verdict, why=why, since=self._now)
            self._note(verdict.value, why, is_warning=verdict is not Verdict.SUCCEEDED)

    # -- what follows for the job

    def settle(self, stranded: int) -> None:
        """Conclude from what still runs, or that nothing does."""
        running = sum(each.phase is Phase.RUNNING for each in self._seen.values())
        if 0 < running <= stranded and self._record.verdict is None and not self._wish.suspended:
            self._conclude(Verdict.AGAIN, f"too few of the last world are left among the {running} that run")
            self._drop(self._live, "the job begins again")
        is_given_up = self._record.halted and self._record.verdict is None
        are_too_few = len(self._live) < self._shape.min_replicas and not _running(self._seen, self._live)
        if is_given_up and are_too_few:
            # These are too few, and no others are started: they could only wait for ever.
            self._drop(self._live, "nothing is replaced any more, and none runs")
        are_held = self._holding() > 0
        # If others go on after that time, who found too few was cut off from them, and is replaced alone.
        was_cut_off = self._now >= self._record.since + OVER and _running(self._seen, self._live) > 0
        if self._record.verdict is Verdict.AGAIN and (not are_held or was_cut_off):
            why = self._record.why
            self._change(verdict=None, why="")
            self._count(why)
        if are_held:
            self._change(shape=self._shape)
            return
        self._shape = self._wish.shape
        self._change(shape=None)
        if self._record.verdict is not None or self._wish.suspended:
            return
        if self._record.halted:
            self._conclude(Verdict.FAILED, self._record.halted)
        elif self._record.drained_at is not None:
            self._conclude(Verdict.STOPPED, "every replica was told to leave, and did")

    def scale(self, operations: Sequence[Operation]) -> None:
        """Take operations for more or fewer replicas one step further."""
        over = "the job is suspended" if self._wish.suspended else ""
        over = over if self._record.verdict is None else "the job is over"
        scene = Scene(self._shape, self._live, _running(self._seen, self._live), self._holding(), over)
        scaled = scale(self._wish, self._record, operations, scene, self._now)
        if scaled.record.scaling is not None:
            self._looks.append(scaled.record.scaling.until)
        self._record, self._results = scaled.record, scaled.results
        self._drop(scaled.leaving, "it was asked to leave")

    def fill(self, unstarted: str) -> None:
        """Bring what is meant to run to the number that is wanted.

        Nothing is requested by what was measured any more, if that may be why a replica does not run.
        """
        is_over = self._record.verdict not in (None, Verdict.AGAIN)
        if self._wish.suspended and not is_over:
            self._drop(self._live, "the job is suspended")
            self._record = forgiven(self._record)
        elif self._record.verdict is not None:
            self._finish()
        else:
            if why := why_too_much(self._record, self._seen.values(), unstarted):
                self._note("NotSized", f"nothing is requested by what was measured any more: {why}")
                self._change(requests=Amounts(), unsized=why)
                homeless = [index for index, seen in self._seen.items() if seen.is_homeless]
                self._drop(self._live.keys() & homeless, "it finds no host with what it requests")
            wanted = wanted_of(self._wish, self._shape, self._record)
            surplus = sorted(self._live.values(), key=_least_needed)[: max(0, len(self._live) - wanted)]
            self._drop([each.index for each in surplus], f"{wanted} replicas are wanted")
            self._start(wanted)
        if is_over and self._wish.clean is CleanPolicy.NONE:
            return
        kept = len(self._seen) if is_over else MOST_KEPT
        if is_over and not self._live and self._wish.clean is CleanPolicy.ALL:
            kept = 0
        for index in _old(self._seen.values(), kept):
            self._removals.setdefault(index, "it has ended")
        for index, seen in self._seen.items():
            is_there = seen.phase is not Phase.ENDED or seen.lingers
            if index not in self._live and is_there and not seen.is_leaving:
                self._removals.setdefault(index, "it is not meant to run")

    def _finish(self) -> None:
        """The job is over: let the others end by themselves for a while."""
        keeps = self._wish.clean is CleanPolicy.NONE and self._record.verdict is not Verdict.AGAIN
        idle = [index for index, each in self._live.items() if not each.seen]
        if not keeps:
            begun = {index for index, each in self._seen.items() if each.phase is not Phase.PENDING}
            idle = [index for index in self._live if index not in begun]
        self._drop(idle, "the job is over")
        if not self._live:
            return
        over = self._record.since + OVER
        if self._now < over:
            self._looks.append(over)
        elif not keeps:
            self._drop(self._live, "the job is over, and it did not end by itself")
        else:
            self._live.clear()

    def _start(self, wanted: int) -> None:
        missing = min(wanted - len(self._live), self._shape.max_replicas - self._holding())
        if missing <= 0 or self._record.halted:
            return
        not_before = not_before_of(self._record, self._wish.grace, self._shape.max_replicas)
        if not_before is not None and self._now < not_before:
            self._looks.append(not_before)
            return
        free, kept = self._slots()
        missing = max(0, missing - kept)
        if not missing:
            return
        first = self._record.next_index
        for index in range(first, first + missing):
            self._live[index] = Live(index, free.pop(0) if free else -1)
        memory = f" with {in_words(self._record.memory)}" if self._record.memory else ""
        self._note("Started", f"replicas {_list(range(first, first + missing))}{memory}")
        self._change(next_index=first + missing, drained_at=None, shape=self._shape)

    def _slots(self) -> tuple[list[int], int]:
        """The slots that are free; and how many will be, once those that have them now have ended."""
        taken = {each.slot for each in self._live.values()}
        free = [slot for slot in range(self._shape.slots) if slot not in taken]
        others = [seen for index, seen in self._seen.items() if index not in self._live]
        busy = {seen.slot for seen in others if self._holds_place(seen)}
        return [slot for slot in free if slot not in busy], len(busy.intersection(free))

    def _holding(self) -> int:
        """How many replicas are meant to run, or still end and will be gone soon."""
        others = [seen for index, seen in self._seen.items() if index not in self._live]
        return len(self._live) + sum(map(self._holds_place, others))

    def _holds_place(self, seen: Seen) -> bool:
        if (seen.phase is Phase.ENDED and not seen.lingers) or seen.cause is Cause.HOST_LOST:
            return False
        if seen.leaves_by is None:
            return True
        over = seen.leaves_by + OVERDUE
        if self._now < over:
            self._looks.append(over)
        return self._now < over

    # -- removal

    def _drop(self, indices: Iterable[int], why: str) -> None:
        gone = sorted(indices)
        for index in gone:
            del self._live[index]
            if index in self._seen:
                self._removals[index] = why
        if gone:
            self._note("Removed", f"replicas {_list(gone)}: {why}")

    # -- the result

    def decision(self, refused: str) -> Decision:
        """What came out."""
        record = replace(self._record, live=tuple(self._live[index] for index in sorted(self._live)))
        starts = [
            Start(each.index, each.slot, record.memory, record.avoided, self._shape, record.requests)
            for each in record.live
            if each.index not in self._seen
        ]
        removals = [Remove(index, why) for index, why in sorted(self._removals.items())]
        actions: tuple[Action, ...] = (*removals, *starts)
        running = _running(self._seen, self._live)
        phase = phase_of(self._wish.suspended, self._shape, record, running, self._holding())
        hindered = hindrance(record, self._seen, refused)
        conditions = conditions_of(self._wish.shape, self._shape, record, running, phase, hindered)
        return Decision(
            record,
            actions,
            phase,
            conditions,
            tuple(self._notes),
            min(self._looks, default=None),
            running,
            0 if self._wish.suspended else wanted_of(self._wish, self._shape, record),
            self._results,
        )

    def _note(self, reason: str, text: str, is_warning: bool = False) -> None:
        self._notes.append(Note(reason, text, is_warning))

    def _change(self, **fields: object) -> None:
        self._record = replace(self._record, **fields)  # type: ignore[arg-type] # mypy cannot know the names


def _running(seen: Mapping[int, Seen], live: Mapping[int, Live]) -> int:
    return sum(each.phase is Phase.RUNNING for each in seen.values() if each.index in live)


def _old(seen: Iterable[Seen], kept: int) -> list[int]:
    """What has ended and is not kept for its logs: all but the newest."""
    ended = sorted((each.index, each.is_leaving) for each in seen if each.phase is Phase.ENDED)
    return [index for index, is_leaving in ended[: max(0, len(ended) - kept)] if not is_leaving]


def _least_needed(live: Live) -> tuple[bool, int]:
    """The newest go first, those with a name of their own last."""
    return live.slot >= 0, -live.index


def _list(indices: Iterable[int]) -> str:
    return ", ".join(map(str, indices))

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
counted. It gives no two worlds: all that the platform may still run is counted, and has ended before.

Agents of one job refuse one that was told other bounds. So the bounds, and the roles, stay those of the
replicas that run, and others hold once none of them does.

Each role of a job is filled up, sized, and given up by itself (``roles.py``): its replicas have its slots,
and what fails is counted against it. What a replica proves of the whole job it proves in any role.

Invariants. Indices only grow, and none is used twice, by no other role either. Of each role at most as many
as it may have are meant to run or hold a place because they still end. A decision on the same sight, with the
record of the first one, starts no other index. A job whose agents end with 0 has succeeded: nothing is
replaced. While a job is suspended nothing is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from elasticrun.core.fleet.cleaning import unwanted
from elasticrun.core.fleet.fates import OF_JOB, Fate, Judgement, in_words, judge, more_memory
from elasticrun.core.fleet.pauses import CALM, LOSS_CALM, is_within, not_before_of
from elasticrun.core.fleet.places import Places, live_of, running_among
from elasticrun.core.fleet.replicas import (
    UNMEASURED,
    Action,
    Amounts,
    Cause,
    CleanPolicy,
    Count,
    Decision,
    Live,
    Note,
    Operation,
    Phase,
    Record,
    Remove,
    Result,
    Seen,
    Usage,
    Verdict,
    Wish,
)
from elasticrun.core.fleet.roles import (
    bounds_of,
    forgiven,
    names_of,
    of,
    role_of,
    slots_of,
    start_of,
    tally_of,
    why_halted,
    with_tally,
)
from elasticrun.core.fleet.scaling import Scene, granted_of, least_needed, scale
from elasticrun.core.fleet.sizing import size, why_too_much
from elasticrun.core.fleet.story import hindrance, story_of

#: Seconds for the other replicas to end by themselves, once one has said that the job is over.
OVER = 120.0
#: How many hosts are avoided.
MOST_AVOIDED = 16


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
        names = names_of(self._shape)
        self._live = {each.index: each for each in record.live if each.role in names}
        if not self._shape.roles:  # whatever is seen then has the only role
            named = {index: replace(each, role="") for index, each in seen.items() if each.role}
            self._seen = {**seen, **named}
        self._places = Places(self._seen, now)
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
        names = names_of(self._shape)
        for index in unknown:
            seen = self._seen[index]
            if seen.role not in names:
                continue  # it is not meant to run
            if not seen.is_leaving if seen.phase is not Phase.ENDED else judge(seen).fate in OF_JOB:
                self._live[index] = Live(index, seen.slot, seen=True, role=seen.role)
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
        role = self._live.pop(seen.index).role
        judgement = judge(seen)
        text = f"replica {seen.index}{of(role)} {judgement.text}"
        if judgement.avoid and seen.host:
            others = [host for host in self._record.avoided if host != seen.host]
            self._change(avoided=(*others, seen.host)[-MOST_AVOIDED:])
        match judgement.fate:
            case Fate.SUCCEEDED:
                self._conclude(Verdict.SUCCEEDED, f"replica {seen.index}{of(role)} ended with 0")
            case Fate.JOB_FAILED:
                self._conclude(Verdict.FAILED, text)
            case Fate.AGAIN:
                self._conclude(Verdict.AGAIN, text)
            case Fate.DRAINED:
                self._change(drained_at=self._now)
                self._note("Left", text)
            case Fate.HOPELESS:
                self._halt(role, text)
            case _:
                self._replace(role, seen, judgement, text)

    def _replace(self, role: str, seen: Seen, judgement: Judgement, text: str) -> None:
        self._note("Lost", text, is_warning=True)
        self._change(drained_at=None)
        if judgement.fate is Fate.MORE_MEMORY:
            given = tally_of(self._record, role).memory
            memory, cap = more_memory(role_of(self._wish, self._shape, role), given, seen)
            if seen.memory >= cap:
                self._halt(role, f"{text}, and there may be no more than {in_words(cap)}")
            elif memory != given:
                whose, amount = of(role), in_words(memory)
                self._note("MoreMemory", f"new replicas{whose} get {amount}, as one had too little")
                self._tell(role, memory=memory)
        if judgement.fate is not Fate.FREE:
            self._count(role, text)
            return
        tally = tally_of(self._record, role)
        is_row = is_within(LOSS_CALM, tally.lost_at, self._now)
        self._tell(role, losses=tally.losses + 1 if is_row else 1, lost_at=self._now)

    def _count(self, role: str, text: str) -> None:
        """Spend a replacement of a role, or of the whole job."""
        tally, most = tally_of(self._record, role), role_of(self._wish, self._shape, role).max_failures
        is_row = is_within(CALM, tally.failed_at, self._now)
        streak, failures = tally.streak + 1 if is_row else 1, tally.failures + 1
        self._tell(role, failures=failures, streak=streak, failed_at=self._now)
        if failures > most:
            self._halt(role, f"{text}, and {most} replacements were spent")

    def _halt(self, role: str, why: str) -> None:
        if not tally_of(self._record, role).halted:
            self._tell(role, halted=why)
            self._note("NotReplaced", f"nothing{of(role)} is replaced any more: {why}", is_warning=True)

    def _conclude(self, verdict: Verdict, why: str) -> None:
        """What was known first stands; but an end with 0 proves that all is done."""
        known = self._record.verdict
        if known is not verdict and (known in (None, Verdict.AGAIN) or verdict is Verdict.SUCCEEDED):
            self._change(verdict=verdict, why=why, since=self._now)
            self._note(verdict.value, why, is_warning=verdict is not Verdict.SUCCEEDED)

    # -- what follows for the job

    def settle(self, stranded: int) -> None:
        """Conclude from what still runs, or that nothing does."""
        told, is_open = self._record.drained_at, self._record.verdict is None and not self._wish.suspended
        until = None if told is None else told + self._wish.grace
        if is_open and self._places.are_alone(self._live, stranded, until):
            self._conclude(Verdict.AGAIN, f"too few of the last world are left among the {stranded} that run")
            self._change(drained_at=None)  # some were told to leave, and not all
            self._drop(self._live, "the job begins again")
        given_up = why_halted(self._record) if self._record.verdict is None else ""
        least = {name: bounds_of(self._shape, name).least for name in names_of(self._shape)}
        are_too_few = any(len(live_of(self._live, name)) < count for name, count in least.items())
        if given_up and are_too_few and not running_among(self._seen, self._live):
            # These are too few, and no others are started: they could only wait for ever.
            self._change(halted=given_up)
            self._drop(self._live, "nothing is replaced any more, and none runs")
        are_held = self._places.holding(self._live) > 0
        # If others go on after that time, who found too few was cut off from them, and is replaced alone.
        was_cut_off = self._now >= self._record.since + OVER and running_among(self._seen, self._live) > 0
        if self._record.verdict is Verdict.AGAIN and (not are_held or was_cut_off):
            why = self._record.why
            self._change(verdict=None, why="")
            self._count("", why)
        if are_held:
            self._change(shape=self._shape)
            return
        self._shape = self._wish.shape
        names = names_of(self._shape)
        self._change(shape=None, tallies=tuple(it for it in self._record.tallies if it.role in names))
        if self._record.verdict is not None or self._wish.suspended:
            return
        if halted := why_halted(self._record):
            self._conclude(Verdict.FAILED, halted)
        elif self._record.drained_at is not None:
            self._conclude(Verdict.STOPPED, "every replica was told to leave, and did")

    def scale(self, operations: Sequence[Operation]) -> None:
        """Take operations for more or fewer replicas one step further."""
        over = "the job is suspended" if self._wish.suspended else ""
        over = over if self._record.verdict is None else "the job is over"
        scenes = {}
        for name in names_of(self._shape):
            live, holding = live_of(self._live, name), self._places.holding(self._live, name)
            bounds, running = bounds_of(self._shape, name), running_among(self._seen, live)
            scenes[name] = Scene(bounds, live, running, holding, over)
        scaled = scale(self._wish, self._shape, self._record, operations, scenes, self._now)
        if scaled.record.scaling is not None:
            self._looks.append(scaled.record.scaling.until)
        self._record, self._results = scaled.record, scaled.results
        self._drop(scaled.leaving, "it was asked to leave")

    def fill(self, unstarted: str) -> None:
        """Bring what is meant to run of each role to the number that is wanted, and remove the rest."""
        is_over = self._record.verdict not in (None, Verdict.AGAIN)
        if self._wish.suspended and not is_over:
            self._drop(self._live, "the job is suspended")
            self._change(drained_at=None)
            self._record = forgiven(self._record)
        elif self._record.verdict is not None:
            self._finish()
        else:
            if self._wish.share is not None and self._wish.share.replicas == 0:
                self._change(drained_at=None)  # it has not stopped, it waits
            for name in names_of(self._shape):
                self._fill(name, unstarted)
        for index, why in unwanted(self._seen, self._live, self._wish.clean, is_over).items():
            self._removals.setdefault(index, why)

    def _fill(self, role: str, unstarted: str) -> None:
        """Nothing is requested by what was measured any more, if that may be why a replica does not run."""
        live = live_of(self._live, role)
        seen = [each for index, each in self._seen.items() if live.get(index) or each.role == role]
        if why := why_too_much(tally_of(self._record, role), seen, unstarted):
            self._note("NotSized", f"nothing{of(role)} is requested by what was measured any more: {why}")
            self._tell(role, requests=Amounts(), unsized=why)
            homeless = [each.index for each in seen if each.is_homeless]
            self._drop(live.keys() & homeless, "it finds no host with what it requests")
        live = live_of(self._live, role)
        wanted = granted_of(self._wish, self._shape, self._record, role, len(live))
        self._drop(least_needed(live.values(), wanted), f"{wanted} replicas{of(role)} are wanted")
        self._start(role, wanted)

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

    def _start(self, role: str, wanted: int) -> None:
        most, tally = bounds_of(self._shape, role).most, tally_of(self._record, role)
        missing = wanted - len(live_of(self._live, role))
        missing = min(missing, most - self._places.holding(self._live, role))
        if missing <= 0 or self._record.halted or tally.halted:
            return
        tallies = tally, tally_of(self._record, "")
        not_before = not_before_of(tallies, self._record.drained_at, self._wish.grace, most)
        if not_before is not None and self._now < not_before:
            self._looks.append(not_before)
            return
        free, kept = self._places.slots(self._live, slots_of(self._shape, role))
        missing = max(0, missing - kept)
        if not missing:
            return
        first = self._record.next_index
        for index in range(first, first + missing):
            self._live[index] = Live(index, free.pop(0) if free else -1, role=role)
        memory = f" with {in_words(tally.memory)}" if tally.memory else ""
        self._note("Started", f"replicas {_list(range(first, first + missing))}{of(role)}{memory}")
        self._change(next_index=first + missing, drained_at=None, shape=self._shape)

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
        starts = [start_of(each, self._shape, record) for each in record.live if each.index not in self._seen]
        removals = [Remove(index, why) for index, why in sorted(self._removals.items())]
        actions: tuple[Action, ...] = (*removals, *starts)
        counts = [self._counted(name) for name in names_of(self._shape)]
        holding = self._places.holding(self._live)
        told = self._shape, record, counts, holding
        phase, conditions = story_of(self._wish, *told, hindrance(record, self._seen, refused))
        return Decision(
            record,
            actions,
            phase,
            conditions,
            tuple(self._notes),
            min([*self._looks, *self._places.looks], default=None),
            sum(it.running for it in counts),
            sum(it.wanted for it in counts),
            self._results,
            tuple(counts) if self._shape.roles else (),
            None if self._wish.share is None else holding,
        )

    def _counted(self, role: str) -> Count:
        live = live_of(self._live, role)
        granted = granted_of(self._wish, self._shape, self._record, role, len(live))
        return Count(role, running_among(self._seen, live), 0 if self._wish.suspended else granted)

    def _note(self, reason: str, text: str, is_warning: bool = False) -> None:
        self._notes.append(Note(reason, text, is_warning))

    def _tell(self, role: str, **fields: object) -> None:
        """Remember something of a role."""
        tally = replace(tally_of(self._record, role), **fields)  # type: ignore[arg-type] # as below
        self._record = with_tally(self._record, tally)

    def _change(self, **fields: object) -> None:
        self._record = replace(self._record, **fields)  # type: ignore[arg-type] # mypy cannot know the names


def _list(indices: Iterable[int]) -> str:
    return ", ".join(map(str, indices))

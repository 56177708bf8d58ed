"""Any dataset, any worlds one after the other, stopped anywhere: each sample is taken once, and proven so.

The trainings here are played with what ranks are told to take next, and every sample that a rank gets is
written down. So what the positions and the audit claim is compared with what happened.
"""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from elasticrun.core.data.audit import Commit, audit
from elasticrun.core.data.batches import parts, places_of_parts
from elasticrun.core.data.course import Course
from elasticrun.core.data.order import Order, Source
from elasticrun.core.data.position import Position, places_of, samples_left
from elasticrun.core.protocol.commits import CommitId

SOURCES = st.builds(Source, st.integers(1, 70), st.integers(-3, 3), st.booleans())
#: Ranks of a world, and after how many of its steps it is stopped.
ROUNDS = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 12)), min_size=1, max_size=8)
BATCHES = st.integers(1, 5)


@dataclass
class Training:
    """One job, all ranks of it."""

    source: Source
    drop_last: bool = False
    taken: list[tuple[int, int]] = field(default_factory=list)  # (epoch, place) in the order of time
    commits: list[Commit] = field(default_factory=list)
    state: bytes = b""  # after the last commit
    rounds: int = 0

    def start(self, world: int) -> list[Course]:
        courses = [Course(Position(self.source), world, rank) for rank in range(world)]
        for course in courses:
            if self.state:
                course.load(pickle.loads(self.state))
            course.begin()
        self.rounds += 1
        return courses

    def commit(self, courses: list[Course]) -> None:
        positions = tuple(course.position for course in courses)
        self.state = pickle.dumps(courses[-1].state())
        self.commits.append(Commit(CommitId(self.rounds, len(self.commits)), positions))

    def run(self, world: int, steps: int, batch: int) -> None:
        """Train so many steps of equal batches; the last step is lost with the workers."""
        courses = self.start(world)
        for step in range(steps + 1):
            position = courses[0].position
            at, epoch = position.at, position.epoch
            left = samples_left(self.source.length, at, world, self.drop_last)
            count = min(batch, left)
            taken = [(epoch, place) for rank in range(world) for place in places_of(rank, at, count, world)]
            for course in courses:
                if count:
                    course.take(count * world, world)
                else:
                    course.end()
                    course.begin()
            if step < steps:
                self.taken += taken
                self.commit(courses)

    def run_steps(self, world: int, steps: int, size: int, micro: int) -> None:
        """The same with steps of a constant size."""
        courses = self.start(world)
        for _ in range(steps):
            position = courses[0].position
            samples = min(size, self.source.length - position.at)
            for course in courses:
                if not samples:
                    course.end()
                    course.begin()
                    continue
                found = parts(samples, world, course.rank, micro)
                for part, places in zip(
                    found, places_of_parts(position.at, samples, world, course.rank, found), strict=True
                ):
                    self.taken += [(position.epoch, place) for place in places if part.scale]
                course.take(samples, size)
            self.commit(courses)

    def check(self) -> None:
        """Each sample once, but for padding beyond the length and what was dropped; and the audit says so."""
        length, final = self.source.length, self.commits[-1].positions[0]
        assert set(Counter(self.taken).values()) <= {1}
        for epoch in range(final.epoch + 1):
            places = {place for e, place in self.taken if e == epoch}
            assert places == set(range(len(places)))
            over = epoch < final.epoch
            world_at_end = 7  # the largest
            if over and self.drop_last:
                assert length - world_at_end < len(places) <= length
            elif over:
                assert length <= len(places) < length + world_at_end
        found = audit(self.commits)
        assert found.is_exact, found
        counted = {each.epoch: each.samples + each.padding for each in found.epochs}
        assert {e: n for e, n in counted.items() if n} == dict(Counter(epoch for epoch, _ in self.taken))


@given(SOURCES, ROUNDS, BATCHES, st.booleans())
def test_each_sample_is_taken_once_whatever_the_worlds(
    source: Source, rounds: list[tuple[int, int]], batch: int, drop_last: bool
) -> None:
    if drop_last:
        rounds = [(world, steps) for world, steps in rounds if world <= source.length] or [(1, 3)]
    training = Training(source, drop_last)
    for world, steps in rounds:
        training.run(world, steps, batch)
    if training.commits:
        training.check()


@given(SOURCES, ROUNDS, st.integers(7, 20), st.integers(1, 6))
def test_steps_of_a_constant_size_have_the_same_samples_in_any_worlds(
    source: Source, rounds: list[tuple[int, int]], size: int, micro: int
) -> None:
    changing, alone = Training(source), Training(source)
    for world, steps in rounds:
        changing.run_steps(world, steps, size, micro)
        alone.run_steps(1, steps, size, size)
    assert sorted(changing.taken) == sorted(alone.taken)
    ends = [[commit.positions[0].places for commit in each.commits] for each in (changing, alone)]
    assert ends[0] == ends[1]
    if changing.commits:
        changing.check()


@given(SOURCES, st.integers(0, 3), st.integers(1, 7), st.integers(1, 7))
def test_a_global_batch_has_the_same_samples_for_worlds_that_divide_it(
    source: Source, epoch: int, world: int, batch: int
) -> None:
    order = Order(source, epoch)
    places = [place for rank in range(world) for place in places_of(rank, 0, batch, world)]
    assert sorted(order.indices(places)) == sorted(order.indices(range(batch * world)))


@given(
    SOURCES,
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(-9, 9)), min_size=2, max_size=8),
)
def test_planted_duplicates_and_gaps_are_found_and_nothing_else(
    source: Source, rounds: list[tuple[int, int, int]]
) -> None:
    """Each round begins some places away from where the round before has ended, within the first epoch."""
    counts: Counter[int] = Counter()
    commits, at = [], 0
    for number, (world, samples, off) in enumerate(rounds):
        begin = max(0, at + off) if number else 0
        position = Position(source).advance(begin, 1).resume()
        position = position.advance(samples * world, world)
        counts.update(range(begin, position.at))
        commits.append(Commit(CommitId(number, number), (position,) * world))
        at = position.at
    found = audit(commits)
    order, due = Order(source, 0), min(at, source.length)
    missing = [order.index(place) for place in range(due) if not counts[place]]
    repeated = [order.index(place) for place in range(source.length) if counts[place] > 1]
    (epoch,) = found.epochs
    assert (epoch.missing.count, epoch.missing.first) == (len(missing), tuple(missing[:5]))
    assert (epoch.repeated.count, epoch.repeated.first) == (len(repeated), tuple(repeated[:5]))
    assert found.is_exact == (not missing and not repeated)


@given(SOURCES, st.integers(2, 5), st.lists(st.integers(0, 6), min_size=5, max_size=5), st.data())
def test_ranks_that_took_unequal_numbers_are_counted_one_by_one(
    source: Source, world: int, steps: list[int], data: st.DataObject
) -> None:
    block = data.draw(st.integers(world, 2 * world))
    positions = [Position(source).advance(steps[rank] * block, world, block) for rank in range(world)]
    found = audit([Commit(CommitId(0, 1), tuple(positions))])
    taken = {
        place
        for rank in range(world)
        for first in range(0, steps[rank] * block, block)
        for place in range(first + rank, first + block, world)
    }
    due = min(positions[0].at, source.length)
    assert sum(each.missing.count for each in found.epochs) == len(set(range(due)) - taken)
    assert bool(found.problems) == (len(set(steps[:world])) > 1)

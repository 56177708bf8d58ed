"""The soak's book, from lines as the digits print them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.ledger import Ledger, useful


def begin(ledger: Ledger, moment: float, launcher: str, world: int, done: int) -> None:
    ledger.line(launcher, moment, f"rank 0 of {world}: pid 7 on cpu, {done} of 90 epochs done before")


def epochs(ledger: Ledger, moment: float, launcher: str, *numbers: int) -> None:
    for number in numbers:
        ledger.line(launcher, moment + number, f"epoch {number} loss 0.5")


def test_an_epoch_that_is_trained_again_is_kept_once() -> None:
    ledger = Ledger()
    begin(ledger, 0, "a", 2, 0)
    epochs(ledger, 0, "a", 1, 2, 3)
    begin(ledger, 10, "b", 1, 2)
    epochs(ledger, 10, "b", 3, 4)
    assert ledger.kept() == {2: 2, 1: 2}
    assert ledger.repeated() == 1
    assert ledger.done == 4


def test_an_epoch_that_was_saved_and_not_printed_is_kept() -> None:
    ledger = Ledger()
    begin(ledger, 0, "a", 2, 0)
    epochs(ledger, 0, "a", 1)
    begin(ledger, 10, "a", 1, 2)
    assert ledger.kept() == {2: 2}


def test_a_round_may_throw_away_what_several_rounds_had_done() -> None:
    ledger = Ledger()
    begin(ledger, 0, "a", 2, 0)
    begin(ledger, 10, "a", 1, 3)
    begin(ledger, 20, "a", 2, 5)
    begin(ledger, 30, "b", 1, 1)
    epochs(ledger, 30, "b", 2)
    assert ledger.kept() == {2: 1, 1: 1}
    begin(ledger, 40, "a", 2, 4)
    assert ledger.kept() == {2: 1, 1: 3}


def test_late_lines_of_an_old_world_are_not_the_new_rounds() -> None:
    ledger = Ledger()
    begin(ledger, 0, "a", 2, 0)
    begin(ledger, 10, "b", 1, 0)
    epochs(ledger, 20, "a", 1, 2)
    assert ledger.kept() == Counter()
    assert ledger.done == 0
    assert ledger.first_epoch(5, new_round=True) is None
    assert ledger.first_epoch(5, new_round=False) == 21


def test_the_pace_is_the_median_within_rounds() -> None:
    ledger = Ledger()
    begin(ledger, 0, "a", 2, 0)
    epochs(ledger, 0, "a", 1, 2, 3, 9)
    begin(ledger, 50, "a", 1, 9)
    epochs(ledger, 50, "a", 10, 12)
    assert ledger.pace() == {2: 1, 1: 2}
    assert useful({2: 10, 1: 3}, ledger.pace()) == 16


def test_the_longest_pause_counts_from_the_fault_on() -> None:
    ledger = Ledger()
    begin(ledger, 0, "a", 2, 0)
    epochs(ledger, 0, "a", 1, 9, 10)
    begin(ledger, 12, "b", 1, 10)
    epochs(ledger, 5, "b", 11)
    assert ledger.longest_pause(8.5) == 6
    assert ledger.longest_pause(2) == 7
    assert ledger.longest_pause(20) == 0


@pytest.mark.parametrize(
    ("text", "accuracy"), [("test accuracy 0.9917", 0.9917), ("rank 1 of 2: pid 3", None)]
)
def test_the_accuracy(text: str, accuracy: float | None) -> None:
    ledger = Ledger()
    ledger.line("a", 1, text)
    assert ledger.accuracy == accuracy

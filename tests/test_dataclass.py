"""Classes of elasticrun.dataclass beside the same ones of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from elasticrun.dataclass import dataclass, is_frozen

T = TypeVar("T")


def make(decorate: Any) -> Any:
    """A base, and a class with every kind of field."""

    @decorate(frozen=True, slots=True)
    class Base:
        first: int

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("negative")

    @decorate(frozen=True, slots=True)
    class Whole(Base):
        second: str = "two"
        third: list[int] = field(default_factory=list, compare=False)
        secret: str = field(default="", repr=False)

    return Whole


Ours, Theirs = make(dataclass), make(dataclasses.dataclass)


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, "b"), {"secret": "s"}), ((), {"first": 3, "third": [4]}), ((1, "b", [2], "c"), {})],
)
def test_instances_are_as_those_of_the_standard_library(args: Any, kwargs: Any) -> None:
    ours, theirs = Ours(*args, **kwargs), Theirs(*args, **kwargs)
    assert repr(ours) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert hash(ours) == hash(theirs)
    assert ours == Ours(*args, **kwargs)
    assert ours == replace(ours, third=[9]), "a field that is not compared"
    assert ours != replace(ours, secret="another")
    assert ours != theirs
    assert ours.third is not Ours(1).third


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1,), {"first": 1}), ((1,), {"fourth": 4})])
def test_wrong_arguments_are_refused_in_the_same_words(args: Any, kwargs: Any) -> None:
    words = []
    for each in (Ours, Theirs):
        with pytest.raises(TypeError) as refused:
            each(*args, **kwargs)
        words.append(str(refused.value).rpartition("__init__")[2])
    assert words[0] == words[1]


def test_what_comes_after_the_fields_is_called() -> None:
    with pytest.raises(ValueError, match="negative"):
        Ours(-1)


def test_nothing_can_be_changed() -> None:
    pair = Pair(1)
    for name in ("left", "another"):
        with pytest.raises(FrozenInstanceError, match=f"cannot change {name} of a Pair"):
            setattr(pair, name, 2)
    with pytest.raises(FrozenInstanceError):
        del pair.left
    assert not hasattr(pair, "__dict__")


def test_instances_travel_and_match() -> None:
    pair = Pair(1, (2,))
    assert pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair) == copy.copy(pair) == pair
    match pair:
        case Pair(left, (right,)):
            assert (left, right) == (1, 2)
    assert Empty() == Empty()
    assert repr(Empty()) == "Empty()"


def test_methods_of_the_class_stay() -> None:
    @dataclass(frozen=True, slots=True)
    class Named:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named)

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "a name"

    assert Named("a") == Named("b")
    assert (hash(Named("a")), repr(Named("a"))) == (7, "a name")


def test_what_is_not_supported_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Odd:
        made: int = field(init=False, default=1)

    with pytest.raises(TypeError, match=r"Odd\.made: init=False and kw_only are not supported"):
        Odd()


def test_fields_are_described_as_by_the_standard_library() -> None:
    described = [
        [(it.name, it.default, it.default_factory, it.repr, it.compare) for it in dataclasses.fields(each)]
        for each in (Ours, Theirs)
    ]
    assert described[0] == described[1]
    assert Ours.__match_args__ == Theirs.__match_args__
    assert Ours.__slots__ == Theirs.__slots__
    assert dataclasses.is_dataclass(Ours)
    assert is_frozen(Ours)
    assert "__dataclass_fields__" in vars(Ours), "each class has its own"


def test_a_generic_class_is_described_too() -> None:
    @dataclass(frozen=True, slots=True)
    class Box(Generic[T]):
        content: T

    assert [it.name for it in dataclasses.fields(Box)] == ["content"]
    assert Box[int](3) == Box(3)


def test_what_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="Counted: ClassVar, InitVar and KW_ONLY are not supported"):

        @dataclass(frozen=True, slots=True)
        class Counted:
            count: ClassVar[int]


def test_other_dataclasses_are_those_of_the_standard_library() -> None:
    @dataclass
    class Loose:
        value: int = 0

    @dataclass(slots=True, eq=False)
    class Slotted:
        value: int = 0

    loose = Loose()
    loose.value = 2
    assert loose == Loose(2)
    assert Slotted() != Slotted()


def test_frozen_classes_are_known() -> None:
    @dataclass
    class Loose:
        value: int = 0

    assert [is_frozen(it) for it in (Ours, Theirs, Pair, Loose, int)] == [True, True, True, False, False]


def test_what_is_shown_of_a_class_are_its_fields() -> None:
    """As the standard library's, of which an annotation and a factory look the same."""
    ours, theirs = (inspect.signature(kind).parameters for kind in (Ours, Theirs))
    assert [*ours] == [*theirs] == ["first", "second", "third", "secret"]
    assert [it.annotation for it in ours.values()] == [it.annotation for it in theirs.values()]
    assert (ours["first"].default, ours["second"].default) == (inspect.Parameter.empty, "two")


def test_a_class_below_that_is_made_in_another_way_shows_that() -> None:
    class Below(Ours):  # type: ignore[misc, valid-type]
        def __init__(self, other: int) -> None:
            super().__init__(other)

    assert [*inspect.signature(Below).parameters] == ["other"]

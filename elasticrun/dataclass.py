"""Frozen dataclasses whose methods are compiled, and whose fields are described, at their first use.

Theory. The standard library writes the methods of a frozen dataclass as text, and compiles all of them as
soon as the class is made: half a millisecond for six. elasticrun makes some 200 such classes before a
script's first line, which took a quarter of the time until then, and most of them are never instantiated
there. So each method is a stub, which replaces itself by the compiled method at its first call; and what
``dataclasses.fields`` looks at is a stub, which lets the standard library describe a twin of the class that
has the same annotations and defaults, and takes its description.

Invariants. Users of such a class see what ``dataclasses.dataclass(frozen=True, slots=True)`` gives:
``fields`` and ``replace`` work; equality and hash are those of the tuple of the compared fields. Only the
standard library's own mark of a frozen class is missing: ask ``is_frozen``. All other dataclasses are left to
the standard library. To a type checker, this module's ``dataclass`` is that of the standard library.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from dataclasses import Field
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: Any = None, /, *, frozen: bool = False, slots: bool = False, **options: Any) -> Any:
        """As ``dataclasses.dataclass``."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, slots=slots, **options)
        if frozen and slots and not options:
            return _lazy(cls)
        return dataclasses.dataclass(cls, frozen=frozen, slots=slots, **options)


def is_frozen(kind: Any) -> bool:
    """Whether this is a dataclass whose instances cannot be changed."""
    params = getattr(kind, "__dataclass_params__", None)
    return params is not None and (params.frozen or kind.__setattr__ is _refuse)


def prepare() -> None:
    """Compile and describe all classes of this kind that there are: for a process whose forks use them."""
    below: list[type] = [object]
    while below:
        kind = below.pop()
        below += type.__subclasses__(kind)
        if vars(kind).get("__dataclass_params__") is not _PARAMS:
            continue
        for name, write in _WRITERS.items():
            if getattr(vars(kind).get(name), "__code__", None) is _STUB_CODE:
                setattr(kind, name, write(kind))


def _lazy(cls: type) -> Any:
    """The class anew: with a slot for each field that no base has, and with stubs."""
    annotations = cls.__annotations__
    if any(_is_special(each) for each in annotations.values()):
        raise TypeError(f"{cls.__name__}: ClassVar, InitVar and KW_ONLY are not supported")
    own = dict(vars(cls))
    described = {name: own.pop(name) for name in annotations if name in own}
    described |= {name: own[name] for name in ("__module__", "__orig_bases__") if name in own}
    bases = [vars(base) for base in reversed(cls.__mro__[1:-1])]
    theirs = {name for base in bases for name in base.get("__slots__", ())}
    known = (name for base in bases for name in base.get("__match_args__", ()))
    for name in ("__dict__", "__weakref__"):
        own.pop(name, None)
    own["__doc__"] = cls.__doc__ or cls.__name__
    own["__slots__"] = tuple(name for name in annotations if name not in theirs)
    own["__match_args__"] = tuple(dict.fromkeys((*known, *annotations)))
    own["__dataclass_params__"] = _PARAMS
    own["__dataclass_fields__"] = _Fields({**described, "__annotations__": annotations})
    home: list[Any] = []  # the class that is made
    for name, write in _WRITERS.items():
        if own.get(name) is None:  # defining __eq__ sets __hash__ to None
            own[name] = _stub(home, name, write)
    own["__setattr__"] = own["__delattr__"] = _refuse
    own["__signature__"] = _SIGNATURE
    own["__reduce__"] = _reduce
    own["__qualname__"] = cls.__qualname__
    home.append(type(cls)(cls.__name__, cls.__bases__, own))
    return home[0]


def _is_special(annotation: Any) -> bool:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.rpartition(".")[2].startswith(("ClassVar", "InitVar", "KW_ONLY"))


@dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)
class _Plain:
    """Whose parameters are those of all our classes, and of their twins."""


_PARAMS: object = _Plain.__dataclass_params__  # type: ignore[attr-defined]


class _Fields:
    """Stands for the description of a class's fields until somebody asks for it."""

    def __init__(self, twin: dict[str, Any]) -> None:
        """``twin``: the namespace of a class with the same fields."""
        self._twin = twin

    def __set_name__(self, owner: Any, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, asked: type) -> dict[str, Field[Any]]:
        owner = self._owner
        doc = owner.__name__  # else the standard library computes the signature: slow
        twin = type(owner.__name__, owner.__bases__, {**self._twin, "__doc__": doc})
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)(twin)
        owner.__dataclass_fields__ = found = made.__dataclass_fields__
        return found  # type: ignore[no-any-return]


class _Signature:
    """What ``inspect.signature`` and ``help`` show of a class: its fields, as the stub would not."""

    def __get__(self, instance: object, owner: Any) -> Any:
        import inspect

        if "__dataclass_params__" not in vars(owner):
            raise AttributeError("__signature__")  # a class below that is none of ours has its own way
        found, kind = [], inspect.Parameter.POSITIONAL_OR_KEYWORD
        for field in dataclasses.fields(owner):
            default = field.default if field.default is not dataclasses.MISSING else inspect.Parameter.empty
            if field.default_factory is not dataclasses.MISSING:
                default = ...
            found.append(inspect.Parameter(field.name, kind, default=default, annotation=field.type))
        return inspect.Signature(found)


_SIGNATURE = _Signature()


def _stub(home: Sequence[Any], name: str, write: Callable[[Any], Any]) -> Callable[..., Any]:
    """The method ``name`` of the class that will be in ``home``, until it is called for the first time."""

    def stub(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = home[0]
        setattr(made, name, write(made))
        return getattr(made, name)(self, *args, **kwargs)

    return stub


def _refuse(self: object, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change {name} of a {type(self).__name__}: it is frozen")


def _reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
    return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))


# -- the methods, as text


def _init(made: Any) -> Any:
    """``__init__``, which sets each field through its slot, as ``__setattr__`` refuses."""
    parameters, body = ["self"], ["pass"]
    known: dict[str, Any] = {"missing": dataclasses.MISSING}
    for number, field in enumerate(dataclasses.fields(made)):
        name = value = field.name
        if not field.init or field.kw_only:
            raise TypeError(f"{made.__name__}.{name}: init=False and kw_only are not supported")
        known[f"set{number}"] = getattr(made, name).__set__
        if field.default is not dataclasses.MISSING:
            known[f"default{number}"] = field.default
            parameters.append(f"{name}=default{number}")
        elif field.default_factory is not dataclasses.MISSING:
            known[f"default{number}"] = field.default_factory
            parameters.append(f"{name}=missing")
            value = f"default{number}() if {name} is missing else {name}"
        else:
            parameters.append(name)
        body.append(f"set{number}(self, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    return _compiled(f"def __init__({', '.join(parameters)}):\n  " + "\n  ".join(body), known)


def _eq(made: Any) -> Any:
    fields = _compared(made)
    same = f"{_values('self', fields)} == {_values('other', fields)}"
    return _compiled(
        f"def __eq__(self, other):\n  return {same} if other.__class__ is self.__class__ else NotImplemented",
        {},
    )


def _hash(made: Any) -> Any:
    return _compiled(f"def __hash__(self):\n  return hash({_values('self', _compared(made))})", {})


def _repr(made: Any) -> Any:
    shown = ", ".join(f"{it.name}={{self.{it.name}!r}}" for it in dataclasses.fields(made) if it.repr)
    return _compiled(f'def __repr__(self):\n  return f"{{type(self).__qualname__}}({shown})"', {})


def _compared(made: Any) -> list[Field[Any]]:
    return [field for field in dataclasses.fields(made) if field.compare]


def _values(owner: str, fields: Iterable[Field[Any]]) -> str:
    return f"({''.join(f'{owner}.{field.name}, ' for field in fields)})"


def _compiled(text: str, known: dict[str, Any]) -> Any:
    exec(text, known)
    return known[text[len("def ") : text.index("(")]]


_WRITERS = {"__init__": _init, "__eq__": _eq, "__hash__": _hash, "__repr__": _repr}
_STUB_CODE = _stub([], "", repr).__code__

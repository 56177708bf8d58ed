"""Takes nested values apart into tensors and their *form*, and builds them again.

Torch's checkpoints turn all keys of dicts into text, and restore only what a value has here already:
a list that has grown comes back short, a number as key comes back as text. So the tensors of a nested value
are saved by their names, as that library names them, and beside them the form, in one piece: the containers
with their keys, all plain values, and the names of tensors in their places. What is restored is built from
the form that was saved. A form is made of tuples, lists and what the value has, so no class of ours is in it.

What has a ``load_state_dict`` would be pickled inside of another value, and another object restored than the
one that trains. So it is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from elasticrun.errors import CheckpointError

#: ("dict" or "ordered", [(key, form), ...], metadata), ("list", [form, ...]), ("value", value), or
#: ("tensor", name, type of its device, whether it was a DTensor)
Form = tuple[Any, ...]

#: The end of the name of the item that has the form of an entry.
FORM = " (form)"


def refuse_objects(name: str, value: Any) -> None:
    """CheckpointError if something inside of this entry of ``state`` could not be restored in place."""
    for path, inner in _inside(name, value):
        if hasattr(inner, "load_state_dict"):
            raise CheckpointError(
                f"give {path}, a {type(inner).__name__}, as an entry of its own in `state`: inside of another"
                " value it would not be restored in place"
            )


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inner = list(value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        inner = list(enumerate(value))
    else:
        return
    for key, each in inner:
        yield f"{path}[{key!r}]", each
        yield from _inside(f"{path}[{key!r}]", each)


# Taking apart


class Apart:
    """An entry of ``state`` that has tensors inside, taken apart."""

    def __init__(self, name: str, value: Any) -> None:
        """CheckpointError if it cannot be built again."""
        self._name = name
        #: By their names below that of the entry; whether there is a list around it, which may grow.
        self.found: dict[str, tuple[torch.Tensor, bool]] = {}
        #: The containers of tensors, without plain values and with text as keys; None: there is no tensor.
        self.tensors, self.form = self._part(value, (), in_list=False)

    def _part(self, value: Any, path: tuple[str, ...], in_list: bool) -> tuple[Any, Form]:
        if isinstance(value, torch.Tensor):
            return value, self._tensor(value, path, in_list)
        if isinstance(value, Mapping):
            parts = [(key, *self._part(each, (*path, str(key)), in_list)) for key, each in value.items()]
            kind = "ordered" if isinstance(value, OrderedDict) else "dict"
            form = kind, [(key, form) for key, _, form in parts], getattr(value, "_metadata", None)
            found = {str(key): tensors for key, tensors, _ in parts if tensors is not None}
            if len(found) < sum(tensors is not None for _, tensors, _ in parts):
                raise self._ambiguous(".".join((self._name, *path)))
            return (found, form) if found else (None, ("value", value))
        if isinstance(value, list):
            listed = [self._part(each, (*path, str(at)), in_list=True) for at, each in enumerate(value)]
            numbered = {str(at): tensors for at, (tensors, _) in enumerate(listed) if tensors is not None}
            if not numbered:
                return None, ("value", value)
            are_all = len(numbered) == len(listed)
            return list(numbered.values()) if are_all else numbered, ("list", [form for _, form in listed])
        for inner, each in _inside(".".join((self._name, *path)), value):
            if isinstance(each, DTensor):
                raise CheckpointError(f"{inner} is a DTensor in a tuple or set: put it into a list or dict")
        return None, ("value", value)

    def _tensor(self, value: torch.Tensor, path: tuple[str, ...], in_list: bool) -> Form:
        name = ".".join(path)
        if name in self.found:
            raise self._ambiguous(f"{self._name}.{name}")
        self.found[name] = value, in_list
        return "tensor", name, value.device.type, isinstance(value, DTensor)

    def _ambiguous(self, name: str) -> CheckpointError:
        return CheckpointError(f"two tensors would be saved as {name}: keys have to differ as text")


# Building


def values_in(form: Form, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The plain values in a form, with their paths."""
    kind, content, *_ = form
    if kind == "value":
        yield path, content
    elif kind == "list":
        for at, each in enumerate(content):
            yield from values_in(each, (*path, str(at)))
    elif kind in ("dict", "ordered"):
        for key, each in content:
            yield from values_in(each, (*path, str(key)))


class Builder:
    """Builds an entry of ``state`` again."""

    def __init__(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """``tensors``: what was restored, by name below that of the entry."""
        self._name = name
        self._tensors = tensors

    def build(self, form: Form, here: Any = None) -> Any:
        """The value that has this form. ``here``: the one to fill; containers of it stay the same objects.

        CheckpointError if a tensor of it was not restored.
        """
        kind, content, *more = form
        if kind == "value":
            return content
        if kind == "tensor":
            return self._tensor(content, *more)
        if kind == "list":
            were = here if isinstance(here, list) else []
            listed = [self.build(e, were[at] if at < len(were) else None) for at, e in enumerate(content)]
            if not isinstance(here, list):
                return listed
            here[:] = listed
            return here
        mine: Mapping[Any, Any] = here if isinstance(here, MutableMapping) else {}
        return _filled(kind, {key: self.build(each, mine.get(key)) for key, each in content}, more[0], here)

    def _tensor(self, name: str, device: str, is_sharded: bool) -> torch.Tensor:
        found = self._tensors.get(name)
        if found is None or (is_sharded and not isinstance(found, DTensor)):
            raise CheckpointError(
                f"{self._name}.{name} was saved as a shard, and `state` has none there to restore: make it"
                " before `load`"
                if is_sharded
                else f"{self._name}.{name} is missing in the saved state"
            )
        return found.to(device) if device == "cuda" and torch.cuda.is_available() else found


def _filled(kind: str, made: dict[Any, Any], metadata: Any, here: Any) -> Any:
    if isinstance(here, MutableMapping):
        here.clear()
        here.update(made)
        return here
    if kind == "dict":
        return made
    ordered = OrderedDict(made)
    if metadata is not None:
        ordered._metadata = metadata  # type: ignore[attr-defined]  # as the state of a module has
    return ordered

"""Shows values that ``Checkpointer`` has saved as ``torch.distributed.checkpoint`` would save them by itself.

``Checkpointer`` keeps a value that is no tensor in one piece: in a tuple of one, or an optimizer's groups in
a tuple of dicts (``checkpoint/states.py``), or those beside tensors in one form (``checkpoint/forms.py``). So
a script that asks torch for ``optimizer.state_dict()`` or for a number would not find it. What is written
beside it here has torch's names and torch's form.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType

from elasticrun.checkpoint.forms import FORM, values_in

#: Bytes above which a value is left as it is: it would be in the storage twice.
LARGEST = 16 << 20


class View(NamedTuple):
    """A value by the name that torch gives it."""

    name: str
    path: tuple[str | int, ...]
    data: bytes


def views_of(path: Sequence[str | int], data: io.BytesIO) -> list[View]:
    """How torch would save the value at ``path`` of a state; nothing if it would do so in the same way.

    Nothing as well for a value with classes of the script, which is not unpickled here.
    """
    if data.getbuffer().nbytes > LARGEST or not all(isinstance(key, str) for key in path):
        return []
    try:
        value = torch.load(data, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, AttributeError, EOFError):
        return []
    if not isinstance(value, tuple):
        return []
    if path[-1] == "param_groups" and value and all(isinstance(each, dict) for each in value):
        return list(_saved(path, list(value)))
    if len(value) == 1 and str(path[-1]).endswith(FORM):
        name = str(path[-1]).removesuffix(FORM)
        return [view for inner, each in values_in(value[0]) for view in _saved((name, *inner), each)]
    return list(_saved(path, value[0])) if len(value) == 1 else []


def _saved(path: Sequence[str | int], value: Any) -> Iterator[View]:
    for key in reversed(path):
        value = {key: value}
    planner = DefaultSavePlanner()
    planner.set_up_planner(value, is_coordinator=False)
    plan = planner.create_local_plan()
    if any(item.type is not WriteItemType.BYTE_IO for item in plan.items):
        return
    for item in plan.items:
        saved = planner.resolve_data(item)
        assert isinstance(saved, io.BytesIO)
        yield View(item.index.fqn, tuple(plan.planner_data[item.index.fqn]), saved.getvalue())

"""Imports as much of tensorflow as a server needs, which is one object of it.

Most of what ``import tensorflow`` takes (seconds, and 300 MB for each server) would be spent on Keras and on
an API that nobody here calls. So tensorflow is imported without the code of its topmost package, where that
works: below an empty stand-in. A partial import cannot be completed in the same process. So where it fails,
``PartsNeedWhole`` is raised, and the process has to start again and import all of it. All of it is also
imported where a plug-in for another device has to be loaded.

Once it is there, it is there: a server that is forked from a process that has called ``import_server_lib``
gets the same module from its own call, at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from elasticrun.errors import UsageError

_LIBRARY = "tensorflow"
_BARE = "tensorflow.python.training.server_lib"
#: A folder beside tensorflow; what lies there is loaded by its topmost package.
_PLUGINS = "tensorflow-plugins"


class PartsNeedWhole(ImportError):
    """A release of tensorflow whose parts do not stand alone."""


def import_server_lib(environ: Mapping[str, str], whole: bool = False) -> Any:
    """The module that has tensorflow's Server, and ``errors``.

    Raises UsageError if there is none, and PartsNeedWhole: then this process can import no tensorflow at all.
    """
    if _LIBRARY in sys.modules:
        return sys.modules.get(_BARE) or _import_all()
    spec = PathFinder.find_spec(_LIBRARY)
    if spec is None:
        raise UsageError(
            f"tensorflow is not installed for {sys.executable}; install elasticrun[tensorflow] there, or "
            "start this task with a Python that has it"
        )
    if whole or not _is_plain(spec, environ):
        return _import_all()
    try:
        return _import_bare(spec)
    except (ImportError, AttributeError, TypeError) as error:
        raise PartsNeedWhole(f"{_BARE} cannot be imported by itself ({error})") from error


def _is_plain(spec: ModuleSpec, environ: Mapping[str, str]) -> bool:
    """Whether no plug-in needs the topmost package."""
    folders = spec.submodule_search_locations or ()
    plugged = any((Path(folder).parent / _PLUGINS).exists() for folder in folders)
    return bool(folders) and not plugged and not environ.get("TF_PLUGGABLE_DEVICE_LIBRARY_PATH")


def _import_bare(spec: ModuleSpec) -> Any:
    """Import the module below an empty stand-in for the topmost package."""
    package = ModuleType(_LIBRARY)
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_LIBRARY] = package
    return import_module(_BARE)


def _import_all() -> Any:
    try:
        tensorflow: Any = import_module(_LIBRARY)
    except ImportError as error:
        raise UsageError(
            f"tensorflow cannot be imported by {sys.executable} ({error}); install it there again"
        ) from None
    names = ModuleType("server_lib")
    vars(names).update(Server=tensorflow.distribute.Server, errors=tensorflow.errors)
    return names

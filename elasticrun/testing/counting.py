"""What ranks execute counts for pytest-cov, as what the session executes itself does.

Each rank leaves a data file of its own beside the session's, and pytest-cov combines them at the end. The
process that collects the tests counts nothing: at its start it would erase what others have counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

Settings = Mapping[str, Any]


def settings(config: pytest.Config) -> Settings | None:
    """What the session counts, and where; None if it does not."""
    controller = getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)
    cov = getattr(controller, "cov", None)
    if cov is None:
        return None
    return {
        "data_file": str(Path(cov.config.data_file).absolute()),
        "source": cov.config.source,
        "branch": cov.config.branch,
        "config_file": cov.config.config_file or False,
    }


@contextlib.contextmanager
def counted(terms: Settings | None) -> Iterator[None]:
    """Count what this rank executes meanwhile. ``terms``: as ``settings`` tells; None: do not."""
    if terms is None:
        yield
        return
    import coverage

    cov = coverage.Coverage(**terms, data_suffix=True)
    cov._warn_preimported_source = False  # the session has counted the imports
    cov.start()
    try:
        yield
    finally:
        cov.stop()
        cov.save()

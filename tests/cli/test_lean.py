"""What the launcher's processes do without."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from elasticrun.cli.lean import import_asyncio_without_ssl
import_asyncio_without_ssl()
assert "_ssl" not in sys.modules, "asyncio brought it in all the same"
import asyncio, ssl
asyncio.run(asyncio.Lock().acquire())
assert ssl.create_default_context(), "whoever needs it gets it"
import_asyncio_without_ssl()
assert sys.modules["ssl"] is ssl
print("done")
"""


@pytest.mark.parametrize("flags", [(), ("-W", "error")])
def test_asyncio_comes_without_ssl_and_ssl_can_still_be_had(flags: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, *flags, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr

"""What the launcher's processes do without."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from elasticrun.cli.import_trimming import import_asyncio_without_ssl
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


DIGESTS = """
import sys
from elasticrun.cli.import_trimming import import_hmac_without_openssl
import_hmac_without_openssl()
assert "_hashlib" not in sys.modules, "hmac brought OpenSSL in all the same"
import hashlib, hmac
assert hmac.digest(b"key", b"message", "sha256").hex().startswith("6e9ef29b75fffc5b")
assert hmac.compare_digest(b"a", b"a") and not hmac.compare_digest(b"a", b"b")
assert hashlib.new("sha256", b"").hexdigest().startswith("e3b0c442")
import _hashlib
import_hmac_without_openssl()
print("done")
"""

NO_DIGESTS = """
import sys
for name in ("_sha256", "_sha2"):
    sys.modules[name] = None
from elasticrun.cli.import_trimming import import_hmac_without_openssl
import_hmac_without_openssl()
import hmac
assert hmac.digest(b"key", b"message", "sha256").hex().startswith("6e9ef29b75fffc5b")
print("done")
"""


@pytest.mark.parametrize("code", [DIGESTS, NO_DIGESTS])
def test_hmac_comes_without_openssl_if_python_has_digests_of_its_own(code: str) -> None:
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


#: What no agent of one node needs, however it ends.
UNUSED = {
    *("torch", "tensorflow", "numpy", "rich", "yaml", "secrets", "_ssl", "_hashlib", "click"),
    *("grpc", "google.protobuf", "elasticrun.rpc.client", "elasticrun.rpc.codec"),
    *("elasticrun.agent.monitors.notice", "elasticrun.cli.child", "elasticrun.policy_file"),
    *(
        "elasticrun.core.job",
        "elasticrun.core.protocol.orders",
        "elasticrun.rpc.security.tls",
        "elasticrun.ui.checkup",
    ),
    "elasticrun.core.agent.tasks",  # a round of torch passes through no code for tasks
}
LAUNCH = """
import sys
from elasticrun.cli.main import main
status = main(["--standalone", "--no-python", "true"])
print(*sys.modules)
sys.exit(status)
"""


def test_a_launch_imports_only_what_it_uses() -> None:
    done = subprocess.run([sys.executable, "-c", LAUNCH], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    imported = set(done.stdout.split())
    assert {"asyncio", "elasticrun.agent.runtime"} <= imported
    assert not imported & UNUSED

"""Importing this module imports what ``elasticrun.tf.server`` needs: a warm parent of servers does so.

Nothing is run: servers are forked from that parent, so it must have no threads and no device. Where a server
could not be forked the import of this module fails, and each server imports for itself.
"""

from __future__ import annotations

import os
from importlib import import_module

from elasticrun.errors import UsageError
from elasticrun.tf.imports import import_server_lib

try:
    import_server_lib(os.environ)
except UsageError as error:  # the server says so itself, when it starts
    raise ImportError(str(error)) from None
for needed in ("tensorflow.core.protobuf.config_pb2", "elasticrun.tf.cluster"):
    import_module(needed)

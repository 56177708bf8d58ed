"""Paths of the files that other processes run: workers, probes, servers, writers. An agent imports none."""

import os

import elasticrun

_PACKAGE = os.path.dirname(os.path.abspath(elasticrun.__file__))
#: A folder to put in front of a worker's PYTHONPATH.
INJECTED = os.path.join(_PACKAGE, "worker", "inject")
STORE_SERVER = os.path.join(_PACKAGE, "worker", "store_server.py")
STORAGE_PROGRAM = os.path.join(_PACKAGE, "checkpoint", "storage_program.py")
PROBE = os.path.join(_PACKAGE, "probe", "main.py")

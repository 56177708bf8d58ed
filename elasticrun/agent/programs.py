"""Paths of the files that workers, probes and store servers run; an agent does not import them."""

import os

import elasticrun

_PACKAGE = os.path.dirname(os.path.abspath(elasticrun.__file__))
#: A folder to put in front of a worker's PYTHONPATH.
INJECTED = os.path.join(_PACKAGE, "worker", "inject")
STORE_SERVER = os.path.join(_PACKAGE, "worker", "store_server.py")
PROBE = os.path.join(_PACKAGE, "probe", "main.py")

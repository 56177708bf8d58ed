"""What is written while a warm parent is there is seen by the workers that it forks afterwards."""

from __future__ import annotations

import zipfile

from tests.support.cluster import Cluster
from tests.support.launcher import ROOT

#: Fails once, when it has changed what a restart has to find.
SCRIPT = """
import os, pathlib, sys
is_warm = b"ELASTICRUN_WARM=" in pathlib.Path("/proc/self/environ").read_bytes()
import helper
try:
    import late
except ImportError:
    late = None
print(is_warm, helper.VALUE, late is not None)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    EDIT
    sys.exit(3)
"""
EDIT_HELPER = 'pathlib.Path(helper.__file__).write_text("VALUE = 23\\n")'
ADD_FOLDER = 'os.mkdir("later"); pathlib.Path("later", "late.py").touch()'


def lines(cluster: Cluster, edit: str) -> list[str]:
    """What the first start and the restart print."""
    folder = cluster.folder / "scripts"
    folder.mkdir()
    (folder / "helper.py").write_text("VALUE = 1\n")
    (folder / "train.py").write_text(SCRIPT.replace("EDIT", edit))
    options = ("--standalone", "--max-restarts=1", "--warm=on", "--warm-import=helper")
    environment = {"PYTHONPATH": f"{ROOT}:{cluster.folder / 'later'}"}
    launcher = cluster.launch(*options, folder / "train.py", env=environment)
    assert launcher.wait() == 0, launcher.story()
    return launcher.out.splitlines()


def test_an_edited_module_is_read_again(cluster: Cluster) -> None:
    assert lines(cluster, EDIT_HELPER) == ["True 1 False", "False 23 False"]


def test_a_folder_that_was_not_there_is_searched(cluster: Cluster) -> None:
    assert lines(cluster, ADD_FOLDER) == ["True 1 False", "True 1 True"]


def test_an_archive_is_searched_instead_of_its_folder(cluster: Cluster) -> None:
    """The interpreter looks for modules in the archive, and not beside it."""
    (cluster.folder / "helper.py").write_text("VALUE = 1\n")
    with zipfile.ZipFile(cluster.folder / "program", "w") as archive:
        archive.writestr("helper.py", "VALUE = 2\n")
        archive.writestr(
            "__main__.py",
            "print(b'ELASTICRUN_WARM=' in open('/proc/self/environ', 'rb').read())\n"
            "import helper; print(helper.VALUE)",
        )
    launcher = cluster.launch("--standalone", "--warm=on", "--warm-import=helper", "program")
    assert launcher.wait() == 0, launcher.story()
    assert launcher.out == "True\n2"

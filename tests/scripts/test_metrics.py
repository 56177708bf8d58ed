"""What scripts/metrics.py counts, of a package of four modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.metrics import figures, main

SOURCES = {
    "__init__.py": "",
    "a.py": "from elasticrun.b import B\nclass A(B):\n    def one(self): ...\n",
    "b.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from elasticrun.a import A\n"
        "class B:\n    def one(self): ...\n    def two(self): ...\n"
    ),
    "c.py": "from elasticrun.a import A\n",
    "x_pb2.py": "import elasticrun.c\n",
}


def test_what_is_inherited_and_what_goes_round_in_circles_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elasticrun").mkdir()
    for name, text in SOURCES.items():
        (tmp_path / "elasticrun" / name).write_text(text)
    assert dict(figures(tmp_path)) == {
        "modules": "4",
        "lines": "10",
        "lines of the longest module": "6",
        "class 1 by methods": "A 2",
        "class 2 by methods": "B 2",
        "modules in import cycles": "2",
    }
    main([str(tmp_path)])
    assert capsys.readouterr().out.startswith("modules ")

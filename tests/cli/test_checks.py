"""What is named must be there; what would run is never refused."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from elasticrun.cli import checks
from elasticrun.cli.parse import parse_command_line
from elasticrun.errors import UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


ENVIRON = {"PATH": "/usr/bin:/bin"}


def refusal(*argv: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse_command_line(argv, environ or ENVIRON)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def accept(*argv: str, environ: dict[str, str] | None = None) -> None:
    parse_command_line(argv, environ or ENVIRON)


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


# --- scripts


def test_missing_script(here: Path) -> None:
    sentence = refusal("train.py")
    assert sentence == (
        "training script 'train.py': there is no such file; "
        f"give the path of a python program (looked for from {str(here)!r})"
    )


def test_missing_script_with_a_likely_name(here: Path) -> None:
    (here / "train.py").touch()
    assert "(did you mean train.py?)" in refusal("train")


def test_a_program_given_as_script() -> None:
    assert "(for a program that is not python, give --no-python)" in refusal("sh")


def test_empty_script() -> None:
    assert "training script '': there is no such file" in refusal("")


def test_link_to_nowhere(here: Path) -> None:
    (here / "train.py").symlink_to("gone.py")
    assert "it is a link to nowhere" in refusal("train.py")


def test_directory_without_main(here: Path) -> None:
    (here / "project").mkdir()
    assert "it is a directory without a __main__.py" in refusal("project")


def test_unreadable_script(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "train.py").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == "train.py" and mode & os.R_OK))
    assert "this user may not read it" in refusal("train.py")


def test_scripts_that_run(here: Path) -> None:
    (here / "train.py").touch()
    (here / "link.py").symlink_to("train.py")
    for folder, name in (("source", "__main__.py"), ("compiled", "__main__.pyc")):
        (here / folder).mkdir()
        (here / folder / name).touch()
    with zipfile.ZipFile(here / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "print(1)")
    os.mkfifo(here / "pipe")
    scripts = [
        "train.py",
        "./train.py",
        "link.py",
        str(here / "train.py"),
        "source",
        "compiled",
        "app.pyz",
        "pipe",
    ]
    for script in [
        *scripts,
        "-",
        "/dev/stdin",
        "/dev/null",
        "train_${local_rank}.py",
        "train_$local_rank.py",
    ]:
        accept(script)
        accept("--run-path", script)


# --- programs


def test_program_by_path_and_by_name(here: Path) -> None:
    program(here / "tool")
    accept("--no-python", "./tool")
    accept("--no-python", "sh", "-c", "true")
    accept("--no-python", "tool", environ={"PATH": str(here)})
    accept("--no-python", "./tool_${local_rank}")


def test_program_not_on_path(here: Path) -> None:
    sentence = refusal("--no-python", "no-such-program")
    assert sentence == (
        "--no-python: no program 'no-such-program' is on PATH; "
        "give the path of a program or the name of one on PATH"
    )
    program(here / "tool")
    assert "(did you mean ./tool?)" in refusal("--no-python", "tool")


def test_program_that_cannot_be_executed(here: Path) -> None:
    (here / "train.py").touch()
    assert "there is no program './gone'" in refusal("--no-python", "./gone")
    assert "'./train.py' is not executable (chmod +x makes it so)" in refusal("--no-python", "./train.py")
    assert f"{str(here)!r} is a directory" in refusal("--no-python", str(here))


def test_python_exec_is_checked_only_if_used(here: Path) -> None:
    (here / "train.py").touch()
    environ = {**ENVIRON, "PYTHON_EXEC": "/no/such/python"}
    sentence = refusal("train.py", environ=environ)
    assert sentence.startswith("PYTHON_EXEC: there is no program '/no/such/python'; give")
    accept("--no-python", "sh", environ=environ)


# --- modules


@pytest.fixture
def modules(here: Path) -> Path:
    """A module, one with a dash, packages with and without __main__, one that makes up its submodules."""
    for name in (
        "single.py",
        "dash-ed.py",
        "ns/deep/leaf.py",
        "pkg/sub.py",
        "pkg/__main__.py",
        "bare/sub.py",
    ):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    (here / "pkg/__init__.py").write_text("raise SystemExit('imported')")
    (here / "bare/__init__.py").touch()
    (here / "far").mkdir()
    (here / "far/hidden.py").touch()
    (here / "dynamic").mkdir()
    (here / "dynamic/__init__.py").write_text(f"__path__.append({str(here / 'far')!r})")
    return here


@pytest.mark.parametrize(
    "name",
    ["single", "dash-ed", "ns.deep.leaf", "pkg", "pkg.sub", "bare.sub", "dynamic.hidden", "json.tool",
     "__hello__", "train_${local_rank}"],
)  # fmt: skip
def test_modules_that_run(name: str, modules: Path) -> None:
    accept("-m", name)
    assert "pkg" not in sys.modules


@pytest.mark.parametrize("name", ["single", "dash-ed", "pkg", "pkg.sub", "json.tool"])
def test_a_module_in_plain_sight_costs_no_child(
    name: str, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_child_misses", lambda *asked: pytest.fail(f"a child was asked for {asked}"))
    accept("-m", name)


@pytest.mark.parametrize(
    "name", ["gone", "bare.gone", "gone.sub", "single.sub", "bare", "ns.deep", "json.gone"]
)
def test_modules_that_do_not_run(name: str, modules: Path) -> None:
    sentence = refusal("-m", name)
    assert sentence.startswith(f"-m {name}: {sys.executable} finds no module of this name that it can run")
    assert sentence.endswith(f"give one on its path or in {str(modules)!r}")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("single.py", "(did you mean -m single, or single.py without -m?)"),
        ("pkg/sub.py", "(did you mean -m pkg.sub, or pkg/sub.py without -m?)"),
        ("pkg/sub", "(did you mean -m pkg.sub?)"),
    ],
)
def test_a_path_given_as_module(name: str, hint: str, modules: Path) -> None:
    assert hint in refusal("-m", name)


@pytest.mark.parametrize("name", ["", ".sub", "pkg..sub"])
def test_no_name_of_a_module(name: str) -> None:
    sentence = refusal("-m", name)
    assert sentence == f"-m {name!r} is not the name of a module: give a full name such as package.train"


def test_modules_of_another_python(modules: Path, here: Path) -> None:
    other = program(here / "other", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    environ = {**ENVIRON, "PYTHON_EXEC": str(other)}
    accept("-m", "single", environ=environ)
    assert f"-m gone: {other} finds no module" in refusal("-m", "gone", environ=environ)


def test_modules_on_the_workers_pythonpath(modules: Path) -> None:
    accept("-m", "hidden", environ={**ENVIRON, "PYTHONPATH": str(modules / "far")})
    assert "-m hidden" in refusal("-m", "hidden")


def test_a_package_that_fails_while_imported_is_left_to_the_worker(here: Path) -> None:
    (here / "broken").mkdir()
    (here / "broken/__init__.py").write_text("import nothing_of_the_kind")
    accept("-m", "broken.sub")


def test_a_python_that_cannot_be_asked_gets_the_benefit_of_the_doubt(here: Path) -> None:
    accept("-m", "gone", environ={**ENVIRON, "PYTHON_EXEC": str(program(here / "wrapper"))})
    accept("-m", "gone", environ={**ENVIRON, "PYTHON_EXEC": str(program(here / "nonsense", "\0"))})


# --- directories


@pytest.mark.parametrize("option", ["--log-dir", "--state-dir"])
class TestDirectories:
    def test_a_file_there(self, option: str, here: Path) -> None:
        (here / "train.py").touch()
        assert refusal(option, "train.py", "train.py") == (
            f"{option} 'train.py' is not a directory: give a directory, which is made if it does not exist"
        )

    def test_a_file_above(self, option: str, here: Path) -> None:
        (here / "train.py").touch()
        sentence = refusal(option, "train.py/a/b", "train.py")
        assert sentence.startswith(
            f"{option} 'train.py/a/b' cannot be made: {str(here / 'train.py')!r} is not a"
        )

    def test_not_writable(self, option: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (here / "train.py").touch()
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
        sentence = refusal(option, "logs", "train.py")
        assert sentence == (
            f"{option} 'logs' cannot be written: {str(here)!r} is not writable; give another directory"
        )

    def test_directories_that_will_do(self, option: str, here: Path) -> None:
        (here / "train.py").touch()
        (here / "link").symlink_to(here)
        for path in (str(here), "new", "new/and/deep", "link", "link/new", "."):
            accept(option, path, "train.py")
            assert not (here / "new").exists(), "looking must not make it"


def test_dev_null_means_no_logs(here: Path) -> None:
    (here / "train.py").touch()
    accept("--log-dir", "/dev/null", "train.py")


# --- whose the state directory is


def state_dir(script: str, path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        parse_command_line(["--standalone", "--state-dir", str(path), script], {})
    return str(caught.value)


def accepted(script: str, path: Path) -> None:
    config = parse_command_line(["--standalone", "--state-dir", str(path), script], {})
    assert config.rendezvous.state_dir == str(path)


def test_a_state_directory_that_others_can_write_is_refused(script: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(0o777)
    said = state_dir(script, path)
    assert "can be written by others (mode 0777)" in said and f"'{path}/elasticrun' would be made" in said
    path.chmod(0o2700 | 0o055)
    accepted(script, path)
    link = tmp_path / "link"
    link.symlink_to(path)
    accepted(script, link)
    accepted(script, path / "elasticrun")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory to somebody else")
def test_a_state_directory_of_somebody_else_is_refused(script: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()
    os.chown(path, 12345, 12345)
    assert "belongs to user 12345, not to user 0" in state_dir(script, path)
    os.chown(path, 0, 12345)
    path.chmod(0o770)
    assert "can be written by others (mode 0770)" in state_dir(script, path)
    os.chown(path, 0, 0)
    (tmp_path / "link").symlink_to(path)
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    assert "belongs to user 12345" in state_dir(script, tmp_path / "link")
    accepted(script, path)  # a group of his own

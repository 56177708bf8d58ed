"""What the README, the manual and the other pages tell people to type, to open and to look for is there.

Tables that are made from the code are test_help_and_tables'; the first minute is run by test_first_minute.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import click
import pytest

from elasticrun.cli.arguments import Given, read_arguments
from elasticrun.cli.ctl import group
from elasticrun.cli.ctl_manual import TOPICS
from elasticrun.cli.options import OPTIONS
from elasticrun.core.fleet.notices import CONTRACT, Notice
from tests.support.pod_faults import CASES, NOT_IN_PODS, PROMISES

ROOT = Path(__file__).parent.parent
MANUAL = "elasticrun/manual"
ARCHITECTURE = "elasticrun/ARCHITECTURE.md"
TROUBLES = f"{MANUAL}/troubleshooting.md"
PAGES = (
    "README.md",
    "examples/README.md",
    "CHANGELOG.md",
    ARCHITECTURE,
    *sorted(f"{MANUAL}/{path.name}" for path in (ROOT / MANUAL).glob("*.md")),
)
MOST_BYTES = 10_000  # of the README
WIDEST = 96  # columns of a command in the manual: a terminal of 100 shows it unbroken

#: What commands of the pages may begin with. Each has a test below, or is no program of ours.
CHECKED = ("elastic-run", "elastic-ctl", "pip", "openssl", "pytest", "scripts/", "srun")
FOREIGN = ("docker", "echo", "export", "kubectl")


def read(page: str) -> str:
    return (ROOT / page).read_text()


def commands(page: str) -> Iterator[str]:
    """The lines of a page's shell blocks, with continued lines joined."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", read(page), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if command := line.split(" #")[0].strip():
                yield command


ALL = [(page, command) for page in PAGES for command in commands(page)]


def those(program: str) -> list[tuple[str, list[str]]]:
    """Page and words of the commands of one program, without its name."""
    found = [(page, shlex.split(line)[1:]) for page, line in ALL if line.split()[0].startswith(program)]
    assert found, program
    return found


def test_nothing_is_typed_that_no_test_looks_at() -> None:
    assert [(page, line) for page, line in ALL if not line.startswith((*CHECKED, *FOREIGN))] == []


def test_the_readme_stays_short() -> None:
    assert len(read("README.md").encode()) <= MOST_BYTES


def test_every_fault_of_the_readme_befalls_pods_or_there_is_a_reason_why_not() -> None:
    rows, shown = set(PROMISES), {case.row for case in CASES if case.row}
    assert len(rows) > 10
    assert shown.isdisjoint(NOT_IN_PODS)
    assert all(NOT_IN_PODS.values())
    assert rows == shown | set(NOT_IN_PODS), "give the row a case in tests/support/pod_faults.py"


def test_every_notice_of_the_contract_of_preemption_is_given_to_a_pod() -> None:
    assert {terms.notice for terms in CONTRACT} == set(Notice) == {case.notice for case in CASES} - {None}


def test_commands_of_the_manual_fit_a_terminal() -> None:
    blocks = [
        (page, line)
        for page in PAGES
        if page.startswith(MANUAL)
        for block in re.findall(r"^```\w*\n(.*?)^```", read(page), re.M | re.S)
        for line in block.splitlines()
    ]
    assert blocks
    assert [(page, line) for page, line in blocks if len(line) > WIDEST] == []


def test_every_page_of_the_manual_is_a_topic_and_in_the_readme() -> None:
    pages = {Path(page).stem for page in PAGES if page.startswith(MANUAL)}
    assert pages == set(TOPICS)
    assert len(TOPICS) == len(pages)
    assert set(re.findall(rf"\({MANUAL}/([\w-]+)\.md\)", read("README.md"))) == pages


def test_files_named_in_commands_exist() -> None:
    named = [
        (page, name)
        for page, command in ALL
        for name in re.findall(r"(?<![\w/.-])(?:scripts|examples|tests)/[\w./-]+", command)
    ]
    assert named
    assert [(page, name) for page, name in named if not (ROOT / name).exists()] == []


def test_links_lead_somewhere() -> None:
    missing = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", read(page))
        if not ((ROOT / page).parent / link).exists()
    ]
    assert missing == []


def test_links_within_a_page_lead_to_a_heading() -> None:
    for page in PAGES:
        headings = {
            re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
            for line in re.findall(r"^#+ (.*)$", read(page), re.M)
        }
        assert set(re.findall(r"\]\(#([\w-]+)\)", read(page))) <= headings, page


@pytest.mark.parametrize(("page", "words"), those("elastic-run"))
def test_command_lines_of_the_launcher_are_taken(page: str, words: list[str]) -> None:
    if "--print-completion" in words:
        return
    given = read_arguments(words, {})
    for option in OPTIONS:
        if given.has(option):
            given.find(option)
    assert is_whole(given), f"{page}: there is no script"


@pytest.mark.parametrize(("page", "words"), those("srun"))
def test_what_srun_starts_is_taken(page: str, words: list[str]) -> None:
    assert is_whole(read_arguments(words[words.index("elastic-run") + 1 :], {})), (
        f"{page}: there is no script"
    )


def is_whole(given: Given) -> bool:
    return bool(given.command) or "health-check-only" in given.texts


@pytest.mark.parametrize(("page", "words"), those("elastic-ctl"))
def test_orders_can_be_given(page: str, words: list[str]) -> None:
    if words[0] != "--print-completion":
        group.commands[words[0]].make_context(words[0], words[1:])


def test_options_named_in_texts_exist() -> None:
    known = {option.flag for option in OPTIONS} | {
        spelling
        for verb in group.commands.values()
        for one in (verb, *getattr(verb, "commands", {}).values())
        for parameter in one.get_params(click.Context(one))
        for spelling in parameter.opts
    }
    named = {
        (page, option)
        for page in PAGES
        if page not in ("CHANGELOG.md", "examples/README.md", f"{MANUAL}/speed.md", ARCHITECTURE)
        for span in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S))
        if not span.startswith(("scripts/", "srun ", "sbatch ", "mpirun ", "mpiexec "))
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", span)
    }
    also = {"--help", "--version", "--with-dashes", "--with_underscores", "--redirect", "--all"}
    assert {(page, option) for page, option in named if option not in known | also} == set()


def test_what_is_installed_by_pip_is_known() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    known = set(re.findall(r"^([\w-]+)==", (ROOT / "scripts/constraints.txt").read_text(), re.M))
    for page, words in those("pip"):
        assert words[0] == "install"
        for word in words[1:]:
            extra = re.fullmatch(r"\.\[(\w+)\]", word)
            if extra:
                assert setup.has_option("options.extras_require", extra[1]), (page, word)
            else:
                assert word in known | {".", "tf_keras"}, (page, word)


def test_certificates_are_made_by_the_lines_of_the_manual(tmp_path: Path) -> None:
    script = [line for line in commands(f"{MANUAL}/security.md") if line.startswith(("openssl", "echo"))]
    subprocess.run(["bash", "-ec", "\n".join(script)], cwd=tmp_path, capture_output=True, check=True)
    text = subprocess.run(
        ["openssl", "x509", "-in", "node0.pem", "-noout", "-text"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "DNS:node0, IP Address:10.0.0.1" in text
    assert "TLS Web Server Authentication, TLS Web Client Authentication" in text


def test_the_class_of_a_named_variable_exists() -> None:
    from elasticrun.probe import drill

    table = re.findall(r"^\| `(\w+)(?:=[\d.]+)?` \|", read(f"{MANUAL}/health-check.md"), re.M)
    assert set(drill.KINDS) <= set(table)


def test_the_api_is_what_the_page_says() -> None:
    import elasticrun
    import elasticrun.control
    import elasticrun.data
    import elasticrun.tf

    page = read(f"{MANUAL}/api.md")
    assert [name for name in elasticrun.__all__ if f"\n### {name}\n" not in page] == []
    classes = [name for name in elasticrun.tf.__all__ if name not in ("Restored", "Resumed", "Saved")]
    assert [name for name in classes if f"`{name}`" not in page] == []
    assert [name for name in elasticrun.data.__all__ if f"`{name}`" not in page] == []
    assert [name for name in elasticrun.control.__all__ if f"`{name}`" not in page] == []
    orders = [name for name in vars(elasticrun.control.JobControl) if not name.startswith("_")]
    assert [name for name in orders if f"{name}(" not in page] == []


# -- files


def test_files_named_by_the_architecture_exist() -> None:
    spans = re.findall(r"`([\w./-]+)`", read(ARCHITECTURE))
    named = [span for span in spans if "/" in span or span.endswith((".py", ".md", ".proto"))]
    assert len(named) > 50
    places = (ROOT / "elasticrun", ROOT)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_folder_of_the_package_is_in_the_architecture() -> None:
    folders = {path.parent.name for path in (ROOT / "elasticrun").glob("*/__init__.py")}
    assert {folder for folder in folders if f"`{folder}/`" not in read(ARCHITECTURE)} == set()


# -- messages


def texts(tree: ast.AST) -> Iterator[str]:
    """The texts in a program, with ... for what is filled in."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield re.sub(r"%[-.\d]*[sdrg]|\{[\w.]*\}", "...", text)
            case ast.JoinedStr(values=parts):
                yield "".join(
                    part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "..."
                    for part in parts
                )


def is_said(message: str, said: list[str]) -> bool:
    """Whether one text has all parts of a message, in their order."""
    parts = [part for part in (part.strip() for part in message.split("...")) if part]
    pattern = re.compile(".*".join(map(re.escape, parts)), re.S)
    return any(pattern.search(text) for text in said)


def test_messages_of_the_troubleshooting_are_said_by_the_code() -> None:
    sources = [path for path in (ROOT / "elasticrun").rglob("*.py") if "_pb2" not in path.name]
    said = [text for path in sources for text in texts(ast.parse(path.read_text()))]
    messages = re.findall(r"^### `(.*)`$", read(TROUBLES), re.M)
    assert len(messages) > 20
    assert [message for message in messages if not is_said(message, said)] == []

"""``elastic-ctl token`` and ``elastic-ctl certs`` as an operator types them."""

from __future__ import annotations

import os
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from elasticrun.cli.ctl import group
from elasticrun.cli.ctl_token import FINGERPRINT_BITS, fingerprint
from elasticrun.cli.strength import bits

TOKEN = "9f1c2ab47d63e80512fa76c03be94d58"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which there is nothing yet."""
    for name in ("ELASTICRUN_TOKEN", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def ctl(*argv: str | Path) -> Result:
    return CliRunner().invoke(group, [str(each) for each in argv])


def test_a_token_is_made_where_agents_look_for_it(home: Path) -> None:
    made = ctl("token", "create")
    path = home / ".config/elasticrun/token"
    text = path.read_text().strip()
    assert made.exit_code == 0 and text not in made.output
    assert bits(text) == 256
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    shown = ctl("token", "show-fingerprint")
    assert (shown.exit_code, shown.output) == (0, f"{fingerprint(text)} ({path})\n")
    assert fingerprint(text) in made.output


def test_a_token_is_replaced_only_if_that_is_asked_for(home: Path) -> None:
    for place in ((), ("--path", home / "mine")):
        assert ctl("token", "create", *place).exit_code == 0
        path = home / "mine" if place else home / ".config/elasticrun/token"
        before = path.read_text()
        again = ctl("token", "create", *place)
        assert again.exit_code == 2 and "there is a token in" in again.output and "--force" in again.output
        assert path.read_text() == before
        assert ctl("token", "create", "--force", *place).exit_code == 0
        assert path.read_text() != before
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path.name for path in (home / ".config/elasticrun").iterdir()] == ["token"]


def test_where_no_token_can_be_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such file" in ctl("token", "create", "--path", home / "none/token").output
    (home / ".config").mkdir()
    (home / ".config/elasticrun").mkdir(0o755)
    (home / ".config/elasticrun").chmod(0o755)
    refused = ctl("token", "create")
    assert refused.exit_code == 2 and "is open to other users (mode 0755): chmod 700 it" in refused.output
    monkeypatch.delenv("HOME")
    assert "neither XDG_CONFIG_HOME nor HOME is an absolute path" in ctl("token", "create").output


def test_a_fingerprint_helps_nobody_to_guess(home: Path) -> None:
    shown = fingerprint(TOKEN)
    assert len(shown.replace("-", "")) * 4 == FINGERPRINT_BITS == 48
    assert shown != fingerprint(TOKEN[::-1]) and not any(part in TOKEN for part in shown.split("-"))
    (home / "weak").write_text("a-token-of-some-length")
    refused = ctl("token", "show-fingerprint", "--token-file", home / "weak")
    assert refused.exit_code == 2 and "would help to guess it" in refused.output
    assert fingerprint("a-token-of-some-length") not in refused.output


def test_there_may_be_no_token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticrun.cli.tokens.SESSIONS", str(home))
    assert "no token found" in ctl("token", "show-fingerprint").output
    monkeypatch.setenv("ELASTICRUN_TOKEN", TOKEN)
    assert ctl("token", "show-fingerprint").output == f"{fingerprint(TOKEN)} (ELASTICRUN_TOKEN)\n"


# --- certificates


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_certificates_have_the_names_and_uses_of_a_host(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    made = ctl("certs", folder, "--hosts", "node0=10.0.0.1=::1,node1.example", "--days", "30")
    assert made.exit_code == 0, made.output
    assert "--tls-ca" in made.output and "ca.key" in made.output
    names = {"ca.key", "ca.pem", "node0.key", "node0.pem", "node1.example.key", "node1.example.pem"}
    assert {path.name for path in folder.iterdir()} == names
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    cert, ca = certificate(folder / "node0.pem"), certificate(folder / "ca.pem")
    cert.verify_directly_issued_by(ca)
    alternatives = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName) == ["node0"]
    assert [str(each) for each in alternatives.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    uses = set(cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert uses == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    left = cert.not_valid_after_utc - datetime.now(timezone.utc)
    assert timedelta(days=29) < left <= timedelta(days=30)
    assert ca.not_valid_after_utc >= cert.not_valid_after_utc


def test_hosts_can_be_added_and_none_is_replaced_by_accident(tmp_path: Path) -> None:
    assert ctl("certs", tmp_path, "--hosts", "node0").exit_code == 0
    before = (tmp_path / "node0.pem").read_bytes()
    assert ctl("certs", tmp_path, "--hosts", "node1").exit_code == 0
    certificate(tmp_path / "node1.pem").verify_directly_issued_by(certificate(tmp_path / "ca.pem"))
    again = ctl("certs", tmp_path, "--hosts", "node0")
    assert again.exit_code == 2 and "node0.key exists: give --force" in again.output
    assert (tmp_path / "node0.pem").read_bytes() == before
    assert ctl("certs", tmp_path, "--hosts", "node0", "--force").exit_code == 0
    assert (tmp_path / "node0.pem").read_bytes() != before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts", "a,,b"], "is not valid: the host is missing"),
        (["--hosts", "../a"], "is not valid"),
        (["--hosts", "a/b"], "is not valid"),
        (["--hosts", "a,b,a"], "a host is in it twice"),
        (["--hosts", "n\u00f6de"], "names of hosts are ASCII"),
        (["--hosts", "ca"], "ca.pem is the authority"),
        (["--hosts", "a", "--days", "0"], "give a whole number from 1 to 36500"),
        (["--hosts", "a", "--days", "many"], "give a whole number from 1"),
    ],
)
def test_mistakes_are_one_sentence(options: list[str], words: str, tmp_path: Path) -> None:
    refused = ctl("certs", tmp_path / "tls", *options)
    assert refused.exit_code == 2 and words in refused.output and refused.output.count("\n") == 1
    assert not (tmp_path / "tls").exists()


def test_an_authority_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    assert "cannot be used as the authority" in ctl("certs", tmp_path, "--hosts", "a").output
    for name in ("one", "two"):
        assert ctl("certs", tmp_path / name, "--hosts", "a").exit_code == 0
    (tmp_path / "one/ca.key").write_bytes((tmp_path / "two/ca.key").read_bytes())
    assert "the key is not that of the certificate" in ctl("certs", tmp_path / "one", "--hosts", "b").output
    assert "name another DIR" in ctl("certs", tmp_path / "one/a.pem/x", "--hosts", "b").output


def test_without_cryptography_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "elasticrun.cli.authority", raising=False)
    monkeypatch.setattr("elasticrun.cli.authority", None, raising=False)
    monkeypatch.delattr("elasticrun.cli.authority")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    refused = ctl("certs", tmp_path, "--hosts", "a")
    assert refused.exit_code == 2
    assert "pip install 'elasticrun[certs]'" in refused.output
    assert not os.listdir(tmp_path)  # noqa: PTH208

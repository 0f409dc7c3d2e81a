"""Resolving secret references; an error never shows the value."""

import os
import sys
import traceback
from pathlib import Path

import pytest

from corral.adapters import secrets
from corral.kernel.errors import CorralError, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case

VALUE = "hunter2-do-not-tell"


def resolve_failing(reference: str, kind: type[CorralError]) -> CorralError:
    """Return the error of a reference, after checking that it does not contain the value."""
    with pytest.raises(kind) as caught:
        secrets.resolve_secret(reference)
    assert caught.type is kind
    output = "".join(traceback.format_exception(caught.value))
    for text in (str(caught.value), repr(caught.value), str(caught.value.details), output):
        assert VALUE not in text
    return caught.value


def write_private(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


# -- environment -----------------------------------------------------------------------------


def test_environment_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", VALUE)
    assert secrets.resolve_secret("env:TOKEN") == VALUE


@each_case("value", [None, ""])
def test_unset_variable_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("TOKEN", value)
    assert "TOKEN" in resolve_failing("env:TOKEN", NotFound).message


# -- file ------------------------------------------------------------------------------------


@each_case("end", ["", "\n", "\r\n", "\n\n"])
def test_file_reference_without_its_line_end(tmp_path: Path, end: str) -> None:
    assert secrets.resolve_secret(f"file:{write_private(tmp_path / 's', VALUE + end)}") == VALUE


def test_spaces_and_inner_lines_belong_to_the_value(tmp_path: Path) -> None:
    file = write_private(tmp_path / "s", "  a\nb  \n")
    assert secrets.resolve_secret(f"file:{file}") == "  a\nb  "


def test_tilde_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_private(tmp_path / "s", VALUE)
    assert secrets.resolve_secret("file:~/s") == VALUE


@each_case("mode", [0o644, 0o640, 0o604, 0o660, 0o620, 0o610])
def test_file_that_others_can_read_is_rejected_with_the_remedy(tmp_path: Path, mode: int) -> None:
    file = write_private(tmp_path / "s", VALUE)
    file.chmod(mode)
    assert f"chmod 600 {file}" in resolve_failing(f"file:{file}", Refused).message


def test_missing_empty_or_directory_reference_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", write_private(tmp_path / "empty", "\n"), tmp_path):
        assert str(path) in resolve_failing(f"file:{path}", NotFound).message


def test_file_that_is_not_text_is_not_found(tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_bytes(VALUE.encode() + b"\xff\xfe")
    file.chmod(0o600)
    resolve_failing(f"file:{file}", NotFound)


# -- command ---------------------------------------------------------------------------------


def python(code: str) -> str:
    return f"cmd:{sys.executable} -c '{code}'"


def test_command_reference() -> None:
    assert secrets.resolve_secret(python(f'print("{VALUE[:7]}" + "{VALUE[7:]}")')) == VALUE


def test_command_is_split_like_a_shell_and_run_without_one(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1])"
    assert (
        secrets.resolve_secret(f"cmd:{sys.executable} -c '{code}' \"a  b; $HOME\"") == "a  b; $HOME"
    )


@each_case(
    "code",
    [
        'import sys; print("hunter2" + "-do-not-tell"); sys.exit(3)',
        'import sys; sys.stderr.write("hunter2" + "-do-not-tell"); sys.exit(1)',
        "pass",
        'import os; print("hunter2" + "-do-not-tell", flush=True); os.kill(os.getpid(), 9)',
    ],
    ids=["prints and fails", "complains", "says nothing", "is killed"],
)
def test_failing_command_is_not_found_and_its_output_is_hidden(code: str) -> None:
    assert resolve_failing(python(code), NotFound).details["reason"] == "command_failed"


def test_command_that_prints_no_text_is_not_found() -> None:
    code = 'import sys; sys.stdout.buffer.write(b"hunter2" + b"-do-not-tell" + bytes([255]))'
    resolve_failing(python(code), NotFound)


@each_case("command", ["/no/such/program", "no-such-program-here x", "'unclosed"])
def test_command_that_cannot_be_run_is_not_found(command: str) -> None:
    resolve_failing(f"cmd:{command}", NotFound)


def test_hanging_command_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "COMMAND_SECONDS", 0.3)
    code = 'import time; print("hunter2" + "-do-not-tell", flush=True); time.sleep(3600)'
    resolve_failing(python(code), NotFound)


def test_command_has_no_input() -> None:
    code = 'import sys; print("input:" + sys.stdin.read())'
    assert secrets.resolve_secret(python(code)) == "input:"


# -- key ring --------------------------------------------------------------------------------


def test_missing_keyring_package_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert "corral[keyring]" in resolve_failing("keyring:corral/token", Invalid).message
    with pytest.raises(Invalid):
        secrets.store_in_keyring("token", VALUE)


class FakeKeyring:
    """A fake keyring, because a test must not use the user's."""

    def __init__(self, entries: dict[tuple[str, str], str], broken: bool = False) -> None:
        self.entries = entries
        self.broken = broken

    def get_password(self, service: str, name: str) -> str | None:
        if self.broken:
            raise RuntimeError(f"locked, and it held {VALUE}")
        return self.entries.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        if self.broken:
            raise RuntimeError(f"locked, and was given {value}")
        self.entries[service, name] = value


def test_keyring_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", FakeKeyring({("corral", "a/b"): VALUE}))
    assert secrets.resolve_secret("keyring:corral/a/b") == VALUE
    assert "corral/other" in resolve_failing("keyring:corral/other", NotFound).message


def test_failing_keyring_does_not_leak_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", FakeKeyring({}, broken=True))
    assert "RuntimeError" in resolve_failing("keyring:corral/token", NotFound).message
    with pytest.raises(Refused) as caught:
        secrets.store_in_keyring("token", VALUE)
    assert VALUE not in "".join(traceback.format_exception(caught.value))


def test_value_stored_in_a_keyring_is_found_by_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", FakeKeyring({}))
    assert secrets.resolve_secret(secrets.store_in_keyring("token", VALUE)) == VALUE


# -- storing -------------------------------------------------------------------------------


def test_value_stored_in_a_file_is_found_by_its_reference(tmp_path: Path) -> None:
    reference = secrets.store_in_file(tmp_path / "kept", "token", VALUE)
    assert reference == f"file:{tmp_path}/kept/token"
    assert secrets.resolve_secret(reference) == VALUE
    assert (tmp_path / "kept" / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


@each_case("reference", ["", "token", "vault:x", "env:", "cmd:  ", VALUE])
def test_invalid_reference_is_rejected_and_not_repeated(reference: str) -> None:
    resolve_failing(reference, Invalid)


def test_special_file_is_rejected_without_blocking(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe, 0o600)
    large.write_bytes(b"x" * (1 << 20))
    large.chmod(0o600)
    for path in (pipe, large, Path("/dev/zero")):
        with pytest.raises(Refused):
            secrets.resolve_secret(f"file:{path}")

"""Call the command line in this process and capture its output."""

import json
from typing import Any, NamedTuple

import pytest

from corral.cli.main import run


class CliResult(NamedTuple):
    code: int
    out: str
    err: str


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str], url: str | None = None) -> None:
        self._capsys = capsys
        self._store = ["--store", url] if url else []

    def __call__(self, *arguments: str) -> CliResult:
        code = run([*self._store, *arguments])
        captured = self._capsys.readouterr()
        return CliResult(code, captured.out, captured.err)

    def json(self, *arguments: str) -> Any:
        """Return the value that a command prints with --json; the command must succeed."""
        result = self(*arguments, "--json")
        assert result.code == 0, result.err
        return json.loads(result.out)

    def error(self, *arguments: str) -> dict[str, Any]:
        """Return the error that a command prints with --json, with its exit code; stdout stays
        empty."""
        result = self("--json", *arguments)
        assert result.out == ""
        error: dict[str, Any] = json.loads(result.err)["error"]
        return error | {"exit_code": result.code}

"""The wording of help texts and error messages is the reviewed one."""

import pytest

from tests import golden


def test_help_texts_match_the_golden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    golden.check("help")


def test_error_messages_match_the_golden_file() -> None:
    golden.check("errors")

"""Redaction of the daemon's log."""

import logging

from corral.adapters.redaction import Redaction
from corral.serve import RedactingFormatter
from tests.support.fake_keys import KEY


def test_log_line_is_redacted() -> None:
    clean = RedactingFormatter()
    clean.clean = Redaction(lambda: ["hunter2-and-more"]).clean
    try:
        raise ValueError(f"https://ada:{KEY}@example.org says hunter2-and-more")
    except ValueError as error:
        record = logging.LogRecord(
            "corral", logging.ERROR, "", 1, "%s failed", (KEY,), (ValueError, error, None)
        )
    text = clean.format(record)
    assert "[redacted] failed" in text
    assert "ValueError: https://[redacted]@example.org says [redacted]" in text
    assert KEY not in text

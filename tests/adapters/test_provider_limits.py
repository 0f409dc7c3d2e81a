"""Reset times of quotas, parsed from the messages of the providers."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from corral.adapters.providers.limits import parse_limit, parse_reset_time

NOW = int(datetime(2026, 11, 15, 23, 33, tzinfo=UTC).timestamp() * 1_000)


def timestamp(*time: int, zone: str = "UTC") -> int:
    return int(datetime(*time, tzinfo=ZoneInfo(zone)).timestamp() * 1_000)


@pytest.mark.parametrize(
    ("message", "time"),
    [
        ("You've hit your limit · resets 1:35am (UTC)", timestamp(2026, 11, 16, 1, 35)),
        ("You've hit your limit · resets 11pm (Europe/Berlin)", timestamp(2026, 11, 16, 22)),
        ("Claude AI usage limit reached|1794792942", 1_794_792_942_000),
        (
            "You’ve hit your usage limit. Upgrade or try again at Nov 16th, 2026 1:34 AM.",  # noqa: RUF001
            timestamp(2026, 11, 16, 1, 34),
        ),
        ("usage limit; try again at 1:34 AM.", timestamp(2026, 11, 16, 1, 34)),
        ("usage limit; resets Jan 2 at 5pm", None),
        ("usage limit; resets Dec 2 at 5pm", timestamp(2026, 12, 2, 17)),
        ("usage limit reached, try again in 2 days 3 hours 4 minutes.", NOW + 183_840_000),
        ("quota exceeded. Please retry in 3600.5s.", NOW + 3_600_500),
        ("Rate limit reached. Please try again in 20s", NOW + 20_000),
        ("Usage limit reached; try again at 2026-11-16T00:00:00Z.", timestamp(2026, 11, 16)),
        ("Usage limit reached; resets 2026-11-16 00:00+01:00", timestamp(2026, 11, 15, 23)),
        ("too many requests", None),
        ("usage limit; resets Foo 45 at 99pm", None),
        ("usage limit; try again at 2031-01-01T00:00:00Z", None),
    ],
)
def test_reset_time_is_parsed(message: str, time: int | None) -> None:
    assert parse_reset_time(message, NOW, UTC) == time
    limit = parse_limit(message, NOW)
    assert limit is not None
    assert limit.message == message


@pytest.mark.parametrize("message", ["", "no such file", "invalid_request_error", "code 4290"])
def test_another_error_is_not_a_limit(message: str) -> None:
    assert parse_limit(message, NOW) is None


def test_time_of_day_is_in_the_local_time_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert parse_reset_time("limit reached, try again at 6 AM", NOW, berlin) == timestamp(
        2026, 11, 16, 5
    )

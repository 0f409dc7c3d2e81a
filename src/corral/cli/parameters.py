"""Parsers of options and arguments: durations, times, amounts, NAME=VALUE pairs and bodies."""

from collections.abc import Sequence
from typing import Any

import click


class ParsedIntType(click.ParamType[int]):
    """Base class of parameter types that parse a text into an integer."""

    def parse(self, text: str) -> int:
        """Return the value of `text`. Raises Invalid."""
        raise NotImplementedError

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        from corral.kernel.errors import Invalid

        if isinstance(value, int):
            return value
        try:
            return self.parse(value)
        except Invalid as error:
            self.fail(error.message, param, context)


class DurationType(ParsedIntType):
    """A duration such as 90s, 10m or 7d, in milliseconds."""

    name = "duration"

    def parse(self, text: str) -> int:
        from corral.kernel.clock import parse_duration

        return parse_duration(text)


class TimestampType(ParsedIntType):
    """An ISO 8601 time such as 2027-01-15T09:00; local time unless it has a UTC offset.

    Its value is in milliseconds since 1970.
    """

    name = "time"

    def parse(self, text: str) -> int:
        from datetime import datetime

        from corral.kernel.errors import Invalid

        try:
            return round(datetime.fromisoformat(text).timestamp() * 1_000)
        except (ValueError, OverflowError, OSError):
            raise Invalid(
                f"Invalid time {text!r}: expected an ISO 8601 time such as 2027-01-15T09:00 or "
                "2027-01-15T09:00+01:00."
            ) from None


class UsdType(ParsedIntType):
    """An amount of US dollars such as 5, 0.25 or $12.50, in micro-dollars."""

    name = "USD"

    def parse(self, text: str) -> int:
        from corral.kernel.money import parse_usd

        return parse_usd(text)


DURATION = DurationType()
TIMESTAMP = TimestampType()
USD = UsdType()


def parse_pairs(values: Sequence[str], what: str) -> dict[str, str]:
    """Parse NAME=VALUE arguments; `what` is the option or argument, for the error message."""
    from corral.kernel.errors import Invalid

    pairs = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid(f"Invalid {what} {text!r}: expected NAME=VALUE.", value=text)
        pairs[name] = value
    return pairs


def read_body(source: str, as_json: bool) -> Any:
    """Return `source` itself, the content of `@FILE`, or standard input for `-`.

    With `as_json` the text is decoded as JSON. Raises Invalid.
    """
    from corral.kernel.errors import Invalid

    text = source
    if source == "-" or source.startswith("@"):
        try:
            with click.open_file(source.removeprefix("@"), encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise Invalid(f"Cannot read {source[1:]}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise Invalid("The body is not valid UTF-8. Convert it to UTF-8 first.") from None
    if not as_json:
        return text
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"The body is not valid JSON: {error}.") from None

"""Text length limits and retry delays of the chat platforms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.adapters.channels.contract import (
    ChannelTraits,
    FailedMessage,
    LengthUnit,
    MessageKind,
    OutgoingMessage,
)
from corral.adapters.channels.matrix import MatrixAdapter
from corral.adapters.channels.message_text import (
    measure_text,
    split_for_channel,
    split_text,
    truncate_text,
)
from corral.adapters.channels.registry import BUILTIN_KINDS, get_traits
from corral.adapters.channels.telegram import TelegramAdapter
from tests.support.chat_server_stub import Answer, platform


@pytest.mark.parametrize(
    ("count", "size"),
    [(LengthUnit.CHARACTERS, 3), (LengthUnit.UTF16_UNITS, 4), (LengthUnit.BYTES, 7)],
)
def test_text_length_is_counted_as_the_platform_does(count: LengthUnit, size: int) -> None:
    assert measure_text("aé🦙", count) == size


@given(st.text(), st.integers(4, 40), st.sampled_from(LengthUnit))
def test_split_text_keeps_all_words_within_the_limit(
    text: str, most: int, count: LengthUnit
) -> None:
    pieces = split_text(text, most, count)
    assert all(measure_text(piece, count) <= most for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(st.text(min_size=1), st.integers(4, 40), st.sampled_from(LengthUnit))
def test_each_part_is_as_long_as_possible(text: str, limit: int, count: LengthUnit) -> None:
    part = truncate_text(text, limit, count)
    assert text.startswith(part)
    assert measure_text(part, count) <= limit
    assert part == text or measure_text(text[: len(part) + 1], count) > limit


def test_single_message_text_is_truncated() -> None:
    traits = ChannelTraits(max_text=8, length_unit=LengthUnit.UTF16_UNITS)
    assert split_for_channel("🦙🦙🦙🦙🦙", traits, MessageKind.TEXT) == ["🦙🦙🦙🦙", "🦙"]
    assert split_for_channel("🦙🦙🦙🦙🦙", traits, MessageKind.EDIT) == ["🦙🦙🦙🦙"]


@pytest.mark.parametrize("kind", BUILTIN_KINDS)
def test_every_kind_accepts_text_of_its_maximum_length(kind: str) -> None:
    traits = get_traits(kind)
    text = "🦙" * traits.max_text
    assert all(
        measure_text(part, traits.length_unit) <= traits.max_text
        for part in split_text(text, traits.max_text, traits.length_unit)
    )


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        ((429, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1_234}), 1_234),
        ((429, {"ok": False, "parameters": {"retry_after": 3}}), 3_000),
        ((429, {}, {"Retry-After": "7"}), 7_000),
        ((429, {"retry_after_ms": "soon"}), None),
        ((429, {"retry_after_ms": 10**12}), 3_600_000),
        ((429, b"[]"), None),
    ],
)
def test_retry_after_is_parsed_in_every_format(answer: Answer, pause: int) -> None:
    message = OutgoingMessage(key="k", place="1", text="hello")
    with platform(lambda request: answer) as api:
        for adapter in (
            MatrixAdapter({"base_url": api.url}, {"token": "t"}),
            TelegramAdapter({"base_url": api.url}, {"token": "t"}),
        ):
            outcome = adapter.send(message)
            adapter.stop()
            assert isinstance(outcome, FailedMessage)
            assert outcome.retry_ms == pause

"""Input streams of an agent: buffering, limits and closing."""

import os
import select
from pathlib import Path

import pytest

from corral.supervisor.streams import AgentStreams, ProtocolStreams, TerminalStreams


@pytest.fixture(params=["protocol", "terminal"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> AgentStreams:
    if request.param == "protocol":
        return ProtocolStreams(tmp_path, stdin=None, split=False)
    return TerminalStreams(tmp_path, rows=24, columns=80)


def discard(data: bytes) -> None:
    """Ignore the output of the agent."""


def has_pending_input(streams: AgentStreams) -> bool:
    poll = select.poll()
    streams.register(poll)
    return any(event & select.POLLOUT for _, event in poll.poll(0))


def test_unread_input_is_buffered_without_blocking(streams: AgentStreams) -> None:
    agent = streams.open_stdio().stdin
    lines = [b"%0120d\n" % nth for nth in range(1_000)]
    for line in lines:
        assert streams.type_in(line)  # more than a terminal or a pipe can buffer
    assert not has_pending_input(streams)
    os.set_blocking(agent, False)
    received = b""
    while len(received) < sum(map(len, lines)):
        try:
            received += os.read(agent, 1 << 16)
        except BlockingIOError:
            assert has_pending_input(streams)
            streams.handle((), discard, discard)
    assert received == b"".join(lines)
    streams.close()


def test_input_is_bounded_when_the_agent_does_not_read(streams: AgentStreams) -> None:
    streams.open_stdio()
    assert not streams.type_in(b"x" * (streams.max_pending_input + 1))
    assert streams.type_in(b"x" * streams.max_pending_input)
    assert not streams.type_in(b"y" * (1 << 20))
    streams.close()
    assert not streams.type_in(b"z")


def test_closing_the_input_comes_after_buffered_text(tmp_path: Path) -> None:
    streams = ProtocolStreams(tmp_path, stdin=None, split=False)
    agent = streams.open_stdio().stdin
    agent = os.dup(agent)
    streams.close_child_ends()
    assert streams.type_in(b"x" * 200_000)
    assert streams.close_input()
    assert not streams.type_in(b"y")
    received = 0
    while data := os.read(agent, 1 << 16):
        received += len(data)
        streams.handle((), discard, discard)
    assert received == 200_000
    os.close(agent)
    streams.close()


def test_nothing_is_written_to_a_closed_input(tmp_path: Path) -> None:
    streams = ProtocolStreams(tmp_path, stdin=None, split=False)
    streams.open_stdio()
    streams.close_child_ends()
    assert not streams.type_in(b"x")
    assert not has_pending_input(streams)
    streams.close()

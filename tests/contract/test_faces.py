"""Every operation of the library can be reached from the command line, or says why not."""

import pytest

from corral.interfaces.cli.main import root
from corral.library.operations import Row, operations

# attribute.verb -> why people have no use for it on the command line, or where it is instead.
ELSEWHERE = {
    "db.schema_version": "`corral db check` says it",
    "events.after": "`corral events --after`",
    "events.follow": "`corral events -f`",
    "events.newest": "`corral events`",
    "mail.ack_and_claim": "for programs that work in a loop",
    "mail.doubt": "for programs that act on the outside world",
    "mail.expire_due": "the janitor's work",
    "mail.get": "`corral mail show`",
    "mail.next_due": "for programs that wait",
    "mail.refuse": "for programs that have rules; people `drop`",
    "nodes.get": "`corral node list` shows all there is",
    "nodes.heartbeat": "the daemon's work",
    "nodes.join": "the daemon's work",
    "nodes.leave": "the daemon's work",
    "nodes.lose_silent": "the daemon's work",
    "nodes.take_lead": "the daemon's work",
    "nodes.yield_lead": "the daemon's work",
    "projects.by_dir": "`corral project show DIR`",
    "projects.get": "`corral project show`",
    "projects.touch": "done by every run",
    "schedules.fire_due": "`corral schedule fire`",
    "schedules.get": "`corral schedule show`",
    "schedules.next_at": "for programs that wait",
    "secrets.get": "`corral secret list`",
    "secrets.keep": "`corral secret set --keep`",
    "secrets.resolve": "`corral secret check`, which never shows the value",
    "timers.get": "`corral timer show`",
}

ROWS = list(operations())


def test_there_are_operations() -> None:
    assert len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.attribute}.{row.verb}")
def test_an_operation_has_its_command_or_a_reason(row: Row) -> None:
    name = f"{row.attribute}.{row.verb}"
    noun = root.get_command(root.make_context("corral", [], resilient_parsing=True), row.noun)
    commands = getattr(noun, "commands", {})
    assert (row.verb in commands) != (name in ELSEWHERE), name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.attribute}.{row.verb}")
def test_an_operation_says_in_a_line_what_it_does(row: Row) -> None:
    assert row.help.endswith((".", ";")), f"{row.attribute}.{row.verb}"


def test_no_reason_is_left_over() -> None:
    assert {*ELSEWHERE} <= {f"{row.attribute}.{row.verb}" for row in ROWS}

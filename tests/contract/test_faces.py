"""Every operation of the library can be reached from the command line, or says why not."""

import pytest

from corral.interfaces.cli.main import root
from corral.library.operations import Row, operations

# attribute.verb -> why people have no use for it on the command line, or where it is instead.
ELSEWHERE = {
    "alerts.get": "`corral alert list` shows all there is",
    "alerts.see_to_delivery": "done by whatever raises an alert",
    "alerts.raise_alert": "the keeper's and the reaper's work",
    "budgets.get": "`corral budget list`",
    "charges.add": "the keeper's work",
    "charges.get": "`corral charge show`",
    "charges.over_budget": "the keeper's work",
    "charges.price_unknown": "`corral charge price`",
    "charges.release": "done when a run ends",
    "charges.reserve": "done when a run starts",
    "charges.set_prices": "`corral charge price`",
    "charges.unpriced": "`corral charge price`",
    "imports.bring": "`corral import claude` and `corral import codex`",
    "events.before": "the dashboard's way back; `corral events --after` goes on from any place",
    "insights.costs": "`corral stats`, and the dashboard's plots",
    "insights.named": "the dashboard's search",
    "insights.names": "for whoever shows ids to people",
    "insights.crashed": "for programs; people ask for runs by their state",
    "insights.look_back": "`corral session retro`",
    "insights.overview": "`corral` alone",
    "insights.project": "for programs; people ask for a project's runs",
    "insights.stats": "`corral stats`",
    "agents.get": "`corral agent show`",
    "agents.version": "`corral agent show --version`",
    "db.schema_version": "`corral db check` says it",
    "events.after": "`corral events --after`",
    "events.follow": "`corral events -f`",
    "events.newest": "`corral events`",
    "locks.commit": "`corral commit`",
    "locks.end_of_run": "done at the end of every run",
    "locks.expire_due": "the janitor's work, and done by `corral lock list`",
    "locks.get": "`corral lock show`",
    "guard.in_the_way": "`corral lock check`",
    "guard.place_of": "part of the commands that take a path",
    "guard.take_for_edit": "done by the hooks",
    "locks.touch": "done by the hooks",
    "mail.ack_and_claim": "for programs that work in a loop",
    "mail.doubt": "for programs that act on the outside world",
    "mail.expire_due": "the janitor's work",
    "mail.get": "`corral mail show`",
    "mail.next_due": "for programs that wait",
    "mail.refuse": "for programs that have rules; people `drop`",
    "nodes.get": "`corral node list` shows all there is",
    "nodes.beat": "the daemon's work",
    "nodes.heartbeat": "the daemon's work",
    "nodes.join": "the daemon's work",
    "nodes.leaders": "`corral status`",
    "nodes.leave": "the daemon's work",
    "nodes.serving": "`corral status`",
    "nodes.lose_silent": "the daemon's work",
    "nodes.take_lead": "the daemon's work",
    "nodes.yield_lead": "the daemon's work",
    "outputs.add_chunk": "part of sealing",
    "outputs.begin": "the keeper's work",
    "outputs.chunk": "`corral logs` reads them",
    "outputs.clear_deleted": "part of `corral db prune`",
    "outputs.delete": "deleted with its run",
    "outputs.forget": "forgotten with its run",
    "outputs.follow": "`corral logs -f`",
    "outputs.get": "`corral show RUN`",
    "outputs.index": "`corral logs` reads it",
    "outputs.log": "the keeper's work",
    "outputs.log_lines": "`corral logs`",
    "outputs.log_many": "the keeper's work",
    "outputs.lose": "part of `corral recover`",
    "outputs.open": "`corral logs`",
    "outputs.progress": "the keeper's work",
    "outputs.seal": "the keeper's work",
    "outputs.seal_folder": "the keeper's work",
    "outputs.unsealed": "part of `corral recover`",
    "runs.add_sample": "the keeper's work",
    "runs.after_end": "the keeper's work, and part of `corral recover`",
    "runs.ask": "`corral run`",
    "runs.begin_to_stop": "part of `corral stop`",
    "runs.by_pid": "`corral show` takes a run; for programs that know a pid",
    "runs.call_for": "the keeper's work",
    "runs.delete": "`corral db prune` forgets old runs; for programs",
    "runs.delete_all": "part of `corral project delete`",
    "runs.describe": "the keeper's work",
    "runs.end": "the keeper's work",
    "runs.fail": "done when a queued run can never be started",
    "runs.finish": "for programs that started the process themselves",
    "runs.give_up": "a recovery's work",
    "runs.get": "`corral show`",
    "runs.heartbeat": "the keeper's work",
    "runs.launch": "the keeper's work",
    "runs.launch_of": "`corral show`",
    "runs.list": "`corral ps`",
    "runs.lose": "for programs that started the process themselves",
    "runs.next_due": "for programs that wait",
    "runs.park": "the keeper's work",
    "runs.record": "for programs that started the process themselves",
    "runs.recover": "`corral recover`",
    "runs.refreshed": "done by every command that shows a run",
    "runs.request": "`corral run`",
    "runs.restart": "the keeper's work",
    "runs.resume": "`corral resume`",
    "runs.samples": "`corral show`",
    "runs.send": "`corral send`",
    "runs.start": "the keeper's work",
    "runs.start_queued": "done by every end of a run, and by `corral recover`",
    "runs.stop": "`corral stop`",
    "runs.take_over": "the keeper's work",
    "runs.takes_input": "part of `corral run`",
    "runs.tell": "the keeper's work",
    "runs.unclaim": "the keeper's work",
    "runs.wait": "`corral wait`",
    "runs.wait_for_start": "part of `corral run`",
    "projects.around": "part of the commands that take a path",
    "projects.by_dir": "`corral project show DIR`",
    "projects.get": "`corral project show`",
    "projects.touch": "done by every run",
    "schedules.fire_due": "`corral schedule fire`",
    "schedules.get": "`corral schedule show`",
    "schedules.next_at": "for programs that wait",
    "search.behind": "`corral search` says it",
    "search.catch_up": "done by every search",
    "search.find": "`corral search`",
    "search.index_turns": "done by every search",
    "sessions.append_many": "for programs; people append one at a time",
    "sessions.by_provider": "for programs that import",
    "sessions.get": "`corral session show`",
    "sessions.last": "`corral session turns --newest`",
    "sessions.record_retro": "for programs that look back",
    "sessions.retros": "`corral session retro`",
    "sessions.set_provider_session": "done by every run",
    "sessions.set_state": "`corral session state SESSION NAME VALUE`",
    "secrets.get": "`corral secret list`",
    "secrets.keep": "`corral secret set --keep`",
    "secrets.value_of": "the keeper's work",
    "secrets.resolve": "`corral secret check`, which never shows the value",
    "timers.get": "`corral timer show`",
    "tokens.check": "the API's work",
    "tokens.get": "`corral token list` shows all there is",
    "tokens.in_file": "the daemon's work",
    "tokens.note_use": "the API's work",
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

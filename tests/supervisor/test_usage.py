"""Usage, budgets and denials of a fake codex that writes transcripts like the real CLI."""

from pathlib import Path

import pytest

from corral.domain.runs.model import Run, RunState
from tests.support.home import Home, wait_until

CODEX = """#!/usr/bin/env python3
import json, os, sys, time, datetime
if "--version" in sys.argv:
    print("codex-cli 0.169.0"); sys.exit()
thread = "01a1ec0e-4b91-7cd1-a064-" + f"{os.getpid():012d}"
folder = os.path.expanduser("~/.codex/sessions/2026/11/18")
os.makedirs(folder, exist_ok=True)
file = open(f"{folder}/rollout-2026-11-18T00-28-42-{thread}.jsonl", "w")
def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")
def write(kind, **payload):
    file.write(json.dumps({"timestamp": now(), "type": kind, "payload": payload}) + "\\n")
    file.flush()
def add_message(text, role="assistant"):
    write("response_item", type="message", role=role, content=[{"type": "text", "text": text}])
def report_usage(tokens):
    total = {"input_tokens": tokens, "cached_input_tokens": 0, "output_tokens": 10}
    write("event_msg", type="token_count", info={"total_token_usage": total})
write("session_meta", id=thread, cwd=os.getcwd(), timestamp=now(), cli_version="0.169.0")
write("turn_context", model=os.environ.get("MODEL", "gpt-5-codex"))
if "--json" in sys.argv:
    print(json.dumps({"type": "thread.started", "thread_id": thread}), flush=True)
add_message("the prompt", "user")
add_message("I look at it.")
report_usage(int(os.environ.get("TOKENS", "1000")))
write("response_item", type="function_call", name="exec_command", call_id="c1", arguments="{}")
write("response_item", type="function_call_output", call_id="c1",
      output="a.txt: Read-only file system")
if os.environ.get("ENDS"):
    if "--json" in sys.argv:
        usage = {"input_tokens": int(os.environ.get("TOKENS", "1000")), "output_tokens": 10}
        print(json.dumps({"type": "turn.completed", "usage": usage}), flush=True)
    sys.exit()
time.sleep(600)
"""


@pytest.fixture
def codex_home(home: Home) -> Home:
    """A home with a fake codex on the PATH and an empty user home."""
    programs = home.folder / "programs"
    programs.mkdir()
    (programs / "codex").write_text(CODEX)
    (programs / "codex").chmod(0o755)
    user_home = home.folder / "user"
    user_home.mkdir()
    home.env |= {"PATH": f"{programs}:{home.env['PATH']}", "HOME": str(user_home)}
    home.env.pop("CODEX_HOME", None)
    return home


def start_codex(home: Home, *options: str, **env: str) -> Run:
    return home.start_agent("codex", "look at it", *options, env=env)


def test_budget_stops_a_run_whose_stream_reports_nothing_yet(codex_home: Home) -> None:
    ended = codex_home.wait_for_end(
        start_codex(codex_home, "--budget", "0.10", "--grace-period", "1s", TOKENS="2000000").id
    )
    assert ended.state is RunState.CANCELLED
    assert ended.reason == "its budget is spent: $2.50 of $0.10"
    assert ended.cost_micros == 2_500_100
    codex_home.wait_for_all_processes()


def test_global_budget_stops_a_run_without_its_own(codex_home: Home) -> None:
    codex_home.corral("budget", "set", "all", "0.10")
    ended = codex_home.wait_for_end(
        start_codex(codex_home, "--grace-period", "1s", TOKENS="2000000").id
    )
    assert ended.state is RunState.CANCELLED
    assert str(ended.reason).startswith("the budget of everything is spent: $2.50")


def test_spending_of_another_run_stops_a_run_of_the_same_budget(codex_home: Home) -> None:
    first = start_codex(codex_home, "--grace-period", "1s", TOKENS="1000")
    wait_until(lambda: codex_home.get(first.id).cost_micros, "a charge is recorded")
    codex_home.corral("budget", "set", "all", "0.10")
    with codex_home.store() as store:
        from corral.adapters.providers.facts import UsageFact

        store.charges.add(UsageFact("m", input=1, cost_micros=1_000_000), run_id="run_other")
    ended = codex_home.wait_for_end(first.id)
    assert ended.state is RunState.CANCELLED
    assert str(ended.reason).startswith("the budget of everything is spent")


def test_model_without_a_price_ends_a_run_with_a_budget(codex_home: Home) -> None:
    ended = codex_home.wait_for_end(
        start_codex(codex_home, "--budget", "5", "--grace-period", "1s", MODEL="unknown-model").id
    )
    assert ended.state is RunState.CANCELLED
    assert str(ended.reason).startswith("the price of unknown-model is unknown")
    codex_home.corral("setting", "set", "budgets.unknown_prices", "allow")
    other = start_codex(codex_home, "--budget", "5", MODEL="unknown-model", ENDS="1")
    assert codex_home.wait_for_end(other.id).state is RunState.COMPLETED


def test_stream_and_transcript_are_charged_once(codex_home: Home) -> None:
    ended = codex_home.wait_for_end(start_codex(codex_home, TOKENS="1000", ENDS="1").id)
    assert (ended.state, ended.tokens) == (RunState.COMPLETED, 1_010)
    with codex_home.store() as store:
        total = store.charges.total(f"run:{ended.id}")
    assert (total.input, total.output, total.unpriced) == (1_000, 10, 0)


def test_denied_calls_are_shown_with_the_command_that_approves_them(codex_home: Home) -> None:
    ended = codex_home.wait_for_end(start_codex(codex_home, ENDS="1").id)
    assert ended.denied == {"exec_command": 1}
    result = codex_home.corral("show", ended.id).stdout.decode()
    assert "completed, 1 denied (exec_command)" in result
    assert f"corral resume {ended.id} --yes run" in result
    listed = codex_home.corral("ps", "-a").stdout.decode()
    assert "completed, 1 denied (exec_command)" in " ".join(listed.split())
    waited = codex_home.corral("wait", ended.id).stdout.decode()
    assert f"{ended.id} is completed, 1 denied (exec_command)." in waited
    assert f"corral resume {ended.id} --yes run" in waited


@pytest.mark.parametrize("options", [("--pty",), ()], ids=["terminal", "pipe"])
def test_known_cli_as_a_command_is_recorded_while_it_runs(
    codex_home: Home, options: tuple[str, ...]
) -> None:
    run = codex_home.start_detached("codex", options=options)
    live = wait_until(
        lambda: current if (current := codex_home.get(run.id)).tokens else None, "usage is recorded"
    )
    assert live.is_live
    assert (live.cost_micros or 0) > 0
    with codex_home.store() as store:
        session = store.sessions.get(str(live.session_id))
        turns = store.sessions.turns(session.id).items
    assert session.provider == "codex"
    transcript = next(Path(codex_home.env["HOME"]).glob(".codex/sessions/**/*.jsonl"))
    assert str(session.provider_session) in transcript.name
    contents = [(str(turn.role), turn.content) for turn in turns[:2]]
    assert contents == [("user", "the prompt"), ("assistant", "I look at it.")]
    assert {turn.run_id for turn in turns} == {run.id}
    codex_home.corral("stop", run.id, "--grace-period", "1s")
    ended = codex_home.wait_for_end(run.id)
    # A later import recognizes the conversation.
    report = codex_home.json("import", "codex", "--json")
    assert (report["own"], report["turns"], report["charges"]) == (1, 0, 0)
    with codex_home.store() as store:
        assert len(store.sessions.list().items) == 1
        assert len(store.sessions.turns(session.id).items) == len(turns)
        assert store.charges.total("all").tokens == ended.tokens


def test_turns_of_a_transcript_keep_their_time(codex_home: Home) -> None:
    run = codex_home.start_detached("codex")
    wait_until(lambda: codex_home.get(run.id).tokens, "usage is recorded")
    transcript = next(Path(codex_home.env["HOME"]).glob(".codex/sessions/**/*.jsonl"))
    import json

    from corral.adapters.transcripts.reader import parse_time

    lines = [json.loads(line) for line in transcript.read_text().splitlines()]
    times = [parse_time(line["timestamp"]) for line in lines if line["type"] == "response_item"]
    with codex_home.store() as store:
        turns = store.sessions.turns(str(codex_home.get(run.id).session_id)).items
        (charge,) = store.charges.list(run=run.id).items
    assert [turn.at for turn in turns] == times
    assert times[1] <= charge.at <= times[2]
    codex_home.corral("stop", run.id, "--grace-period", "1s")
    codex_home.wait_for_end(run.id)


@pytest.mark.parametrize(
    "arguments",
    [("--budget", "1", "--", "true"), ("--pty", "--agent", "scripted", "--budget", "1", "x")],
)
def test_budget_that_cannot_be_enforced_is_refused(home: Home, arguments: tuple[str, ...]) -> None:
    result = home.corral("run", "-d", *arguments)
    assert result.returncode not in (0, None)
    assert b"cannot be enforced" in result.stderr
    with home.store() as store:
        assert store.runs.list().items == []


def test_plain_command_of_an_agent_with_a_budget_is_refused(home: Home) -> None:
    home.corral("agent", "create", "bob", "--command", "true", "--budget", "1")
    result = home.corral("run", "-d", "--agent", "bob", "do it")
    assert b"cannot be enforced" in result.stderr

"""End-to-end runs of the scripted agent: turns, charges, dialogs and quotas are recorded."""

import json
import os
import signal
import time
from typing import Any

import pytest

from corral.adapters.providers.facts import LimitFact
from corral.domain.runs.model import Attention, Run, RunMode, RunState
from corral.supervisor.lease import RunLease
from tests.support.home import Home, is_alive, wait_until
from tests.support.run_factories import running

both_protocols = pytest.mark.parametrize("acp", [(), ("--acp",)], ids=["stream", "acp"])
# Micro-dollars of 1,000 tokens in and 500 out, at the scripted agent's prices.
COST = 10_500


def list_turns(home: Home, run: Run, role: str) -> list[Any]:
    assert run.session_id is not None
    with home.store() as store:
        all_turns = store.sessions.turns(run.session_id, limit=200).items
        return [turn for turn in all_turns if turn.role == role]


def list_assistant_lines(home: Home, run: Run) -> list[str]:
    """Return the lines of the assistant turns of the session."""
    texts = [turn.content for turn in list_turns(home, run, "assistant") if turn.tool_name is None]
    return "\n".join(texts).split("\n") if texts else []


def read_charges(home: Home, run: Run) -> tuple[int, int | None]:
    with home.store() as store:
        total = store.charges.total(f"run:{run.id}")
        return total.tokens, total.cost_micros


def wait_for_input_request(home: Home, run: Run) -> None:
    wait_until(lambda: home.get(run.id).attention is Attention.NEEDS_INPUT, "the agent asks")


@both_protocols
def test_turns_tool_calls_and_charges_are_recorded(home: Home, acp: tuple[str, ...]) -> None:
    file = home.work / "result"
    prompt = f"say hello there; write {file} some words; spend 1000 500; say goodbye"
    run = home.start_agent("scripted", prompt, *acp)
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.COMPLETED, 0)
    assert ended.mode is (RunMode.ACP if acp else RunMode.PIPE)
    assert file.read_text() == "some words\n"
    assert [turn.content for turn in list_turns(home, ended, "user")] == [prompt]
    lines = [line for line in list_assistant_lines(home, ended) if line]
    assert lines == ["hello there", "goodbye"]
    calls = [turn for turn in list_turns(home, ended, "assistant") if turn.tool_name is not None]
    results = list_turns(home, ended, "tool")
    assert [call.tool_name for call in calls] == ["write"]
    assert calls[0].arguments == {"file": str(file), "text": "some words"}
    assert [result.tool_call_id for result in results] == [calls[0].tool_call_id]
    assert all(turn.run_id == run.id for turn in (*calls, *results))
    assert read_charges(home, ended) == (1_500, COST)
    assert (ended.tokens, ended.cost_micros) == (1_500, COST)
    with home.store() as store:
        session = store.sessions.get(ended.session_id or "")
        assert session.provider_session
    assert (home.folder / "conversations" / f"{session.provider_session}.jsonl").exists()
    home.wait_for_all_processes()


@both_protocols
def test_resume_continues_the_conversation(home: Home, acp: tuple[str, ...]) -> None:
    run = home.wait_for_end(home.start_agent("scripted", "say first", *acp).id)
    reply = home.json("resume", "-d", "--json", run.id, "say second")
    resumed = home.wait_for_end(reply["id"])
    assert (resumed.state, resumed.session_id) == (RunState.COMPLETED, run.session_id)
    assert [line for line in list_assistant_lines(home, resumed) if line] == ["first", "second"]
    assert [turn.content for turn in list_turns(home, resumed, "user")] == [
        "say first",
        "say second",
    ]
    (conversation,) = (home.folder / "conversations").glob("*.jsonl")
    texts = [json.loads(line)["text"] for line in conversation.read_text().splitlines()]
    assert texts == ["say first", "first", "say second", "second"]


@both_protocols
def test_turns_of_a_crashed_agent_are_kept(home: Home, acp: tuple[str, ...]) -> None:
    ended = home.wait_for_end(home.start_agent("scripted", "say one; crash 7", *acp).id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 7)
    assert "one" in list_assistant_lines(home, ended)
    ended = home.wait_for_end(home.start_agent("scripted", "say two; kill KILL", *acp).id)
    assert (ended.state, ended.signal) == (RunState.CRASHED, 9)
    assert "two" in list_assistant_lines(home, ended)


def test_restart_continues_the_same_conversation(home: Home) -> None:
    count = home.work / "count"
    run = home.start_agent("scripted", f"say begun; fail 1 {count}", "--restart", "on-failure:2")
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.attempts) == (RunState.COMPLETED, 0, 2)
    assert count.read_text() == "1"
    (conversation,) = (home.folder / "conversations").glob("*.jsonl")
    turns = [json.loads(line) for line in conversation.read_text().splitlines()]
    prompts = [turn["text"] for turn in turns if turn["role"] == "user"]
    assert len(prompts) == 2, "the conversation was resumed"
    assert prompts[1] != prompts[0], "the first prompt is not sent again"


def test_spent_budget_ends_the_run(home: Home) -> None:
    prompt = "spend 1000 500; say cheap; spend 1000000 1000000; say expensive; hang"
    run = home.start_agent("scripted", prompt, "--acp", "--budget", "1.00", "--grace-period", "1s")
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CANCELLED
    assert (ended.reason or "").startswith("its budget is spent: $")
    assert (ended.cost_micros or 0) > 1_000_000
    home.wait_for_all_processes()


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_start_failure_with_a_long_reason_ends_the_run(home: Home, detach: tuple[str, ...]) -> None:
    home.corral("budget", "set", "all", "0.000001", "--period", "day")
    home.wait_for_end(home.start_agent("scripted", "spend 1000 500").id)
    result = home.corral("run", *detach, "--agent", "scripted", "say hello", seconds=30)
    assert result.returncode == 4, result
    assert b"corral budget set all USD --period day" in result.stderr
    missing = "/" + "x" * 180 + "/" + "y" * 180
    result = home.corral("run", *detach, "--", missing, seconds=30)
    assert result.returncode == 127, result
    with home.store() as store:
        command, refused = store.runs.list().items[:2]
    assert (refused.state, command.state) == (RunState.FAILED, RunState.FAILED)
    assert (refused.reason or "").endswith("--period day`.")
    assert command.reason == f"{missing}: No such file or directory"


def test_python_modules_in_the_working_directory_are_not_imported(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for the supervisor, the agent and the commands of alerts."""
    for name in ("queue", "secrets", "msgspec", "corral"):
        (home.work / f"{name}.py").write_text("raise SystemExit('loaded from the folder')\n")
    monkeypatch.chdir(home.work)  # supervisors start in the directory of the caller
    alert_file = home.folder / "alert"
    with home.store() as store:
        store.alerts.add(["finished"], target_kind="command", target=f"tee {alert_file}")
        run = store.runs.start(agent="scripted", prompt="say hello; spend 1000 500 gpt-5")
        store.runs.start_queued()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.COMPLETED, 0), home.output(ended)
    wait_until(alert_file.exists, "the alert was sent")


def test_exhausted_quota_parks_the_run_until_the_reset(home: Home) -> None:
    """Reads the events, because the run is parked only for a moment."""
    run = home.start_agent("scripted", "say before; quota 4")
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.attempts) == (RunState.COMPLETED, 0, 2)
    assert ended.attention is None
    with home.store() as store:
        events = store.events.newest(subject=run.id, limit=100).items
    (due_at,) = [event.data["until"] for event in events if "until" in (event.data or {})]
    assert (ended.started_at or 0) < due_at <= (ended.ended_at or 0)
    (conversation,) = (home.folder / "conversations").glob("*.jsonl")
    assert conversation.read_text().count('"role": "user"') == 2
    home.wait_for_all_processes()


def test_parked_run_shows_reason_and_time_and_can_be_stopped(home: Home) -> None:
    start = time.time() * 1_000
    run = home.start_agent("scripted", "say before; quota 3600")
    parked = home.in_state(run.id, RunState.QUEUED)
    assert parked.attention is Attention.PARKED
    assert parked.reason
    latest = time.time() * 1_000
    assert start + 3_598_000 < parked.due_at < latest + 3_602_000
    assert home.recover() == []  # it is not due
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    wait_until(lambda: not is_alive(parked.supervisor_pid or 0), "the supervisor exited")
    with home.store() as store:
        assert store.outputs.get(run.id).sealed_at is not None, "the supervisor cleaned up"


def test_parked_run_stays_parked_when_its_supervisor_gets_sigterm(home: Home) -> None:
    run = home.start_agent("scripted", "quota 3600")
    parked = home.in_state(run.id, RunState.QUEUED)
    assert parked.supervisor_pid is not None
    os.kill(
        parked.supervisor_pid, signal.SIGTERM
    )  # sent to all processes when the machine shuts down
    wait_until(lambda: not is_alive(parked.supervisor_pid or 0), "the supervisor exited")
    current = home.get(run.id)
    assert (current.state, current.attention) == (RunState.QUEUED, Attention.PARKED)
    assert not (home.folder_of(run) / "supervisor.error").exists()


def test_run_that_is_stopped_while_it_is_parked_ends(home: Home) -> None:
    with home.store() as store:
        run = running(store)
        lease = RunLease(store, run)
        store.internal.runs.request_stop(run.id)
        assert not lease.park(LimitFact("the quota is used up"))
        assert (lease.stop_reason, lease.is_parked) == ("stopped", False)


@pytest.mark.parametrize(("answer", "reply"), [("yes", "Answered: yes"), ("no", "No answer.")])
def test_permission_request_can_be_answered_remotely(home: Home, answer: str, reply: str) -> None:
    run = home.start_agent("scripted", "say so; ask May I do it?; say done", "--acp")
    wait_for_input_request(home, run)
    (listed,) = home.json("ps", "--json")
    assert listed["attention"] == "needs_input"
    result = home.corral("send", run.id, answer)
    assert result.returncode == 0, result.stderr
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.attention) == (RunState.COMPLETED, None)
    assert [line for line in list_assistant_lines(home, ended) if line] == ["so", reply, "done"]
    assert any("May I do it?" in line for line in home.log(ended))
    assert home.events(ended).count("set_attention") == 1


def test_invalid_answer_is_rejected_and_the_dialog_stays_open(home: Home) -> None:
    run = home.start_agent("scripted", "ask May I do it?; say done", "--acp")
    wait_for_input_request(home, run)
    result = home.corral("send", run.id, "perhaps later")
    assert result.returncode == 2
    assert b"Yes; No" in result.stderr
    assert home.json("ps", "--json")[0]["attention"] == "needs_input"
    assert home.corral("send", run.id, "YES").returncode == 0
    ended = home.wait_for_end(run.id)
    assert [line for line in list_assistant_lines(home, ended) if line] == ["Answered: yes", "done"]


@pytest.mark.parametrize("acp", [(), ("--acp",)])
def test_answer_without_an_open_dialog_is_reported(home: Home, acp: tuple[str, ...]) -> None:
    run = home.start_agent("scripted", "say begun; hang", "--grace-period", "300ms", *acp)
    wait_until(lambda: b"begun" in home.output_so_far(run), "the agent started")
    sent = home.json("send", "--json", run.id, "are you there?")
    assert sent["how"] == "mailed"
    with home.store() as store:
        assert store.mail.get(sent["letter_id"]).body == "are you there?"
    home.json("stop", run.id, "--json")


def test_agent_that_is_stopped_during_a_dialog_is_cancelled(home: Home) -> None:
    run = home.start_agent("scripted", "ask May I?", "--acp", "--grace-period", "300ms")
    wait_for_input_request(home, run)
    ended = home.json("stop", run.id, "--json")
    assert (ended["state"], ended["attention"]) == ("cancelled", None)
    home.wait_for_all_processes()


def test_dialog_of_an_interactive_agent_is_answered(home: Home) -> None:
    run = home.start_agent("scripted", "say so; ask May I?", "--pty")
    assert run.mode is RunMode.PTY
    wait_until(lambda: b"Do you want to proceed?" in home.output_so_far(run), "the agent asks")
    result = home.corral("send", run.id, "1")
    assert result.returncode == 0
    assert result.stdout == f"Answered {run.id}: 1. Yes.\n".encode()
    wait_until(lambda: b"Answered: yes" in home.output_so_far(run), "the dialog was answered")
    home.corral("send", run.id, "exit")
    assert home.wait_for_end(run.id).exit_code == 0


def test_interactive_agent_is_ended_after_the_idle_timeout(home: Home) -> None:
    run = home.start_agent("scripted", "say so", "--pty", "--idle-exit", "1s")
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.COMPLETED, 0)
    assert ended.reason == "no activity within the idle timeout"


def test_acp_agent_ends_when_its_supervisor_is_killed(home: Home) -> None:
    import os
    import signal

    run = home.start_agent("scripted", "say so; hang", "--acp")
    wait_until(lambda: b"so" in home.output_so_far(run), "the agent printed a line")
    os.kill(run.supervisor_pid or 0, signal.SIGKILL)
    wait_until(lambda: home.recover() is not None and not home.get(run.id).is_live, "the run ended")
    ended = home.get(run.id)
    assert ended.state in (RunState.CRASHED, RunState.COMPLETED, RunState.FAILED)
    assert not home.processes_of(run)
    home.wait_for_all_processes()


def test_stderr_of_an_acp_agent_is_redacted_while_it_is_written(home: Home) -> None:
    script = 'echo "err $PASS" >&2; touch started; while [ ! -e go ]; do sleep 0.1; done; exit 3'
    options = ("--acp", "--secret", "PASS=env:THE_PASS")
    env = {"THE_PASS": "hunter2-7f3a9c51e0"}
    run = home.start_detached("sh", "-c", script, options=options, env=env)
    wait_until((home.work / "started").exists, "the agent started")
    errors = home.folder_of(run) / "stderr"
    wait_until(lambda: errors.read_bytes().endswith(b"\n"), "stderr was copied")
    assert errors.read_bytes() == b"err [redacted]\n"
    (home.work / "go").touch()
    assert home.wait_for_end(run.id).exit_code == 3


def test_agent_that_does_not_read_its_input_does_not_block(home: Home) -> None:
    script = "touch started; exec sleep 1000"
    options = ("--acp", "--grace-period", "300ms")
    run = home.start_detached("sh", "-c", script, options=options)
    wait_until((home.work / "started").exists, "the agent started")
    home.corral("send", run.id, "x" * 60_000)
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"


@both_protocols
def test_foreground_shows_text_and_not_the_protocol(home: Home, acp: tuple[str, ...]) -> None:
    prompt = "say hello there; tool Read a.txt; say done"
    result = home.corral("run", "--agent", "scripted", *acp, prompt)
    assert result.returncode == 0
    assert result.stdout.startswith(b"hello there\n")
    assert result.stdout.endswith(b"done\n")
    assert b"jsonrpc" not in result.stdout + result.stderr
    run = home.only_run()
    assert home.corral("logs", run.id).stdout == result.stdout
    assert home.corral("logs", "--raw", run.id).stdout == home.output(run)


def test_dialog_shows_how_to_answer_it(home: Home) -> None:
    with home.begin(
        "run", "--agent", "scripted", "--name", "helper", "--acp", "ask May I?"
    ) as command:
        assert command.stdout is not None
        question = command.stdout.readline() + command.stdout.readline()
        wait_for_input_request(home, home.only_run())
        assert home.corral("send", "helper", "yes").returncode == 0
        command.communicate(timeout=60)
    assert b"? May I?" in question
    assert b"`corral send helper yes`" in question


def test_earlier_turns_of_a_resumed_conversation_are_not_shown_again(home: Home) -> None:
    assert home.corral("run", "--agent", "scripted", "--acp", "say first").returncode == 0
    result = home.corral("resume", home.only_run().id, "say second")
    assert result.stdout == b"second\n"


def test_resume_accepts_the_options_of_run(home: Home) -> None:
    run = home.wait_for_end(home.start_agent("scripted", "say one", "--budget", "1.00").id)
    options = ["--budget", "2.00", "--name", "again", "--yes", "edit", "--restart", "no"]
    reply = home.json("resume", "-d", run.id, "say two", *options, "--timeout", "1h", "--json")
    with home.store() as store:
        launch = store.runs.get_launch(reply["id"])
    assert (reply["name"], launch.budget_micros, launch.approvals) == ("again", 2_000_000, ["edit"])
    assert launch.timeout_ms == 3_600_000


@both_protocols
def test_agent_that_is_interrupted_from_the_keyboard_is_cancelled(
    home: Home, acp: tuple[str, ...]
) -> None:
    with home.begin("run", "--agent", "scripted", *acp, "say ready; sleep 600") as command:
        run = wait_until(lambda: next(iter(list_runs(home)), None), "the run is in the store")
        wait_until(lambda: b"ready" in home.output_so_far(run), "the agent printed a line")
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    assert command.returncode == 130
    assert home.wait_for_end(run.id).state is RunState.CANCELLED
    assert errors.decode() == f"corral: {run.id} is cancelled: signal 2.\n"


def list_runs(home: Home) -> list[Run]:
    with home.store() as store:
        return list(store.runs.list().items)

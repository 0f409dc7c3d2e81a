"""Basic commands for mail, projects, timers, schedules, settings, secrets and the store."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import corral
from corral.domain.mail.model import Letter
from corral.kernel.clock import HOUR
from tests.support.cli_runner import Cli
from tests.support.grouped_cases import each_case


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_letter_goes_through_its_whole_life(cli: Cli) -> None:
    letter = cli.json("mail", "put", "agent:ada", "hello", "--key", "k", "--sender", "user:ben")
    assert (letter["state"], letter["body"], letter["attempts"]) == ("waiting", "hello", 0)
    (claimed,) = cli.json("mail", "claim", "agent:ada", "--owner", "ada")
    assert (claimed["id"], claimed["claimed"], letter["claimed"]) == (letter["id"], True, False)
    assert cli.json("show", letter["id"])["claimed"] is True
    renewed = cli.json("mail", "renew", letter["id"], "--fence", "1", "--lease", "5m")
    assert renewed["due_at"] > claimed["due_at"]
    assert cli.json("mail", "ack", letter["id"], "--fence", "1")["state"] == "done"
    assert cli.json("mail", "list") == []
    (listed,) = cli.json("mail", "list", "--all")
    assert listed["id"] == letter["id"]


def test_expired_claim_has_no_owner(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("mail", "put", "agent:ada", "hello")
    cli("mail", "claim", "agent:ada", "--owner", "eve", "--lease", "1h")
    output = cli("mail", "list").out
    assert "claimed" in output
    assert "eve" in output
    monkeypatch.setattr(Letter, "is_claimed", lambda letter, now: now + 2 * HOUR < letter.due_at)
    output = cli("mail", "list").out
    assert "waiting" in output
    assert "eve" not in output


def test_failing_letter_is_dead_lettered_retried_and_dropped(cli: Cli) -> None:
    cli.json("setting", "set", "mail.max_attempts", "1")
    letter = cli.json("mail", "put", "queue:q", '{"n": 1}', "--as-json")
    assert letter["body"] == {"n": 1}
    cli.json("mail", "claim", "queue:q", "--owner", "w")
    assert cli.json("mail", "fail", letter["id"], "boom", "--fence", "1")["state"] == "dead"
    (dead,) = cli.json("mail", "dead")
    assert dead["last_error"] == "boom"
    assert cli.json("mail", "resend", letter["id"])["state"] == "waiting"
    assert cli.json("mail", "drop", letter["id"], "--reason", "enough")["state"] == "refused"
    (refused_letter,) = cli.json("mail", "list", "--state", "refused")
    assert refused_letter["last_error"] == "enough"


def test_claim_that_times_out_has_its_exit_code(cli: Cli) -> None:
    result = cli("mail", "claim", "agent:ada", "--owner", "a", "--wait", "--timeout", "10ms")
    assert (result.code, result.out) == (1, "No letters to claim in agent:ada.\n")
    assert cli("mail", "claim", "agent:ada", "--owner", "a").code == 0


def test_projects_are_registered_renamed_archived_and_forgotten(cli: Cli, tmp_path: Path) -> None:
    result = cli.json("project", "register", str(tmp_path), "--command", "claude", "--prompt", "hi")
    registered = cli.json("project", "register", f"{tmp_path}/")
    assert (registered["id"], registered["prompt"]) == (result["id"], "hi")
    assert cli.json("project", "register", str(tmp_path), "--prompt", "")["prompt"] is None
    assert cli.json("project", "show", str(tmp_path))["id"] == result["id"]
    assert cli.json("project", "rename", result["id"][:20], "new name")["name"] == "new name"
    assert cli.json("project", "archive", result["id"])["state"] == "archived"
    assert cli.json("project", "list") == []
    assert len(cli.json("project", "list", "--archived")) == 1
    unconfirmed = cli.error("project", "delete", result["id"])
    assert unconfirmed["exit_code"] == 4
    assert "--yes" in unconfirmed["message"]
    cli.json("project", "delete", result["id"], "--yes")
    assert cli.error("project", "show", result["id"])["exit_code"] == 3


def test_timer_without_a_daemon_prints_a_warning(cli: Cli, url: str) -> None:
    text = cli("timer", "set", "agent:ada", "wake", "--in", "1h").out
    assert "`corral up`" in text
    with corral.open(url) as store:
        store.internal.nodes.join("one", "boot", owner="me", lease_ms=HOUR)
    assert "`corral up`" not in cli("schedule", "create", "agent:ada", "x", "--every", "1h").out


def test_timers_and_schedules(cli: Cli) -> None:
    timer = cli.json("timer", "set", "agent:ada", "wake", "--in", "1h")
    assert [entry["id"] for entry in cli.json("timer", "list")] == [timer["id"]]
    assert cli.json("timer", "cancel", timer["id"])["state"] == "cancelled"
    result = cli.json("schedule", "create", "agent:ada", "tick", "--every", "10m", "--name", "t")
    assert cli.json("schedule", "pause", result["id"])["state"] == "paused"
    assert cli.json("schedule", "resume", result["id"])["state"] == "active"
    assert cli.json("schedule", "run", result["id"])["body"] == "tick"
    assert cli.json("schedule", "fire") == []
    assert cli.json("schedule", "delete", result["id"])["state"] == "cancelled"
    assert cli.json("schedule", "list") == []
    assert len(cli.json("schedule", "list", "--all")) == 1


def test_settings_take_durations_and_scopes(cli: Cli, tmp_path: Path) -> None:
    project = cli.json("project", "register", str(tmp_path))["id"]
    assert cli.json("setting", "set", "mail.retention_ms", "7d")["value"] == 7 * 86_400_000
    ladder = cli.json("setting", "set", "mail.backoff_ms", "1s 2s", "--project", project[:25])
    assert (ladder["value"], ladder["scope"]) == ([1_000, 2_000], f"project:{project}")
    assert cli.json("setting", "get", "mail.backoff_ms", "--project", project)["value"] == [
        1_000,
        2_000,
    ]
    assert cli.json("setting", "unset", "mail.retention_ms")["scope"] == "default"
    assert "mail.max_attempts" in cli("setting", "list").out


def test_secret_is_referenced_and_never_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKEN", "hush-hush")
    cli.json("secret", "set", "api", "env:TOKEN")
    assert cli.json("secret", "check", "api")["reference"] == "env:TOKEN"
    for item in (cli("secret", "list"), cli("secret", "check", "api"), cli("events")):
        assert "hush-hush" not in item.out + item.err
    error = cli.error("secret", "set", "oops", "sk-live-123456")
    assert error["code"] == "invalid"
    assert "sk-live" not in str(error)
    cli.json("secret", "delete", "api")
    assert cli.json("secret", "list") == []


def test_saved_secret_is_in_a_private_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("hush-hush\n"))
    secret = cli.json("secret", "set", "api", "--keep", "file")
    path = Path(secret["reference"].removeprefix("file:"))
    assert path.read_text() == "hush-hush"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert cli("secret", "check", "api").code == 0


def test_events_are_followed_from_a_cursor(cli: Cli) -> None:
    for body in ("one", "two", "three"):
        cli.json("mail", "put", "agent:ada", body)
    events = cli.json("events")
    assert [event["verb"] for event in events] == ["put", "put", "put"]
    assert len(cli.json("events", "--after", events[0]["cursor"])) == 2
    assert len(cli.json("events", "--subject", events[2]["subject"])) == 1
    lines = cli("events", "-f", "--after", events[1]["cursor"], "--timeout", "0s").out.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(f"letter put {events[2]['subject']}")


def test_store_is_checked_queried_and_pruned(cli: Cli) -> None:
    cli.json("mail", "put", "agent:ada", "hello")
    assert {finding["state"] for finding in cli.json("db", "check")} == {"ok"}
    assert {finding["state"] for finding in cli.json("db", "verify")} == {"ok"}
    assert cli.json("db", "sql", "SELECT count(*) AS n FROM letters") == [{"n": 1}]
    assert cli.error("db", "sql", "DELETE FROM letters")["exit_code"] == 2
    assert {row["rows"] for row in cli.json("db", "prune", "--dry-run")} == {0}
    assert cli.json("db", "migrate")["applied"] == []
    assert cli.json("db", "durability")["durability"] in ("normal", "full")
    assert cli.json("doctor")
    assert cli.json("node", "list") == []


def test_backup_restores_everything(cli: Cli, tmp_path: Path) -> None:
    cli.json("mail", "put", "agent:ada", "kept")
    file = tmp_path / "backup.db"
    assert cli.json("db", "backup", str(file))["bytes"] > 0
    assert file.stat().st_mode & 0o777 == 0o600
    cli.json("mail", "put", "agent:ada", "too late")
    cli.json("db", "restore", str(file), "--yes")
    assert [letter["body"] for letter in cli.json("mail", "list")] == ["kept"]
    assert cli.error("db", "backup", str(file))["exit_code"] == 2
    assert cli.error("db", "restore", str(tmp_path / "none"), "--yes")["exit_code"] == 2


def test_timer_is_set_for_a_time(cli: Cli) -> None:
    later = datetime.now().astimezone() + timedelta(days=1)
    for text in (later.isoformat(), later.replace(tzinfo=None).isoformat()):
        timer = cli.json("timer", "set", "agent:ada", "wake", "--at", text)
        assert timer["anchor_at"] == round(later.timestamp() * 1_000)


def test_body_is_printed_alone(cli: Cli) -> None:
    text = cli.json("mail", "put", "agent:ada", "two\nlines")["id"]
    assert cli("mail", "show", text, "--body").out == "two\nlines\n"
    assert cli.json("mail", "show", text, "--body") == "two\nlines"
    value = cli.json("mail", "put", "agent:ada", '{"a": [1]}', "--as-json")["id"]
    assert json.loads(cli("mail", "show", value, "--body").out) == {"a": [1]}


@each_case("path", [[], ["mail"], ["mail", "put"]], ids=repr)
def test_help_has_a_short_name(cli: Cli, path: list[str]) -> None:
    short, long = cli(*path, "-h"), cli(*path, "--help")
    assert (short.code, short.out) == (0, long.out)
    assert short.out.startswith("Usage: corral")


def test_schedule_is_created_changed_run_and_reviewed(cli: Cli) -> None:
    cli.json("agent", "create", "ada", "--provider", "scripted")
    args = (
        "schedule",
        "prompt",
        "ada",
        "report",
        "--cron",
        "0 9 * * *",
        "--timezone",
        "Europe/Berlin",
    )
    result = cli.json(*args, "--script", "echo two mails", "--script-timeout", "5s")
    assert (result["script"], result["script_timeout_ms"], result["overlap"]) == (
        "echo two mails",
        5_000,
        "skip",
    )
    assert "starts ada next at" in cli(*args).out
    assert cli("schedule", "history", result["id"]).out.strip() == "The schedule has not fired yet."
    cli.json("schedule", "run", result["id"])
    cli.json("schedule", "fire")
    (past,) = cli.json("schedule", "history", result["id"])
    assert (past["state"], past["output"], past["letter_state"]) == (
        "put",
        "two mails\n",
        "waiting",
    )
    assert "manual" in cli("schedule", "history", result["id"]).out
    (letter,) = cli.json("mail", "list", "--mailbox", result["mailbox"])
    assert letter["body"] == {"text": "report", "script_output": "two mails"}
    edited = cli.json("schedule", "edit", result["id"], "--text", "short report", "--no-script")
    assert (edited["body"], edited["script"]) == ({"text": "short report"}, None)
    assert edited["next_at"] == result["next_at"]
    assert cli.json("schedule", "edit", result["id"], "--cron", "0 8 * * *")["rule"] == "0 8 * * *"
    assert cli.error("schedule", "prompt", "unknown", "x", "--every", "1h")["exit_code"] == 3
    assert cli.error("schedule", "prompt", "ada", "x")["exit_code"] == 2
    assert cli.error("schedule", "edit", result["id"], "--cron", "x")["exit_code"] == 2

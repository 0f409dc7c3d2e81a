"""Output of the command line: messages, exit codes, JSON and error reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from rich.console import Console

from corral.__main__ import main as main_of_corral
from corral.adapters import supervisor_process
from corral.cli import main, render, run_command
from corral.cli.columns import Column
from corral.config import home, make_private_folder
from corral.kernel.display_text import escape_unprintable
from tests.support.cli_runner import Cli
from tests.support.grouped_cases import each_case

BAD_INPUT = {
    "command of another program": (["kill", "x"], 2, "Did you mean stop?"),
    "verb without its noun": (["backup", "x"], 2, "Did you mean db backup?"),
    "secret reference instead of a name": (
        ["channel", "add", "tg", "telegram", "--secret", "token=env:TOKEN"],
        2,
        "`corral secret set NAME env:VARIABLE`",
    ),
    "unknown noun": (["frobnicate"], 2, "Unknown command 'frobnicate'"),
    "misspelled noun": (["mial", "list"], 2, "Did you mean mail?"),
    "unknown verb": (["mail", "frobnicate"], 2, "See `corral mail --help`"),
    "missing argument": (["mail", "put", "agent:a"], 2, "BODY"),
    "unknown id": (["mail", "show", "let_999"], 3, "let_999"),
    "malformed id": (["project", "show", "prj_!!"], 2, "prj_"),
    "path instead of a lock id": (["lock", "release", "a.py"], 2, "`corral lock list`"),
    "id of a missing race": (["race", "show", "race_1"], 2, "`corral race list`"),
    "invalid mailbox": (["mail", "put", "unknown", "x"], 2, "Invalid mailbox"),
    "invalid duration": (["timer", "set", "agent:a", "x", "--in", "soon"], 2, "soon"),
    "invalid time": (["timer", "set", "agent:a", "x", "--at", "noon"], 2, "Invalid time"),
    "timer without a time": (["timer", "set", "agent:a", "x"], 2, "--in 10m"),
    "timer in the past": (
        ["timer", "set", "agent:a", "x", "--at", "2020-01-01T00:00"],
        2,
        "365",
    ),
    "timer too short": (["timer", "set", "agent:a", "x", "--in", "4s"], 2, "5 s to 365 days"),
    "invalid cron rule": (
        ["schedule", "create", "agent:a", "x", "--cron", "hi"],
        2,
        "Invalid cron rule",
    ),
    "impossible cron day": (
        ["schedule", "create", "agent:a", "x", "--cron", "0 0 30 2 *"],
        2,
        "30 2",
    ),
    "unknown time zone": (
        ["schedule", "create", "agent:a", "x", "--cron", "0 0 * * *", "--timezone", "Mars/Base"],
        2,
        "Unknown time zone",
    ),
    "two schedule rules": (
        ["schedule", "create", "agent:a", "x", "--cron", "0 0 * * *", "--every", "1m"],
        2,
        "Exactly one of",
    ),
    "task without a rule": (
        ["schedule", "prompt", "ada", "x"],
        2,
        "--in, --at, --every and --cron",
    ),
    "move to an unwritable directory": (
        ["db", "move", "--yes", "sqlite:////proc/x/y.db"],
        5,
        "/proc/x/y.db",
    ),
    "unknown setting": (
        ["setting", "set", "mail.max_atempts", "1"],
        2,
        "Did you mean mail.max_attempts?",
    ),
    "deeply nested setting": (
        ["setting", "set", "mail.max_attempts", "[" * 5_000],
        2,
        "int",
    ),
    "deeply nested body": (
        ["mail", "put", "agent:ada", "--as-json", "[" * 5_000],
        2,
        "not valid JSON",
    ),
    "setting of the wrong type": (["setting", "set", "mail.max_attempts", "many"], 2, "int"),
    "setting out of bounds": (
        ["setting", "set", "runs.retention_ms", "1ms"],
        2,
        "expected 1m to 3650d.",
    ),
    "missing backup file": (["db", "restore", "/none/x"], 2, "/none/x"),
    "body is not JSON": (
        ["mail", "put", "agent:a", "{", "--as-json"],
        2,
        "is not valid JSON",
    ),
    "missing body file": (["mail", "put", "agent:a", "@/none/x"], 2, "Cannot read"),
    "NUL byte": (["mail", "put", "agent:a", "a\0b"], 2, "NUL"),
    "invalid UTF-8": (["mail", "put", "agent:a", "\udcff"], 2, "not valid UTF-8"),
    "body of 10 MB": (["mail", "put", "agent:a", "x" * 10_000_000], 2, "1,048,576"),
    "missing project directory": (["project", "register", "/none/such"], 2, "/none/such"),
    "invalid size": (["run", "--max-output", "²", "--", "true"], 2, "Invalid size"),
    "invalid restart policy": (["run", "--restart", "on-failure:²", "--", "true"], 2, "restart"),
    "invalid hunk": (["race", "graft", "r", "1", "--hunk", "a#²"], 2, "Invalid hunk"),
    "cursor of another list": (["mail", "list", "--after", "zzz"], 2, "zzz"),
}


@each_case("case", BAD_INPUT)
def test_bad_input_is_one_sentence_and_writes_nothing(cli: Cli, case: str) -> None:
    arguments, code, fact = BAD_INPUT[case]
    result = cli(*arguments)
    assert result.code == code
    assert result.out == ""
    assert fact in result.err
    assert result.err.startswith("corral: ")
    assert result.err.count("\n") == 1
    assert cli.json("events") == []


def test_error_is_json_where_json_was_requested(cli: Cli) -> None:
    error = cli.error("mail", "show", "let_999")
    assert error.pop("message")
    assert error == {
        "code": "not_found",
        "details": {"kind": "letter", "id": "let_999"},
        "exit_code": 3,
    }
    assert cli.error("mail", "nonsense")["code"] == "usage"
    assert cli.error("mail", "show", "\udcff")["code"] == "invalid", "invalid text is rejected too"


def test_json_option_of_the_users_program_is_not_ours(cli: Cli) -> None:
    result = cli("run", "--restart", "sometimes", "--", "jq", "--json")
    assert result.code == 2
    assert result.err.startswith("corral: ")


def test_ambiguous_id_is_rejected_with_its_candidates(cli: Cli) -> None:
    results = [cli.json("timer", "set", "agent:a", n, "--in", "1h")["id"] for n in ("x", "y")]
    error = cli.error("timer", "cancel", "sch_0")
    assert (error["code"], error["exit_code"]) == ("ambiguous", 4)
    assert sorted(error["details"]["candidates"]) == sorted(results)


def test_illegal_transition_lists_the_allowed_ones(cli: Cli) -> None:
    timer = cli.json("timer", "set", "agent:a", "x", "--in", "1h")["id"]
    cli.json("schedule", "pause", timer)
    error = cli.error("schedule", "pause", timer)
    assert (error["code"], error["exit_code"]) == ("illegal_move", 4)
    assert error["details"]["allowed"] == ["resume", "cancel"]


def test_late_answer_is_rejected(cli: Cli) -> None:
    cli.json("mail", "put", "queue:q", "x")
    cli.json("mail", "claim", "queue:q", "--owner", "w")
    cli.json("mail", "fail", "1", "later", "--fence", "1")
    assert cli.error("mail", "ack", "1", "--fence", "1")["exit_code"] == 4


@each_case(
    ("url", "code", "reason"),
    [
        ("nonsense", 2, "bad_url"),
        ("sqlite://x", 2, "bad_url"),
        ("mysql://host/db", 2, "bad_url"),
        ("sqlite:////dev/null/x.db", 5, "unwritable"),
        ("postgresql://user@127.0.0.1:1/db", 5, "unreachable"),
        ("postgresql://host/db?nonsense=1", 2, "bad_url"),
    ],
)
def test_unavailable_store_is_one_sentence(
    capsys: pytest.CaptureFixture[str], url: str, code: int, reason: str
) -> None:
    result = Cli(capsys, url)("mail", "list")
    assert (result.code, result.out) == (code, "")
    assert result.err.count("\n") == 1
    assert Cli(capsys, url).error("mail", "list")["details"]["reason"] == reason


@each_case(
    "url",
    [
        "postgresql://me:hush@127.0.0.1:1/db",
        "postgresql://me:hu@hush@127.0.0.1:1/db",
        "postgresql://me:hu/hush@127.0.0.1:1/db",
        "postgresql://me:hu?hush@127.0.0.1:1/db",
        "postgresql://me:%hush@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1?user=me&password=hush",
        "postgresql+psycopg://me:hush@db/x",
        "mysql://me:hush@db/x",
        "sqlite://me:hush@x",
    ],
)
def test_password_in_the_url_is_never_printed(capsys: pytest.CaptureFixture[str], url: str) -> None:
    for arguments in (["mail", "list"], ["mail", "list", "--json"], ["doctor"]):
        result = Cli(capsys, url)(*arguments)
        assert result.code != 0
        assert "hush" not in result.err + result.out


def test_internal_error_is_one_sentence(home_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("corral.api.open", broken)
    result = home_cli("mail", "list")
    assert result.code == 1
    assert "Please report it" in result.err
    assert "Traceback" not in result.err


def test_without_arguments_an_overview_is_printed(home_cli: Cli) -> None:
    result = home_cli()
    assert result.code == 0
    assert result.out.startswith("No runs yet. First steps:\n  corral run -- ")
    assert home_cli.json()["active"] == []


def test_help_lists_the_commands(home_cli: Cli) -> None:
    result = home_cli("--help")
    assert result.code == 0
    assert all(name in result.out for name, (_, help) in main.COMMANDS.items() if help)


def test_store_and_json_options_work_in_any_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(capsys)
    url = f"sqlite:///{tmp_path}/a.db"
    assert cli("--store", url, "--json", "mail", "put", "agent:a", "x").out.startswith("{")
    assert cli("mail", "list", "--store", url, "--json").out.startswith("[{")


def test_page_says_how_to_continue(cli: Cli) -> None:
    for n in range(3):
        cli.json("mail", "put", "agent:a", str(n))
    first = cli("mail", "list", "--limit", "2", "--json")
    warning = json.loads(first.err)["warning"]
    assert warning["code"] == "more_results"
    cursor = cli("mail", "list", "--limit", "2").err.split("--after ")[1].strip()
    assert warning["details"] == {"after": cursor}
    (last,) = cli.json("mail", "list", "--after", cursor)
    assert last["body"] == "2"


def test_external_text_cannot_control_the_terminal(cli: Cli) -> None:
    cli.json("mail", "put", "agent:a", "\x1b[31mred\x07 [bold]not markup[/bold]\nline")
    output = cli("mail", "list").out
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[bold]not markup[/bold]" in output
    assert escape_unprintable("a\x1bb\nc") == "a\\x1bb⏎c"
    assert escape_unprintable("\u202eb\U000e0041c") == "\\u202eb\\U000e0041c"


def test_state_has_a_colour_and_an_equal_name_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Console(force_terminal=True, color_system="standard", width=80)
    monkeypatch.setattr(render, "console", lambda: terminal)
    columns = [
        Column("STATE", lambda row: row[0], is_state=True),
        Column("NAME", lambda row: row[1]),
    ]
    render.write_table([("failed", "broken"), ("running", "failed")], columns)
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("\x1b[31mfailed")
    assert first.endswith("\x1b[0m  broken")
    assert second == "\x1b[32mrunning\x1b[0m  failed"


def test_queued_run_says_what_it_waits_for(cli: Cli) -> None:
    cli("run", "-d", "--label", "gpu", "--name", "train", "--", "true")
    text = cli("show", "train").out
    assert "waiting for a slot on any node with labels gpu; see `corral node list`" in text


def test_backup_says_what_it_leaves_out(home_cli: Cli, tmp_path: Path) -> None:
    outputs = str(home() / "runs")
    assert outputs not in home_cli("db", "backup", str(tmp_path / "one")).out
    make_private_folder(home() / "runs")
    assert (
        f"{home() / 'runs'}; copy it as well" in home_cli("db", "backup", str(tmp_path / "2")).out
    )


def test_backup_with_a_foreign_view_names_the_remedy(home_cli: Cli, tmp_path: Path) -> None:
    assert home_cli("mail", "put", "agent:ada", "x").code == 0
    connection = apsw.Connection(str(home() / "corral.db"))
    connection.execute("CREATE VIEW mine AS SELECT 1")
    connection.close()
    file = tmp_path / "b.db"
    result = home_cli("db", "backup", str(file))
    hint = f"`sqlite3 {file} 'DROP VIEW IF EXISTS \"mine\"'`"
    assert (result.code, "Backed up the store" in result.out, hint in result.err) == (0, True, True)
    assert hint in home_cli("db", "restore", str(file), "--yes").err
    text = home_cli("--json", "db", "backup", str(tmp_path / "c.db")).err
    assert json.loads(text)["warning"]["code"] == "strange_schema"


def test_missing_backup_creates_no_store(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = Cli(capsys, f"sqlite:///{tmp_path}/new.db")("db", "restore", "/none/x")
    assert result.code == 2
    assert list(tmp_path.iterdir()) == []


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    script = f"{sys.executable} -m corral --store {store} --help | true; echo ${{PIPESTATUS[0]}}"
    process = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert process.stdout.strip() in ("0", "141")
    assert "Traceback" not in process.stderr


@each_case(
    "suggestion", [command for commands in main.SUGGESTIONS.values() for command in commands]
)
def test_suggested_commands_exist(home_cli: Cli, suggestion: str) -> None:
    assert home_cli(*suggestion.split(), "--help").code == 0


@pytest.mark.parametrize(
    ("before", "arguments"),
    [
        (["mail", "put", "agent:ada", "x"], ["events", "-f"]),
        (
            ["run", "-d", "--name", "slow", "--", "sh", "-c", "echo begun; exec sleep 60"],
            ["logs", "-f", "slow"],
        ),
    ],
    ids=["events", "logs"],
)
def test_follower_exits_when_its_reader_goes_away(
    cli: Cli, url: str, before: list[str], arguments: list[str]
) -> None:
    cli(*before)
    command = [sys.executable, "-m", "corral", "--store", url, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline()
        follower.stdout.close()
        try:
            assert follower.wait(30) == 0
        finally:
            follower.kill()
            cli("stop", "slow")


@each_case("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_printed_and_knows_the_verbs(home_cli: Cli, shell: str) -> None:
    script = home_cli("completion", shell).out
    assert "_CORRAL_COMPLETE" in script
    if shell == "bash":
        # Like bash when Tab is pressed.
        completion = "COMP_WORDS=(corral mail d) COMP_CWORD=2; _corral_completion corral"
        process = subprocess.run(
            ["bash", "-c", f'{script}\n{completion}\necho "${{COMPREPLY[@]}}"'],
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert (process.stdout, process.stderr) == ("dead drop\n", "")


def test_process_start_failure_is_reported(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(sys, "executable", "/none/python")
    for _ in range(3):
        result = cli("run", "-d", "--json", "--", "true")
        assert (result.code, result.out) == (4, "")
        assert "Cannot start a supervisor process" in result.err
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(sys, "argv", ["corral", "run", *cli._store, "--", "true"])
    with pytest.raises(SystemExit) as exit_info:  # also when it fails before anything else
        main_of_corral()
    assert exit_info.value.code == 4


def test_lost_supervisor_is_reported_without_guessing_the_state(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the agent had started is not known."""

    class Lost:
        def start(self, **arguments: object) -> dict[str, object]:
            raise supervisor_process.SupervisorLost

    monkeypatch.setattr(run_command, "_start_supervisor", Lost)
    result = cli("run", "-d", "--json", "--", "true")
    assert result.code != 0
    assert "exited unexpectedly. Check its state with `corral ps -a`" in result.err
    assert "began" not in result.err


def test_unreadable_file_is_named_and_not_mistaken_for_our_output(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def withheld(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "private"))

    monkeypatch.setattr("corral.api.mail.Mail.list", withheld)
    result = cli("mail", "list")
    assert (result.code, result.out) == (4, "")
    assert result.err.startswith(f"corral: Cannot open {tmp_path}/private: Permission denied")


def test_interrupted_move_says_how_to_continue_and_how_to_cancel(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("corral.api.store.Store.move", interrupted)
    result = cli("db", "move", f"sqlite:///{tmp_path}/new.db", "--yes")
    assert result.code == 130
    assert "corral db move --cancel" in result.err


def test_no_help_sentence_is_truncated(cli: Cli) -> None:
    for noun in ("db", "mail", "race"):
        verbs = cli(noun, "--help").out.partition("Commands:")[2]
        assert verbs
        assert "..." not in verbs, noun

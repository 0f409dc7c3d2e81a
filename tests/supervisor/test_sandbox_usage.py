"""Usage and budgets of sandboxed runs, read from the CLI's transcript in a private home."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.sandbox import sandbox
from corral.adapters.sandbox.sandbox import SandboxKind
from corral.domain.runs.model import Run, RunState
from tests.supervisor.test_sandbox import WHOAMI, tree  # noqa: F401  a fixture
from tests.supervisor.test_usage import CODEX
from tests.support.home import Home, is_alive, wait_until

HOSTILE_CODEX = """#!/usr/bin/env python3
import json, os, sys, time
if "--version" in sys.argv:
    print("codex-cli 0.169.0"); sys.exit()
folder = os.path.expanduser("~/.codex/sessions/2026/11/18")
os.makedirs(folder, exist_ok=True)
thread = "01a1ec0e-4b91-7cd1-a064-000000000001"
path = f"{folder}/rollout-2026-11-18T00-28-42-{thread}.jsonl"
trick = os.environ["TRICK"]
if trick == "pipe":
    os.mkfifo(path)
elif trick == "symlink":
    os.symlink(os.environ["VICTIM"], path)
elif trick == "device":
    os.symlink("/dev/zero", path)
elif trick == "folder":
    os.rmdir(folder); os.symlink(os.path.dirname(os.environ["VICTIM"]), folder)
elif trick == "line":
    with open(path, "wb") as file:
        file.write(b'{"type": "session_meta", "payload": {"id": "')
        file.truncate(40 << 20)  # longer than any line that is read
elif trick == "name":
    thread = "../" * 20 + os.environ["VICTIM"]
print(json.dumps({"type": "thread.started", "thread_id": thread}), flush=True)
time.sleep(3)
print(json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": "x"}}))
print(json.dumps({"type": "turn.completed", "usage": {"input_tokens": 5, "output_tokens": 1}}))
"""


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> SandboxKind:
    kind: SandboxKind = request.param
    if (why := sandbox.probe_sandboxes().why_not.get(kind)) is not None:
        pytest.skip(f"{kind} is not available: {why}")
    return kind


@pytest.fixture
def codex_program(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake codex on the PATH, and an empty home folder of the user."""
    programs, user_home = home.folder / "programs", home.folder / "user"
    programs.mkdir()
    user_home.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(user_home))
    write_program(programs / "codex", CODEX)
    return programs / "codex"


def write_program(path: Path, text: str) -> None:
    path.write_text(text.replace("#!/usr/bin/env python3", f"#!{sys.executable}"))
    path.chmod(0o755)


def start_run(
    home: Home,
    kind: SandboxKind,
    tree: Path,  # noqa: F811
    env: dict[str, str],
    *,
    agent: str = "codex",
    **options: Any,
) -> Run:
    with home.store() as store:
        run = store.runs.start(
            prompt="look at it",
            agent=agent,
            project=store.projects.register(home.folder / "repository").id,
            dir=str(tree),
            sandbox=kind,
            env=env,
            **options,
        )
        store.runs.start_queued()
    return run


@pytest.mark.parametrize(
    ("kind", "variable"),
    [(SandboxKind.BUBBLEWRAP, None), (SandboxKind.LANDLOCK, "CODEX_HOME")],
    indirect=["kind"],
)
def test_budget_stops_a_sandboxed_run(
    home: Home,
    kind: SandboxKind,
    tree: Path,  # noqa: F811
    codex_program: Path,
    variable: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = {"TOKENS": "2000000"}
    if variable:
        monkeypatch.setenv(variable, str(home.folder / "elsewhere"))
        env |= {variable: str(home.folder / "elsewhere"), "HOME": "/nowhere"}
    run = start_run(home, kind, tree, env, budget_micros=100_000, grace_period_ms=1_000)
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CANCELLED, home.log(ended)
    assert ended.reason == "its budget is spent: $2.50 of $0.10"
    assert ended.cost_micros == 2_500_100
    assert ended.denied == {"exec_command": 1}
    real = home.folder / ("elsewhere/sessions" if variable else "user/.codex/sessions")
    assert len(list(real.rglob("rollout-*.jsonl"))) == 1, "its transcript is written back"
    remaining = {path.name for path in home.folder_of(ended).iterdir()}
    assert not [name for name in remaining if name.startswith(("home", "transcripts"))], remaining
    home.wait_for_all_processes()


@pytest.mark.parametrize("kind", [SandboxKind.BUBBLEWRAP], indirect=True)
def test_new_supervisor_continues_the_transcript(
    home: Home,
    kind: SandboxKind,
    tree: Path,  # noqa: F811
    codex_program: Path,
) -> None:
    wait = "open('started', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    write_program(codex_program, CODEX.replace("report_usage(int(", f"{wait}report_usage(int(", 1))
    env = {"TOKENS": "2000000"}
    run = start_run(home, kind, tree, env, budget_micros=100_000, grace_period_ms=1_000)
    wait_until((tree / "started").exists, "the program started")
    supervisor = wait_until(lambda: home.get(run.id).supervisor_pid, "its supervisor is known")
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not is_alive(supervisor), "the supervisor is dead")
    home.recover()
    (tree / "go").touch()
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CANCELLED, home.log(ended)
    assert ended.reason == "its budget is spent: $2.50 of $0.10"
    home.wait_for_all_processes()


CALL_CORRAL = """
import subprocess
open("started", "w").close()
while not os.path.exists("go"): time.sleep(0.05)
with open("requests") as requests, open("answers", "w") as answers:
    subprocess.run(CORRAL, stdin=requests, stdout=answers)
sys.exit()
"""


def test_token_of_a_sandboxed_agent_survives_its_supervisor(
    home: Home,
    tree: Path,  # noqa: F811
    codex_program: Path,
) -> None:
    kind = sandbox.probe_sandboxes().kind
    if kind is SandboxKind.NONE:
        pytest.skip("no sandbox is available")
    corral = [sys.executable, "-P", "-m", "corral", "mcp"]
    call = CALL_CORRAL.replace("CORRAL", repr(corral)) + "report_usage(int("
    write_program(codex_program, CODEX.replace("report_usage(int(", call, 1))
    (tree / "requests").write_text("".join(f"{json.dumps(line)}\n" for line in WHOAMI))
    env = {name: os.environ[name] for name in ("PATH", "HOME")}  # the daemon may start the run
    assert home.corral("up", "--port", "0", env=env).returncode == 0
    try:
        with home.store() as store:
            store.agents.create("ada", provider="codex")
        run = start_run(home, kind, tree, {}, agent="ada")
        wait_until((tree / "started").exists, "the program started")
        supervisor = wait_until(lambda: home.get(run.id).supervisor_pid, "its supervisor is known")
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not is_alive(supervisor), "the supervisor is dead")
        home.recover()
        wait_until(lambda: home.get(run.id).supervisor_pid != supervisor, "the run is adopted")
        (tree / "go").touch()
        ended = home.wait_for_end(run.id)
        answers = [json.loads(line) for line in (tree / "answers").read_text().splitlines()]
        assert "result" in answers[-1], (answers, home.log(ended))
        assert not answers[-1]["result"].get("isError"), answers
        with home.store() as store:
            names = [token.name for token in store.tokens.list().items]
            assert not [name for name in names if name.startswith("run-")], "the token is revoked"
    finally:
        home.corral("down")


@pytest.mark.parametrize("trick", ["pipe", "symlink", "device", "folder", "line", "name"])
def test_hostile_transcript_is_not_followed(
    home: Home,
    tree: Path,  # noqa: F811
    codex_program: Path,
    trick: str,
) -> None:
    kind = sandbox.probe_sandboxes().kind
    if kind is SandboxKind.NONE:
        pytest.skip("no sandbox is available")
    secret = home.folder / "other" / "rollout-2026-11-18T00-28-42-x.jsonl"
    secret.parent.mkdir()
    lines = Path(__file__).parents[1] / "fixtures/transcripts/codex.jsonl"
    secret.write_bytes(lines.read_bytes())
    write_program(codex_program, HOSTILE_CODEX)
    run = start_run(home, kind, tree, {"TRICK": trick, "VICTIM": str(secret)})
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.COMPLETED, (ended, home.log(ended))
    assert ended.tokens == 6, "only usage of its own stream is counted"
    home.wait_for_all_processes()

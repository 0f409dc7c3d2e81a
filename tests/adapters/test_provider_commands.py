"""The command line of each agent CLI. tests/real checks the arguments with the real programs."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from corral.adapters.providers import registry, versions
from corral.adapters.providers.provider import (
    MAX_ARGUMENT_BYTES,
    RESUME_PROMPT,
    LaunchRequest,
    Provider,
)
from corral.kernel.errors import Invalid, NotFound, Refused
from tests.support.errors import because

STRUCTURED = ["claude", "codex", "copilot", "gemini", "opencode", "qwen", "scripted"]
SESSION = "0b9cb0b4-3a4e-4a7c-8d43-0f3a2c5d6e7f"


@pytest.fixture(params=STRUCTURED)
def provider(request: pytest.FixtureRequest) -> Provider:
    return registry.get_provider(request.param)


@pytest.mark.parametrize("name", registry.list_providers())
def test_every_provider_implements_the_contract(name: str) -> None:
    provider = registry.get_provider(name)
    assert provider.name == name
    for promised in [*Provider.__annotations__, *vars(Provider)]:
        if not promised.startswith("_"):
            assert hasattr(provider, promised), promised
    parser = provider.create_parser()
    assert (parser.feed(b""), parser.pending(), parser.close()) == ([], [], [])


@pytest.mark.parametrize("name", ["", "cloude", "../claude", "CLAUDE"])
def test_unknown_provider_is_not_found(name: str) -> None:
    with pytest.raises(NotFound, check=because("unknown_provider")):
        registry.get_provider(name)


@pytest.mark.parametrize(
    "session", ["--dangerously-skip-permissions", "", " ", "a b", "a\nb", "-x", "a" * 201, "ä"]
)
def test_session_id_that_looks_like_an_option_is_rejected(provider: Provider, session: str) -> None:
    with pytest.raises(Invalid):
        provider.build_command(LaunchRequest("hi", session=session, resume=True))


def test_resume_needs_a_session(provider: Provider) -> None:
    with pytest.raises(Invalid, check=because("session_missing")):
        provider.build_command(LaunchRequest("hi", resume=True))


@pytest.mark.parametrize("name", ["codex", "gemini"])
def test_denial_that_cannot_be_enforced_is_rejected(name: str) -> None:
    with pytest.raises(Refused, check=because("denials_unsupported")):
        registry.get_provider(name).build_command(LaunchRequest("hi", deny=("shell",)))


def test_one_shot_prompt_is_never_an_argument(provider: Provider) -> None:
    prompt = "x" * (1024 * 1024)
    start = provider.build_command(LaunchRequest(prompt))
    assert start.structured
    assert start.stdin == prompt
    assert sum(map(len, start.args)) < 1_000


def test_long_prompt_at_a_terminal_is_typed(provider: Provider) -> None:
    short = provider.build_command(LaunchRequest("do it", interactive=True))
    assert not short.structured
    assert short.stdin is None
    assert any(argument.endswith("do it") for argument in short.args)
    prompt = "ä" * (MAX_ARGUMENT_BYTES // 2 + 1)
    long = provider.build_command(LaunchRequest(prompt, interactive=True))
    assert long.stdin == prompt
    assert all(len(argument) < 1_000 for argument in long.args)


def test_first_prompt_is_not_sent_again_on_resume(provider: Provider) -> None:
    start = provider.build_command(
        LaunchRequest(None, session=SESSION, resume=True, instructions="be brief")
    )
    assert start.stdin == RESUME_PROMPT
    assert start.session == SESSION
    assert SESSION in " ".join(start.args)


def test_resumed_terminal_gets_no_prompt(provider: Provider) -> None:
    start = provider.build_command(
        LaunchRequest(None, session=SESSION, resume=True, interactive=True)
    )
    assert start.stdin is None
    assert RESUME_PROMPT not in start.args


def test_latest_conversation_has_no_id_yet(provider: Provider) -> None:
    start = provider.build_command(LaunchRequest("go", latest=True))
    assert start.session is None
    assert start.args != provider.build_command(LaunchRequest("go")).args


def test_prompt_that_looks_like_an_option_stays_a_prompt(provider: Provider) -> None:
    start = provider.build_command(LaunchRequest("--version", interactive=True))
    index = next(
        index for index, argument in enumerate(start.args) if argument.endswith("--version")
    )
    assert start.args[index] != "--version" or start.args[index - 1] == "--"


@pytest.mark.parametrize("name", ["claude", "gemini", "qwen", "copilot", "scripted"])
def test_new_conversation_gets_a_chosen_id(name: str) -> None:
    start = registry.get_provider(name).build_command(LaunchRequest("hi", session=SESSION))
    assert start.session == SESSION
    assert "--session-id" in " ".join(start.args)


@pytest.mark.parametrize("name", ["codex", "opencode"])
def test_cli_without_chosen_ids_has_none(name: str) -> None:
    start = registry.get_provider(name).build_command(LaunchRequest("hi", session=SESSION))
    assert start.session is None
    assert SESSION not in start.args


def test_nothing_is_approved_by_default(provider: Provider) -> None:
    arguments = " ".join(provider.build_command(LaunchRequest("hi")).args)
    for option in ("dangerously", "yolo", "allow", "auto", "acceptEdits", "bypass"):
        assert option not in arguments


def test_approvals_and_grants_of_claude() -> None:
    ask = LaunchRequest(
        "hi", model="opus", approvals=("edit", "run"), allow=("Read",), deny=("WebFetch",)
    )
    args = registry.get_provider("claude").build_command(ask).args
    assert "--model=opus" in args
    assert "--allowedTools=Read,Edit,Write,NotebookEdit,Bash" in args
    assert "--disallowedTools=WebFetch" in args


def test_approvals_of_codex_apply_to_a_resume() -> None:
    args = (
        registry.get_provider("codex")
        .build_command(LaunchRequest("x", session="t", resume=True, approvals=("edit",)))
        .args
    )
    assert args[:3] == ["codex", "exec", "resume"]
    assert 'sandbox_mode="workspace-write"' in args
    assert args[-3:] == ["--", "t", "-"]


def test_instructions_of_codex_are_one_toml_value() -> None:
    import tomllib

    text = 'say "hi"\\\nand \x7f\x01 ä'
    args = registry.get_provider("codex").build_command(LaunchRequest("x", instructions=text)).args
    setting = next(argument for argument in args if argument.startswith("developer_instructions"))
    assert tomllib.loads(setting) == {"developer_instructions": text}


def test_grants_of_opencode_are_its_configuration() -> None:
    ask = LaunchRequest("x", approvals=("edit",), allow=("webfetch",), deny=("bash",))
    env = registry.get_provider("opencode").build_command(ask).env
    assert msgspec.json.decode(env["OPENCODE_PERMISSION"]) == {
        "edit": "allow",
        "webfetch": "allow",
        "bash": "deny",
    }


def test_arguments_of_the_user_are_passed_on(provider: Provider) -> None:
    assert "--custom" in provider.build_command(LaunchRequest("x", extra=("--custom",))).args


def test_named_program_is_started(provider: Provider) -> None:
    assert provider.build_command(LaunchRequest("x"), "/opt/it").args[0] == "/opt/it"


def test_plain_command_gets_the_prompt_on_stdin_and_in_a_variable() -> None:
    plain = registry.get_provider("plain")
    start = plain.build_command(LaunchRequest("hi", extra=("-n", "1")), "head")
    assert start.args == ["head", "-n", "1"]
    assert (start.stdin, start.env) == ("hi", {"CORRAL_PROMPT": "hi"})
    assert not start.structured
    long = plain.build_command(LaunchRequest("x" * (MAX_ARGUMENT_BYTES + 1)), "head")
    assert long.env == {}
    with pytest.raises(Invalid):
        plain.build_command(LaunchRequest("hi"))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("claude", ["claude-agent-acp"]),
        ("codex", ["codex-acp"]),
        ("gemini", ["gemini", "--acp"]),
        ("opencode", ["opencode", "acp"]),
        ("scripted", [sys.executable, "-P", "-m", "corral.demo.agent", "--acp"]),
    ],
)
def test_acp_start_commands_of_the_providers(name: str, args: list[str]) -> None:
    start = registry.get_provider(name).build_acp_command(
        LaunchRequest("hi", instructions="be brief", extra=("-x",))
    )
    assert start is not None
    assert start.args == [*args, "-x"]
    assert start.stdin == "be brief\n\nhi"
    resumed = registry.get_provider(name).build_acp_command(
        LaunchRequest(None, session="s1", resume=True)
    )
    assert resumed is not None
    assert (resumed.session, resumed.stdin) == ("s1", RESUME_PROMPT)


def test_any_command_may_use_acp() -> None:
    start = registry.get_provider("plain").build_acp_command(
        LaunchRequest("hi", extra=("--acp",)), "custom-agent"
    )
    assert start is not None
    assert (start.args, start.stdin, start.env) == (["custom-agent", "--acp"], "hi", {})


@pytest.mark.parametrize(
    ("argv0", "name"),
    [
        ("claude", "claude"),
        ("/opt/bin/codex", "codex"),
        ("./gemini", "gemini"),
        ("bash", "plain"),
        ("claude-helper", "plain"),
        ("", "plain"),
        ("scripted", "plain"),
    ],
)
def test_command_line_names_its_provider(argv0: str, name: str) -> None:
    assert registry.find_by_program(argv0).name == name


def test_get_provider_imports_no_heavy_modules() -> None:
    code = (
        "import sys; from corral.adapters.providers.registry import get_provider\n"
        "from corral.adapters.providers.provider import LaunchRequest\n"
        "get_provider('claude').build_command(LaunchRequest('x'))\n"
        "get_provider('claude').create_parser()\n"
        "print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"acp", "pydantic", "asyncio", "subprocess", "pyte", "json", "zoneinfo", "socket"}
    assert not heavy & set(result.stdout.split())


# -- versions -------------------------------------------------------------------------------------


def make_program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_version_is_cached_per_file(tmp_path: Path) -> None:
    program = make_program(tmp_path / "tool", f"echo x >> {tmp_path}/calls; echo 'tool v1.2.3 (x)'")
    assert versions.probe_version(program) == "1.2.3"
    assert versions.probe_version(program) == "1.2.3"
    assert (tmp_path / "calls").read_text() == "x\n"
    make_program(tmp_path / "tool", "echo codex-cli 0.166.0-alpha.1")
    os.utime(tmp_path / "tool", (1, 1))
    assert versions.probe_version(program) == "0.166.0-alpha.1"


def test_codex_at_a_terminal_avoids_its_shared_server(tmp_path: Path) -> None:
    new = make_program(tmp_path / "new", "echo '      --no-daemon'; echo '          Run without'")
    old = make_program(tmp_path / "old", "echo '      --oss'")
    codex = registry.get_provider("codex")
    at_terminal = LaunchRequest("x", interactive=True)
    assert codex.build_command(at_terminal, new).args[:2] == [new, "--no-daemon"]
    resumed = LaunchRequest("x", interactive=True, session="t", resume=True)
    assert codex.build_command(resumed, new).args[:3] == [new, "resume", "--no-daemon"]
    assert "--no-daemon" not in codex.build_command(at_terminal, old).args
    assert (
        "--no-daemon" not in codex.build_command(LaunchRequest("x"), new).args
    )  # `exec` has no server


def test_claude_as_root_gets_all_approvals_only_in_a_sandbox() -> None:
    claude = registry.get_provider("claude")
    with pytest.raises(Refused, check=because("root_without_sandbox")):
        claude.build_command(LaunchRequest("x", approvals=("all",), is_root=True))
    assert (
        claude.build_command(LaunchRequest("x", approvals=("edit", "run"), is_root=True)).env == {}
    )
    sandboxed = claude.build_command(
        LaunchRequest("x", approvals=("all",), is_root=True, is_sandboxed=True)
    )
    assert sandboxed.env == {"IS_SANDBOX": "1"}
    assert "--dangerously-skip-permissions" in sandboxed.args


@pytest.mark.parametrize(
    ("ask", "trusted"),
    [
        (LaunchRequest("x"), False),
        (LaunchRequest("x", approvals=("edit", "run")), False),
        (LaunchRequest("x", approvals=("trust",)), True),
        (LaunchRequest("x", approvals=("all",)), True),
        (LaunchRequest("x", is_own_worktree=True), True),
    ],
)
def test_gemini_trusts_its_folder_only_with_approval(ask: LaunchRequest, trusted: bool) -> None:
    gemini = registry.get_provider("gemini")
    assert ("--skip-trust" in gemini.build_command(ask).args) is trusted
    by_protocol = gemini.build_acp_command(ask)
    assert by_protocol is not None
    assert ("--skip-trust" in by_protocol.args) is trusted


def test_program_without_a_version_option_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "PROBE_TIMEOUT", 0.2)
    assert versions.probe_version(str(tmp_path / "none")) is None
    assert versions.probe_version(make_program(tmp_path / "a", "echo 1.2.3; exit 3")) is None
    assert versions.probe_version(make_program(tmp_path / "b", "echo hello")) is None
    assert versions.probe_version(make_program(tmp_path / "c", "exec sleep 30")) is None


@pytest.mark.parametrize("name", registry.list_providers())
def test_transcripts_are_searched_in_the_folder_of_each_cli(name: str, tmp_path: Path) -> None:
    provider = registry.get_provider(name)
    assert list(provider.iter_transcripts(tmp_path)) == []
    assert provider.find_transcript(tmp_path, SESSION) is None
    assert provider.find_transcript(tmp_path, "*") is None


@pytest.mark.parametrize("trap", ["pipe", "device"])
def test_special_file_as_transcript_does_not_block(tmp_path: Path, trap: str) -> None:
    path = tmp_path / f".claude/projects/demo/{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    os.mkfifo(path) if trap == "pipe" else path.symlink_to("/dev/zero")
    assert registry.get_provider("claude").find_transcript(tmp_path, SESSION) is None


def test_transcript_without_a_session_in_its_name_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / ".gemini/tmp/demo/chats/session-2026-11-16T00-08-0b9cb0b4.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    gemini = registry.get_provider("gemini")
    assert list(gemini.iter_transcripts(tmp_path)) == [path]
    assert gemini.find_transcript(tmp_path, SESSION) is None


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("claude", f".claude/projects/-demo/{SESSION}.jsonl"),
        ("codex", f".codex/sessions/2026/11/15/rollout-2026-11-15T23-34-53-{SESSION}.jsonl"),
        ("qwen", f".qwen/projects/-demo/chats/{SESSION}.jsonl"),
        ("copilot", f".copilot/session-state/{SESSION}/events.jsonl"),
    ],
)
def test_transcript_of_a_session_is_found_by_its_id(name: str, file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.touch()
    provider = registry.get_provider(name)
    assert list(provider.iter_transcripts(tmp_path)) == [path]
    assert provider.find_transcript(tmp_path, SESSION) == path

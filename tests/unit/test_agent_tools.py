"""Which tools the rules of an agent allow."""

from corral.domain.agents.tools import is_allowed
from tests.support.grouped_cases import each_case


def test_everything_is_allowed_without_rules() -> None:
    assert is_allowed("Bash(rm -rf /)", [], [])


def test_deny_rule_alone_leaves_other_tools_allowed() -> None:
    assert not is_allowed("Bash", [], ["Bash"])
    assert is_allowed("Read", [], ["Bash"])


def test_allow_rule_restricts_to_what_it_names() -> None:
    assert is_allowed("Read", ["Read"], [])
    assert not is_allowed("Write", ["Read"], [])


def test_deny_rule_overrides_allow_rule() -> None:
    assert not is_allowed("mcp__db__drop", ["mcp__*"], ["mcp__db__*"])
    assert is_allowed("mcp__git__log", ["mcp__*"], ["mcp__db__*"])


@each_case(
    ("call", "rule"),
    [
        ("Bash(git push)", "Bash(git *)"),
        ("Bash(git push)", "Bash"),
        ("Bash(git push)", "B*"),
        ("mcp__x", "mcp__*"),
        ("Read(/a/b)", "Read(/a/*)"),
    ],
)
def test_matching_rules(call: str, rule: str) -> None:
    assert is_allowed(call, [rule], [])
    assert not is_allowed(call, [], [rule])


@each_case(
    ("call", "rule"),
    [
        ("Bash", "Bash(git *)"),
        ("Bash(rm x)", "Bash(git *)"),
        ("bash(git x)", "Bash(git *)"),
        ("Bashful", "Bash"),
        ("Read", "read"),
    ],
)
def test_rules_that_do_not_match(call: str, rule: str) -> None:
    assert not is_allowed(call, [rule], [])


@each_case(
    "line",
    [
        "git status; rm -rf x",
        "git status && rm x",
        "git status || rm x",
        "git status | rm x",
        "git status & rm x",
        "git log $(rm x)",
        "git log `rm x`",
        "git log <(rm x)",
        "git status\nrm x",
        "(rm x)",
    ],
)
def test_command_line_is_allowed_only_if_every_command_is(line: str) -> None:
    assert not is_allowed(f"Bash({line})", ["Bash(git *)"], [])
    assert not is_allowed(f"Bash({line})", [], ["Bash(rm *)"])
    assert not is_allowed(f"Bash({line})", ["Bash"], ["Bash(rm *)"])


def test_chained_commands_are_allowed_when_each_is_allowed() -> None:
    assert is_allowed("Bash(git add x && git commit -m y)", ["Bash(git *)"], [])


def test_only_shell_command_lines_are_split() -> None:
    assert is_allowed(
        "WebFetch(https://example.org/?a=1&b=2)", ["WebFetch(https://example.org/*)"], []
    )

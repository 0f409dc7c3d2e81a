"""Lock paths: normalisation, and whether two patterns overlap."""

import os
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.locks.patterns import fold_case, normalize_path
from corral.kernel.errors import Invalid
from corral.kernel.path_patterns import (
    can_overlap,
    get_literal_prefix,
    list_ancestor_prefixes,
    make_subtree_pattern,
    split_pattern,
)
from tests.support.grouped_cases import each_case


@pytest.fixture
def root(tmp_path: Path) -> Path:
    home = tmp_path / "project"
    (home / "src" / "deep").mkdir(parents=True)
    (home / "src" / "a.py").touch()
    (home / "link").symlink_to("src")
    (home / "out").symlink_to(tmp_path)
    return home


@each_case(
    ("raw_path", "expected"),
    [
        ("src/a.py", "src/a.py"),
        ("./src/a.py", "src/a.py"),
        ("src//./a.py", "src/a.py"),
        ("src/deep/../a.py", "src/a.py"),
        ("link/a.py", "src/a.py"),
        ("link/new/file", "src/new/file"),
        ("src/", "src/"),
        ("src", "src/"),
        ("new/", "new/"),
        ("new", "new"),
        (".", "."),
        ("", None),
        ("src/*", "src/"),
        ("src/**", "src/"),
        ("src/**/*", "src/"),
        ("*", "."),
        ("./link/*.py", "src/*.py"),
        ("src/./*", "src/"),
        ("**/**/*.py", "**/*.py"),
        ("a***b/x", "a*b/x"),
        ("app/[id]/page.tsx", "app/[id]/page.tsx"),
        ("e\u0301.py", "\u00e9.py"),
        ("..", None),
        ("../x", None),
        ("/", None),
        ("/etc/passwd", None),
        ("out/x", None),
        ("src/*/../../../x", None),
        ("a\nb", None),
        ("a\0b", None),
        ("a\x1bb", None),
        ("\ud800", None),
        ("x" * 501, None),
        ("x/" * 10_000, None),
    ],
)
def test_path_is_normalised_or_rejected(root: Path, raw_path: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(Invalid):
            normalize_path(raw_path, str(root))
        return
    assert normalize_path(raw_path, str(root)) == expected
    if not raw_path.startswith("/"):
        assert normalize_path(f"{root}/{raw_path}", str(root)) == expected


def test_case_insensitive_file_system_has_one_spelling(root: Path) -> None:
    assert normalize_path("Src/A.PY", str(root), folded=True) == "src/a.py"
    assert fold_case("STRASSE") == fold_case("stra\u00dfe")


def test_file_system_root_can_be_a_project() -> None:
    assert normalize_path("/etc/hosts", "/") == os.path.realpath("/etc/hosts").lstrip("/")
    assert normalize_path("/", "/") == "."


@each_case(
    ("first", "second", "expected"),
    [
        ("src/a.py", "src/a.py", True),
        ("src/a.py", "src/b.py", False),
        ("src", "src/a.py", True),
        ("src", "srcs/a.py", False),
        (".", "anything/at/all", True),
        ("src/", "src/a.py", True),
        ("src/", "src/deep/b.py", True),
        ("src/", "src", True),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a.ts", False),
        ("src/*.py", "src/deep/a.ts", False),
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", False),
        ("**/*.py", "src/deep/a.py", True),
        ("**/*.py", "a.py", True),
        ("**/*.py", "src/a.ts", False),
        ("**/*.py", "src/", True),
        ("**/*.py", "src", False),
        ("*.ts", "**/*.py", False),
        ("src/**/test/", "src/test/x", True),
        ("src/**/test", "src/test/x", False),
        ("src/**/test", "src/a/b/test", True),
        ("src/**/test/x", "lib/test/x", False),
        ("a*c", "abc", True),
        ("a*c", "ab", False),
        ("a*c", "*d", False),
        ("a*", "*b", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("?", "*x", True),
        ("*a*", "*b*", True),
        ("a*b*c", "axxbyyc", True),
        ("a*b*c", "axxbyy", False),
        ("**/a", "**/b", False),
        ("**/a/", "**/b/", True),
        ("a/**/z", "a/*/y", False),
        ("a/**/z", "a/*/z", True),
    ],
)
def test_patterns_overlap_where_both_cover_a_path(first: str, second: str, expected: bool) -> None:
    assert can_overlap(first, second) is can_overlap(second, first) is expected


PARTS = st.text("ab*?", min_size=1, max_size=4)
PATTERNS = st.lists(PARTS | st.just("**"), min_size=1, max_size=4).map("/".join)
NAMES = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4)


def covers(pattern: list[str], name: list[str]) -> bool:
    """Reference implementation of a pattern, without a table."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return covers(pattern[1:], name) or (bool(name) and covers(pattern, name[1:]))
    return bool(name) and fnmatchcase(name[0], pattern[0]) and covers(pattern[1:], name[1:])


@given(first=PATTERNS, second=PATTERNS, name=NAMES)
def test_patterns_that_cover_one_name_overlap_by_prefix(
    first: str, second: str, name: list[str]
) -> None:
    a, b = normalize_path(first, "/nowhere"), normalize_path(second, "/nowhere")
    if covers(split_pattern(a), name) and covers(split_pattern(b), name):
        assert can_overlap(a, b)
    if can_overlap(a, b):
        assert get_literal_prefix(a) in list_ancestor_prefixes(
            get_literal_prefix(b)
        ) or get_literal_prefix(b) in list_ancestor_prefixes(get_literal_prefix(a))


@each_case(
    "pattern",
    ["*" * 100, "*a" * 125, "a*" * 120 + "b", "**/" * 80 + "x", "**/a/" * 49 + "b", "?*" * 125],
)
def test_no_pattern_takes_long_to_match(pattern: str) -> None:
    wild = normalize_path(pattern, "/nowhere")
    start = time.process_time()
    can_overlap(wild, "a" * 400 + "c")
    can_overlap(wild, wild[:-1] + "z")
    can_overlap(wild, "/".join("a" * 200))
    assert time.process_time() - start < 1


@each_case(
    ("path", "covered", "excluded"),
    [
        ("src", ["src", "src/a.py", "src/deep/b.py"], ["srcs", "docs/src"]),
        ("src/*", ["src/a.py", "src/deep/b.py"], ["docs/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/deep/b.py"], ["src/a.md"]),
        ("src/*.py", ["src/a.py"], ["src/a.md", "src/deep/b.py"]),
        (".", ["src/a.py", "x"], []),
        ("**", ["src/a.py", "x"], []),
    ],
)
def test_path_covers_itself_and_everything_below(
    path: str, covered: list[str], excluded: list[str]
) -> None:
    assert all(can_overlap(make_subtree_pattern(path), item) for item in covered)
    assert not any(can_overlap(make_subtree_pattern(path), item) for item in excluded)

"""Many quick cases in one test: an item of pytest costs more than most of them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

Ids = Iterable[str] | Callable[[Any], object] | None


def each_case(
    argnames: str | Sequence[str], argvalues: Iterable[Any], *, ids: Ids = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each set of arguments, like `pytest.mark.parametrize`, but as one item.

    All cases run. Those that fail are reported together, each with its name and traceback.

    The cases share their fixtures: a store keeps what the cases before have written. Each case has
    a `tmp_path` of its own, and its `monkeypatch` is undone. Use `parametrize` where a case needs
    a new store.
    """
    names = (
        [name.strip() for name in argnames.split(",")] if isinstance(argnames, str) else argnames
    )
    values = list(argvalues)
    assert values, "no cases"
    given = list(map(ids, values)) if callable(ids) else list(ids or [None] * len(values))
    cases = [_case(names, value, name) for value, name in zip(values, given, strict=True)]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            failures = []
            for number, (name, arguments) in enumerate(cases):
                with ExitStack() as stack:
                    try:
                        test(**_own(fixtures, number, stack), **arguments)
                    except Exception as error:
                        error.add_note(f"case: {name}")
                        failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases failed", failures)

        signature = inspect.signature(test)
        kept = [each for each in signature.parameters.values() if each.name not in names]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate


def _case(names: Sequence[str], value: Any, name: object) -> tuple[str, dict[str, Any]]:
    if isinstance(value, ParameterSet):
        assert not value.marks, "a case has no marks of its own"
        name, value = value.id or name, value.values
    elif len(names) == 1:
        value = (value,)
    arguments = dict(zip(names, value, strict=True))
    return str(
        name or ", ".join(f"{key}={item!r:.200}" for key, item in arguments.items())
    ), arguments


def _own(fixtures: dict[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    own = dict(fixtures)
    if isinstance(folder := own.get("tmp_path"), Path):
        own["tmp_path"] = folder / f"case{number}"
        own["tmp_path"].mkdir()
    if isinstance(patch := own.get("monkeypatch"), pytest.MonkeyPatch):
        own["monkeypatch"] = stack.enter_context(patch.context())
    return own

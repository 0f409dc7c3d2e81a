"""Many quick cases in one pytest item, because an item costs more than most cases."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Self

import pytest
from _pytest.mark import ParameterSet

Ids = Iterable[str] | Callable[[Any], object] | None


class Cases:
    """The cases of a test: all run, and the failures are reported together at the end."""

    def __init__(self) -> None:
        self._count = 0
        self._failures: list[Exception] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None and self._failures:
            text = f"{len(self._failures)} of {self._count} cases failed"
            raise ExceptionGroup(text, self._failures)

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        self._count += 1
        try:
            yield
        except pytest.skip.Exception:
            raise AssertionError(
                f"case {name}: a skip would leave out the cases after it"
            ) from None
        except Exception as error:
            error.add_note(f"case: {name}")
            self._failures.append(error)


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
    result = list(map(ids, values)) if callable(ids) else list(ids or [None] * len(values))
    cases = [_case(names, value, name) for value, name in zip(values, result, strict=True)]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            with Cases() as group:
                for number, (name, arguments) in enumerate(cases):
                    with group.case(name), ExitStack() as stack:
                        test(**_own(fixtures, number, stack), **arguments)

        signature = inspect.signature(test)
        parameters = [
            parameter for parameter in signature.parameters.values() if parameter.name not in names
        ]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
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
    case_fixtures = dict(fixtures)
    if isinstance(folder := case_fixtures.get("tmp_path"), Path):
        case_fixtures["tmp_path"] = folder / f"case{number}"
        case_fixtures["tmp_path"].mkdir()
    if isinstance(patch := case_fixtures.get("monkeypatch"), pytest.MonkeyPatch):
        case_fixtures["monkeypatch"] = stack.enter_context(patch.context())
    return case_fixtures

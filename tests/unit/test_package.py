"""Public imports, by their documented names."""

import importlib
import subprocess
import sys

import pytest

import corral
from tests.support.grouped_cases import each_case

NAMES = ["CorralError", "NotFound", "Conflict", "IllegalMove", "Held", "Refused", "Invalid"]


@each_case("name", [*NAMES, "StoreUnavailable", "Ambiguous"])
def test_error_has_its_public_name(name: str) -> None:
    assert issubclass(getattr(corral.errors, name), corral.errors.CorralError)


def test_errors_can_be_imported_from_their_module() -> None:
    assert importlib.import_module("corral.errors").Held is corral.errors.Held


def test_every_error_except_a_timeout_has_its_own_code() -> None:
    results = [
        value
        for value in vars(corral.errors).values()
        if isinstance(value, type) and issubclass(value, corral.errors.CorralError)
    ]
    assert len(results) >= 9
    results.remove(corral.errors.NotYet)  # a Refused with `timed_out` in its details
    assert corral.errors.NotYet.code == corral.errors.Refused.code
    assert len({error.code for error in results}) == len(results)


def test_error_has_a_message_and_details() -> None:
    error = corral.errors.StoreUnavailable("It is gone.", reason="missing", path="/x")
    assert (str(error), error.message) == ("It is gone.", "It is gone.")
    assert error.details == {"reason": "missing", "path": "/x"}
    assert error.reason == "missing"


def test_unknown_attribute_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = corral.nothing


def test_importing_the_package_loads_no_other_module() -> None:
    code = "import sys, corral; print([m for m in sys.modules if m.startswith('corral.')])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"

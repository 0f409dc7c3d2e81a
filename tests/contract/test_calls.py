"""Every operation of the library can be called from afar, or says why not."""

import msgspec

from corral.api.operations import operations
from corral.api.remote_table import LOCAL, STREAMS, WAITS, calls
from corral.http.agent_permissions import RULES
from corral.http.api import NEVER_KEPT, SLOW
from corral.http.openapi import document, page

ROWS = list(operations())
CALLS = {call.name: call for call in calls()}


def test_every_operation_is_a_request_or_has_a_reason() -> None:
    names = [f"{row.attribute}.{row.verb}" for row in ROWS]
    kinds = (CALLS, LOCAL, STREAMS)
    assert [name for name in names if sum(name in kind for kind in kinds) != 1] == []


def test_no_reason_and_no_rule_is_left_over() -> None:
    names = {f"{row.attribute}.{row.verb}" for row in ROWS}
    assert {*LOCAL, *STREAMS} <= names
    assert {*RULES, *WAITS, *SLOW, *NEVER_KEPT} <= {*CALLS}


def test_no_two_operations_share_a_request() -> None:
    requests = [(call.method, call.path) for call in CALLS.values()]
    assert len({*requests}) == len(requests)


def test_the_result_of_every_request_can_be_decoded() -> None:
    for call in CALLS.values():
        try:
            msgspec.json.Decoder(call.result, dec_hook=lambda kind, value: kind(value))
        except TypeError as error:
            error.add_note(call.name)
            raise


def test_the_description_names_every_request() -> None:
    told = msgspec.json.decode(document())
    assert told["openapi"] == "3.1.0"
    named = {
        (method.upper(), path) for path, methods in told["paths"].items() for method in methods
    }
    assert {(call.method, f"/api{call.path}") for call in CALLS.values()} <= named
    assert ("GET", "/api/events") in named
    text = page().decode()
    assert all(f"/api{call.path}" in text for call in CALLS.values())
    assert "http://" not in text
    assert "<script" not in text

"""Every operation of the library can be called over HTTP, or has a reason why not."""

import msgspec

from corral.api.catalog import list_operations
from corral.api.remote_table import (
    LOCAL_ARGUMENTS,
    LOCAL_ONLY,
    STREAMED,
    WAIT_ARGUMENTS,
    list_calls,
)
from corral.http.agent_permissions import AGENT_RULES
from corral.http.api import SLOW_OPERATIONS, UNSTORED_RESPONSES
from corral.http.openapi import render_docs_page, render_openapi_document

ROWS = list(list_operations())
CALLS = {call.name: call for call in list_calls()}


def test_every_operation_is_a_request_or_has_a_reason() -> None:
    names = [f"{row.attribute}.{row.verb}" for row in ROWS]
    kinds = (CALLS, LOCAL_ONLY, STREAMED)
    assert [name for name in names if sum(name in kind for kind in kinds) != 1] == []


def test_every_reason_and_rule_belongs_to_an_operation() -> None:
    names = {f"{row.attribute}.{row.verb}" for row in ROWS}
    assert {*LOCAL_ONLY, *STREAMED} <= names
    assert {*AGENT_RULES, *WAIT_ARGUMENTS, *SLOW_OPERATIONS, *UNSTORED_RESPONSES} <= {*CALLS}


def test_local_arguments_exist_and_are_not_in_the_request() -> None:
    parameters = {f"{row.attribute}.{row.verb}": {*row.signature.parameters} for row in ROWS}
    for name, arguments in LOCAL_ARGUMENTS.items():
        assert arguments <= parameters[name], name
        assert not arguments & {field.name for field in CALLS[name].fields}, name


def test_no_two_operations_share_a_request() -> None:
    requests = [(call.method, call.path) for call in CALLS.values()]
    assert len({*requests}) == len(requests)


def test_result_of_every_request_can_be_decoded() -> None:
    for call in CALLS.values():
        try:
            msgspec.json.Decoder(call.result, dec_hook=lambda kind, value: kind(value))
        except TypeError as error:
            error.add_note(call.name)
            raise


def test_openapi_document_lists_every_request() -> None:
    result = msgspec.json.decode(render_openapi_document())
    assert result["openapi"] == "3.1.0"
    named = {
        (method.upper(), path) for path, methods in result["paths"].items() for method in methods
    }
    assert {(call.method, f"/api{call.path}") for call in CALLS.values()} <= named
    assert ("GET", "/api/events") in named
    text = render_docs_page().decode()
    assert all(f"/api{call.path}" in text for call in CALLS.values())
    assert "http://" not in text
    assert "<script" not in text

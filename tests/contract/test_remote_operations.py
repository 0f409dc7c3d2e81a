"""Every operation of the library can be called over HTTP, or has a reason why not."""

import msgspec

from corral.api.catalog import list_operations
from corral.api.remote_table import list_calls
from corral.http.openapi import STREAMS, render_docs_page, render_openapi_document

ROWS = list(list_operations())
CALLS = {call.name: call for call in list_calls()}


def test_every_operation_is_a_request_or_has_a_reason() -> None:
    for row in ROWS:
        kinds = (row.name in CALLS, row.policy.local is not None, row.policy.streamed is not None)
        assert sum(kinds) == 1, row.name


def test_every_described_stream_is_declared_as_one() -> None:
    streamed = {row.name for row in ROWS if row.policy.streamed is not None}
    assert {stream.operation for stream in STREAMS.values()} <= streamed


def test_local_arguments_are_not_in_the_request() -> None:
    for call in CALLS.values():
        assert not {field.name for field in call.fields} & {*call.policy.local_arguments}, call.name


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
    documented = {
        (method.upper(), path) for path, methods in result["paths"].items() for method in methods
    }
    assert {(call.method, f"/api{call.path}") for call in CALLS.values()} <= documented
    assert ("GET", "/api/events") in documented
    text = render_docs_page().decode()
    assert all(f"/api{call.path}" in text for call in CALLS.values())
    assert "http://" not in text
    assert "<script" not in text

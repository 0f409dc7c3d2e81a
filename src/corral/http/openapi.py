"""API reference: the OpenAPI 3.1 document and an HTML page, both generated from the calls."""

import html
import re
from functools import cache
from typing import Any, NamedTuple

import msgspec

from corral import __version__
from corral.api.catalog import list_operations, resource_classes
from corral.api.remote_table import MAX_WAIT_MS, RemoteCall, list_calls
from corral.kernel.errors import CorralError, list_error_classes

_ERRORS = {
    400: "Invalid request.",
    401: "Missing or invalid token.",
    403: "Not allowed.",
    404: "Not found.",
    405: "Wrong method.",
    409: "Conflict with the current state.",
    413: "Request body too large.",
    415: "Request body is not JSON.",
    423: "Held by another owner.",
    429: "Too many requests; see Retry-After.",
    503: "The store is unavailable.",
}


class StreamRoute(NamedTuple):
    """A route with a streaming response, which is not generated from its operation."""

    operation: str
    help: str
    content_type: str


STREAMS = {
    "/events": StreamRoute(
        "events.follow",
        "Stream all changes as server-sent events.",
        "text/event-stream",
    ),
    "/runs/{id}/output": StreamRoute(
        "outputs.open",
        "Read the output of a run from an offset; X-Next-Offset is the next offset.",
        "application/octet-stream",
    ),
}


@cache
def render_openapi_document() -> bytes:
    """Return the OpenAPI document as JSON."""
    from corral.http.streams import EventFilter, OutputRange

    operations = list_calls()
    types = (
        [call.arguments for call in operations]
        + [call.result for call in operations]
        + [EventFilter, OutputRange]
    )
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=_make_string_schema
    )
    count = len(operations)
    paths: dict[str, Any] = {}
    for call, arguments, result in zip(
        operations, schemas[:count], schemas[count : 2 * count], strict=True
    ):
        arguments = _dereference(arguments, components)
        paths.setdefault(f"/api{call.path}", {})[call.method.lower()] = _describe_operation(
            call, arguments, result
        )
    queries = dict(zip(STREAMS, schemas[-2:], strict=True))
    for path, stream in STREAMS.items():
        arguments = _dereference(queries[path], components)
        paths[f"/api{path}"] = {"get": _describe_stream(path, stream, arguments)}
    for call in operations:
        components.pop(call.arguments.__name__, None)
    components["Error"] = _make_error_schema()
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Corral",
                "version": __version__,
                "description": "All operations of the library over HTTP.",
            },
            "servers": [{"url": "/"}],
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
                "responses": {
                    str(status): {
                        "description": text,
                        "content": _describe_json(_make_reference("Error")),
                    }
                    for status, text in _ERRORS.items()
                },
            },
        }
    )


def _describe_operation(
    call: RemoteCall, arguments: dict[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    properties = dict(arguments.get("properties", {}))
    required = set(arguments.get("required", ()))
    parameters = []
    if call.subject is not None:
        parameters.append(
            _describe_parameter(call.subject, properties.pop(call.subject), "path", True)
        )
        required.discard(call.subject)
    for field in call.fields:
        if field.default is not None and field.name in properties:
            properties[field.name] = {**properties[field.name], "default": field.default}
    operation: dict[str, Any] = {
        "operationId": call.name,
        "tags": [call.resource_name],
        "summary": call.help,
        "responses": {
            "200": {"description": "Success.", "content": _describe_json(result)},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _ERRORS},
        },
    }
    if call.method == "GET":
        parameters += [
            _describe_parameter(name, schema, "query", name in required)
            for name, schema in properties.items()
        ]
    else:
        body = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            body["required"] = sorted(required)
        operation["requestBody"] = {"required": bool(required), "content": _describe_json(body)}
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Repeat a call with the same key to perform it only once.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 200},
            }
        )
    return {**operation, "parameters": parameters}


def _describe_stream(path: str, stream: StreamRoute, arguments: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        _describe_parameter(name, schema, "query", False)
        for name, schema in arguments["properties"].items()
    ]
    if "{id}" in path:
        parameters.append(_describe_parameter("id", {"type": "string"}, "path", True))
    return {
        "operationId": stream.operation,
        "tags": [stream.operation.partition(".")[0]],
        "summary": stream.help,
        "parameters": parameters,
        "responses": {
            "200": {"description": "A stream.", "content": {stream.content_type: {"schema": {}}}},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _ERRORS},
        },
    }


def _describe_parameter(name: str, schema: Any, place: str, required: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": schema}


def _describe_json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _make_reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _dereference(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    component: dict[str, Any] = components[schema["$ref"].rpartition("/")[2]]
    return component


def _make_string_schema(kind: type[Any]) -> dict[str, Any]:
    return {"type": "string"}


def _make_error_schema() -> dict[str, Any]:
    codes = dict.fromkeys(error.code for error in list_error_classes() if error is not CorralError)
    codes |= dict.fromkeys(("unauthenticated", "too_many", "internal"))
    return {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message", "details"],
                "properties": {
                    "code": {"type": "string", "enum": [*codes]},
                    "message": {"type": "string"},
                    "details": {"type": "object"},
                },
            }
        },
    }


@cache
def render_docs_page() -> bytes:
    """Return the reference as one HTML page, without scripts."""
    parts = [_HEAD]
    by_resource: dict[str, list[RemoteCall]] = {}
    for call in list_calls():
        by_resource.setdefault(call.resource_name, []).append(call)
    classes = resource_classes()
    for resource_name, operations in by_resource.items():
        parts.append(f'<h2 id="{resource_name}">{resource_name}</h2>')
        purpose = " ".join((classes[resource_name].__doc__ or "").split())
        parts.append(f"<p>{html.escape(purpose)}</p>")
        parts += [_render_entry(call) for call in operations]
    parts.append("<h2>Streams</h2>")
    for path, stream in STREAMS.items():
        parts.append(f"<h3><code>GET /api{path}</code></h3><p>{html.escape(stream.help)}</p>")
    parts.append("<h2>Not available over HTTP</h2><table>")
    reasons = {
        operation.name: operation.policy.local or operation.policy.streamed
        for operation in list_operations()
    }
    for name, reason in sorted(reasons.items()):
        if reason is None:
            continue
        parts.append(f"<tr><td><code>{name}</code></td><td>{html.escape(reason)}</td></tr>")
    parts.append("</table></body></html>")
    return "\n".join(parts).encode()


def render_docs_style() -> bytes:
    """Return the style sheet of `render_docs_page`."""
    return _STYLE


def _render_entry(call: RemoteCall) -> str:
    rows = "".join(
        f"<tr><td><code>{field.name}</code></td><td>{html.escape(_format_type(field.type))}</td>"
        f"<td>{'required' if field.required else _render_default(field.default)}</td></tr>"
        for field in call.fields
    )
    notes = []
    if call.policy.waits is not None:
        notes.append(f"Waits up to {MAX_WAIT_MS // 1000} s. Call again to wait longer.")
    if call.policy.agent is not None:
        notes.append("An agent's token may call this for its own objects.")
    note = f"<p><em>{' '.join(notes)}</em></p>" if notes else ""
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f'<h3 id="{call.name}"><code>{call.method} /api{call.path}</code></h3>'
        f"<p>{html.escape(call.help)}</p>{table}{note}"
        f"<p>Returns <code>{html.escape(_format_type(call.result))}</code></p>"
    )


def _render_default(default: Any) -> str:
    return "" if default is None else f"default {html.escape(repr(default))}"


def _format_type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    text = re.sub(r"typing\.Annotated\[int, [^\]]*\]", "int", text)
    return re.sub(r"(?:\w+\.)+(\w+)", r"\1", text).replace("NoneType", "None")


_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Corral HTTP API</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/api/docs.css">
</head><body>
<h1>Corral HTTP API</h1><p>GET takes its arguments from the query string, POST from a JSON object in
the body. Path parameters may also be passed as arguments: <code>GET /api/runs/samples?id=…</code>.
OpenAPI document: <a href="/api/openapi.json">openapi.json</a>.</p>"""

# A file of its own: the content security policy forbids inline styles.
_STYLE = b"""
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font-size: .95em }
td { padding: 0 1rem 0 0; vertical-align: top }
h2 { margin-top: 3rem; border-top: 1px solid }
h3 { margin-top: 2rem }
"""

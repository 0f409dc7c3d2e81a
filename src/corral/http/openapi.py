"""The API in its own words: OpenAPI 3.1, and a page to read, both from the table of calls."""

import html
import re
from functools import cache
from typing import Any

import msgspec

from corral import __version__
from corral.api.operations import rooms
from corral.api.remote_table import LOCAL, LONGEST_WAIT_MS, STREAMS, WAITS, Call, calls
from corral.http.agent_permissions import RULES
from corral.http.errors import STATUS

_ERRORS = {
    400: "What was sent can never work.",
    401: "No token, or one that is not good.",
    403: "Understood, and not allowed.",
    404: "No such thing.",
    405: "Another method is needed.",
    409: "Somebody else's change, or the thing's state, stands in the way.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    423: "Another owner holds it.",
    429: "Too many calls; Retry-After says when to come back.",
    503: "The store cannot be used now.",
}
_STREAMED = {
    "/events": (
        "events.follow",
        "Every change as it happens, as server-sent events.",
        "text/event-stream",
    ),
    "/runs/{id}/output": (
        "outputs.open",
        "What a run wrote, from an offset on; X-Next-Offset says where to go on.",
        "application/octet-stream",
    ),
}


@cache
def document() -> bytes:
    """The OpenAPI document."""
    from corral.http.streams import Part, Where

    made = calls()
    types = [call.arguments for call in made] + [call.result for call in made] + [Where, Part]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=_plain
    )
    count = len(made)
    paths: dict[str, Any] = {}
    for call, taken, given in zip(made, schemas[:count], schemas[count : 2 * count], strict=True):
        taken = _resolved(taken, components)
        paths.setdefault(f"/api{call.path}", {})[call.method.lower()] = _call(call, taken, given)
    asked = dict(zip(_STREAMED, schemas[-2:], strict=True))
    for path, (name, help, kind) in _STREAMED.items():
        taken = _resolved(asked[path], components)
        paths[f"/api{path}"] = {"get": _stream(path, name, help, kind, taken)}
    for call in made:
        components.pop(call.arguments.__name__, None)
    components["Error"] = _error_schema()
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Corral",
                "version": __version__,
                "description": "Every operation of the library, as a request.",
            },
            "servers": [{"url": "/"}],
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
                "responses": {
                    str(status): {"description": text, "content": _json(_ref("Error"))}
                    for status, text in _ERRORS.items()
                },
            },
        }
    )


def _call(call: Call, taken: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    properties = dict(taken.get("properties", {}))
    required = set(taken.get("required", ()))
    parameters = []
    if call.subject is not None:
        parameters.append(_parameter(call.subject, properties.pop(call.subject), "path", True))
        required.discard(call.subject)
    for field in call.fields:
        if field.default is not None and field.name in properties:
            properties[field.name] = {**properties[field.name], "default": field.default}
    told: dict[str, Any] = {
        "operationId": call.name,
        "tags": [call.attribute],
        "summary": call.help,
        "responses": {
            "200": {"description": "Done.", "content": _json(given)},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _ERRORS},
        },
    }
    if call.method == "GET":
        parameters += [
            _parameter(name, schema, "query", name in required)
            for name, schema in properties.items()
        ]
    else:
        body = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            body["required"] = sorted(required)
        told["requestBody"] = {"required": bool(required), "content": _json(body)}
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "The same key with the same call does it once.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 200},
            }
        )
    return {**told, "parameters": parameters}


def _stream(path: str, name: str, help: str, kind: str, taken: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        _parameter(name, schema, "query", False) for name, schema in taken["properties"].items()
    ]
    if "{id}" in path:
        parameters.append(_parameter("id", {"type": "string"}, "path", True))
    return {
        "operationId": name,
        "tags": [name.partition(".")[0]],
        "summary": help,
        "parameters": parameters,
        "responses": {
            "200": {"description": "As it comes.", "content": {kind: {"schema": {}}}},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _ERRORS},
        },
    }


def _parameter(name: str, schema: Any, place: str, required: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": schema}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = components[schema["$ref"].rpartition("/")[2]]
    return found


def _plain(kind: type[Any]) -> dict[str, Any]:
    return {"type": "string"}


def _error_schema() -> dict[str, Any]:
    codes = [*STATUS, "unauthenticated", "too_many", "internal"]
    return {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message", "details"],
                "properties": {
                    "code": {"type": "string", "enum": codes},
                    "message": {"type": "string"},
                    "details": {"type": "object"},
                },
            }
        },
    }


@cache
def page() -> bytes:
    """The same to read, without a script and without a request to anybody."""
    parts = [_HEAD]
    by_room: dict[str, list[Call]] = {}
    for call in calls():
        by_room.setdefault(call.attribute, []).append(call)
    listed = rooms()
    for attribute, made in by_room.items():
        parts.append(f'<h2 id="{attribute}">{attribute}</h2>')
        parts.append(f"<p>{html.escape(' '.join((listed[attribute].__doc__ or '').split()))}</p>")
        parts += [_entry(call) for call in made]
    parts.append("<h2>As it comes</h2>")
    for path, (_, help, _) in _STREAMED.items():
        parts.append(f"<h3><code>GET /api{path}</code></h3><p>{html.escape(help)}</p>")
    parts.append("<h2>Only where the store is</h2><table>")
    for name, reason in sorted({**LOCAL, **STREAMS}.items()):
        parts.append(f"<tr><td><code>{name}</code></td><td>{html.escape(reason)}</td></tr>")
    parts.append("</table></body></html>")
    return "\n".join(parts).encode()


def _entry(call: Call) -> str:
    rows = "".join(
        f"<tr><td><code>{field.name}</code></td><td>{html.escape(_type(field.type))}</td>"
        f"<td>{'needed' if field.required else _default(field.default)}</td></tr>"
        for field in call.fields
    )
    notes = []
    if call.name in WAITS:
        notes.append(f"It waits for at most {LONGEST_WAIT_MS // 1000} s; call it again.")
    if call.name in RULES:
        notes.append("An agent's token may call it, for what is its own.")
    note = f"<p><em>{' '.join(notes)}</em></p>" if notes else ""
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f'<h3 id="{call.name}"><code>{call.method} /api{call.path}</code></h3>'
        f"<p>{html.escape(call.help)}</p>{table}{note}"
        f"<p>Gives <code>{html.escape(_type(call.result))}</code></p>"
    )


def _default(default: Any) -> str:
    return "" if default is None else f"else {html.escape(repr(default))}"


def _type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    text = re.sub(r"typing\.Annotated\[int, [^\]]*\]", "int", text)
    return re.sub(r"(?:\w+\.)+(\w+)", r"\1", text).replace("NoneType", "None")


_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Corral: the API</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<meta name="viewport" content="width=device-width"><style>
:root { color-scheme: light dark } body { font: 15px/1.5 system-ui; max-width: 60rem; margin: 2rem
auto; padding: 0 1rem } code { font-size: .95em } td { padding: 0 1rem 0 0; vertical-align: top }
h3 { margin-top: 2rem } h2 { margin-top: 3rem; border-top: 1px solid }</style></head><body>
<h1>The HTTP API</h1><p>A question's arguments stand in the query of the URL, all others in a JSON
object. What stands in braces may also be given with them: <code>GET /api/runs/samples?id=…</code>.
The same as a document: <a href="/api/openapi.json">openapi.json</a>.</p>"""

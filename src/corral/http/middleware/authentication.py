"""Where a request's token comes from: the Authorization header, the cookie, or a login link."""

from urllib.parse import parse_qsl, urlencode

from corral.asgi import Scope
from corral.http.errors import ApiError
from corral.http.middleware.security_headers import SecureResponse

COOKIE = "corral_token"
_COOKIE_MAX_AGE = 365 * 24 * 3600


def read_token(scope: Scope, headers: dict[bytes, bytes]) -> str | None:
    """Return the secret of the Authorization header, else that of the cookie."""
    scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if secret and scheme.lower() == "bearer":
        return secret.strip()
    for name, value in scope["headers"]:
        if name == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, _, cookie_value = pair.strip().partition("=")
                if key == COOKIE:
                    return str(cookie_value)
    return None


def read_link_token(scope: Scope) -> str | None:
    """Return the secret of a login link, `/?token=…`, as the command line prints it."""
    query: bytes = scope["query_string"]
    if b"token=" not in query or scope["method"] != "GET":
        return None
    return dict(parse_qsl(query.decode("latin-1"))).get("token")


async def redirect_with_cookie(scope: Scope, response: SecureResponse, secret: str) -> None:
    """Store the secret in the browser's cookie and redirect to the address without it."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), True)
    query = urlencode([(name, value) for name, value in pairs if name != "token"])
    # One slash: `//host` would redirect to another site.
    path = "/" + scope.get("raw_path", scope["path"].encode()).decode("latin-1").lstrip("/\\")
    cookie = f"{COOKIE}={secret}; HttpOnly; SameSite=Strict; Path=/; Max-Age={_COOKIE_MAX_AGE}"
    headers = [
        (b"location", (path + (f"?{query}" if query else "")).encode("latin-1")),
        (b"set-cookie", cookie.encode()),
    ]
    await response.send_body(303, b"", headers)


def missing_token() -> ApiError:
    return ApiError(
        401,
        "unauthenticated",
        "A token is required. Send `Authorization: Bearer …`, or open the link that `corral up` "
        "prints.",
        headers={"www-authenticate": "Bearer"},
    )

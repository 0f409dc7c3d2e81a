"""Where a request's token comes from: the Authorization header, the cookie, or a login link."""

from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import Response

from corral.asgi import Scope
from corral.http.errors import ApiError

COOKIE = "corral_token"
_COOKIE_MAX_AGE = 365 * 24 * 3600


def read_token(headers: Headers) -> str | None:
    """Return the secret of the Authorization header, else that of the cookie."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    if secret and scheme.lower() == "bearer":
        return secret.strip()
    for cookies in headers.getlist("cookie"):
        for pair in cookies.split(";"):
            key, _, value = pair.strip().partition("=")
            if key == COOKIE:
                return value
    return None


def read_link_token(scope: Scope) -> str | None:
    """Return the secret of a login link, `/?token=…`, as the command line prints it."""
    query: bytes = scope["query_string"]
    if b"token=" not in query or scope["method"] != "GET":
        return None
    return dict(parse_qsl(query.decode("latin-1"))).get("token")


def redirect_with_cookie(scope: Scope, secret: str) -> Response:
    """Return a redirect to the address without the secret, which a cookie then holds."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), True)
    query = urlencode([(name, value) for name, value in pairs if name != "token"])
    # One slash: `//host` would redirect to another site.
    path = "/" + scope.get("raw_path", scope["path"].encode()).decode("latin-1").lstrip("/\\")
    cookie = f"{COOKIE}={secret}; HttpOnly; SameSite=Strict; Path=/; Max-Age={_COOKIE_MAX_AGE}"
    location = path + (f"?{query}" if query else "")
    return Response(status_code=303, headers={"location": location, "set-cookie": cookie})


def missing_token_error() -> ApiError:
    """Return the error for a request without a token."""
    return ApiError(
        401,
        "unauthenticated",
        "A token is required. Send `Authorization: Bearer …`, or open the link that `corral up` "
        "prints.",
        headers={"www-authenticate": "Bearer"},
    )

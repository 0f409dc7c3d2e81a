"""Parsing of HTML forms: URL-encoded, and multipart with files."""

from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from corral.adapters.channels.contract import RawAttachment
from corral.kernel.errors import Invalid

MAX_FORM = 1024 * 1024
MAX_FIELDS = 300


class Form(dict[str, str]):
    """Form fields by name; the last of two with the same name wins."""

    def __init__(
        self, fields: list[tuple[str, str]], files: list[RawAttachment] | None = None
    ) -> None:
        super().__init__(fields)
        self.files = files or []


async def read_form(http: Request) -> Form:
    """Parse a form; raises Invalid when it is malformed or too large.

    The size of files is limited by the middleware and by the operation that stores them.
    """
    try:
        await _check_body(http)
        body = await http.body()
        is_multipart = http.headers.get("content-type", "").startswith("multipart/")
        fields: list[tuple[str, str]] = []
        files: list[RawAttachment] = []
        async with http.form(
            max_files=MAX_FIELDS, max_fields=MAX_FIELDS, max_part_size=MAX_FORM
        ) as form:
            for name, value in form.multi_items():
                if isinstance(value, str):
                    # Starlette reads bytes that are not UTF-8 as Latin-1.
                    if is_multipart and value.encode() not in body:
                        raise ValueError("not UTF-8")
                    fields.append((name, value))
                else:
                    files += await _read_file(value)
    except (HTTPException, MultiPartException, ValueError):
        raise Invalid("The form data is malformed. Reload the page and submit it again.") from None
    # Starlette limits each part, and neither the number nor the size of URL-encoded fields.
    _check_size(sum(len(name) + len(value) for name, value in fields))
    if len(fields) > MAX_FIELDS:
        raise Invalid(f"The form has more than {MAX_FIELDS} fields.")
    return Form(fields, files)


async def _check_body(http: Request) -> None:
    """Raise ValueError for what Starlette's parsers accept: a truncated or undecodable body."""
    body = await http.body()
    kind, options = parse_options_header(http.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        _check_size(len(body))
        body.decode("utf-8")
    elif not body.rstrip(b"\r\n").endswith(b"--" + options.get(b"boundary", b"") + b"--"):
        raise ValueError("missing final boundary")


async def _read_file(upload: UploadFile) -> list[RawAttachment]:
    data = await upload.read()
    if not (upload.filename or data):
        return []  # browsers send an empty file name when no file is chosen
    kind = (upload.content_type or "text/plain").partition(";")[0]
    return [RawAttachment(upload.filename or "", data, len(data), kind)]


def _check_size(size: int) -> None:
    if size > MAX_FORM:
        raise Invalid(f"The form exceeds {MAX_FORM:,} bytes. Put the text into a file.")

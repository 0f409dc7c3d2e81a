"""Parsing of HTML forms: URL-encoded, and multipart with files."""

from collections.abc import Iterator
from email.message import Message as Header
from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import parse_qsl

from corral.adapters.channels.contract import RawAttachment
from corral.kernel.errors import Invalid

MAX_FORM = 1024 * 1024
MAX_FIELDS = 300
MAX_HEADER = 8 * 1024
MULTIPART = "multipart/form-data"


class Form(dict[str, str]):
    """Form fields by name; the last of two with the same name wins."""

    def __init__(
        self, fields: list[tuple[str, str]], files: list[RawAttachment] | None = None
    ) -> None:
        super().__init__(fields)
        self.files = files or []


def read_form(content_type: str, body: bytes) -> Form:
    """Parse a form; raises Invalid when it is malformed or too large.

    The size of files is limited by the middleware and by the operation that stores them.
    """
    try:
        if content_type.partition(";")[0].strip().lower() == MULTIPART:
            return _multipart(content_type, body)
        _check_size(len(body))
        return Form(
            parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        )
    except ValueError:
        raise Invalid("The form data is malformed. Reload the page and submit it again.") from None


def _check_size(size: int) -> None:
    if size > MAX_FORM:
        raise Invalid(f"The form exceeds {MAX_FORM:,} bytes. Put the text into a file.")


def _multipart(content_type: str, body: bytes) -> Form:
    boundary = _header(f"content-type: {content_type}".encode()).get_boundary()
    if not boundary:
        raise ValueError("no boundary")
    fields, files, size = [], [], 0
    for head, data in _parts(body, boundary.encode("latin-1")):
        header = _header(head)
        name = header.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise ValueError("part without a name")
        # Browsers send an empty file name when no file is chosen.
        filename = header.get_filename()
        if filename is None:
            size += len(data)
            _check_size(size)
            fields.append((name, data.decode("utf-8")))
        elif filename or data:
            files.append(RawAttachment(filename, data, len(data), header.get_content_type()))
    return Form(fields, files)


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield headers and content of each part; raises ValueError for a missing final boundary."""
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_FIELDS + 1)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--") or len(pieces) > MAX_FIELDS + 1:
        raise ValueError("missing final boundary")
    for piece in pieces[1:-1]:
        head, blank, data = piece.partition(b"\r\n\r\n")
        if not blank or len(head) > MAX_HEADER:
            raise ValueError("part without headers")
        yield head.strip(b"\r\n\t "), data


def _header(head: bytes) -> Header:
    return BytesParser(policy=HTTP.clone(utf8=True)).parsebytes(
        head + b"\r\n\r\n", headersonly=True
    )

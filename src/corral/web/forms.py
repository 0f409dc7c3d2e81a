"""What a browser sends with a form: its fields, and files where the form has such a field."""

from collections.abc import Iterator
from email.message import Message as Header
from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import parse_qsl

from corral.adapters.channels.contract import Attached
from corral.kernel.errors import Invalid

MAX_FORM = 1024 * 1024
MAX_FIELDS = 300
MAX_HEADER = 8 * 1024
MULTIPART = "multipart/form-data"


class Form(dict[str, str]):
    """The fields of a form by their names; of two with one name the last counts."""

    def __init__(self, fields: list[tuple[str, str]], files: list[Attached] | None = None) -> None:
        super().__init__(fields)
        self.files = files or []


def read_form(content_type: str, body: bytes) -> Form:
    """A form that was sent; Invalid when it is none, or too large. Files are not limited here:
    whoever keeps them says how large they may be, and a request has its own limit."""
    try:
        if content_type.partition(";")[0].strip().lower() == MULTIPART:
            return _multipart(content_type, body)
        _check(len(body))
        return Form(
            parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        )
    except ValueError:
        raise Invalid("The form cannot be read; send it from the page.") from None


def _check(size: int) -> None:
    if size > MAX_FORM:
        raise Invalid(f"A form holds up to {MAX_FORM:,} bytes; put the text into a file.")


def _multipart(content_type: str, body: bytes) -> Form:
    boundary = _header(f"content-type: {content_type}".encode()).get_boundary()
    if not boundary:
        raise ValueError("no boundary")
    fields, files, size = [], [], 0
    for head, data in _parts(body, boundary.encode("latin-1")):
        about = _header(head)
        name = about.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise ValueError("a part without a name")
        # The name of a file as it is: one that is not chosen comes as an empty name.
        filename = about.get_filename()
        if filename is None:
            size += len(data)
            _check(size)
            fields.append((name, data.decode("utf-8")))
        elif filename or data:
            files.append(Attached(filename, data, len(data), about.get_content_type()))
    return Form(fields, files)


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The head and the bytes of each part; ValueError when they do not end as they should."""
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_FIELDS + 1)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--") or len(pieces) > MAX_FIELDS + 1:
        raise ValueError("it does not end")
    for piece in pieces[1:-1]:
        head, blank, data = piece.partition(b"\r\n\r\n")
        if not blank or len(head) > MAX_HEADER:
            raise ValueError("a part without a head")
        yield head.strip(b"\r\n\t "), data


def _header(head: bytes) -> Header:
    return BytesParser(policy=HTTP.clone(utf8=True)).parsebytes(
        head + b"\r\n\r\n", headersonly=True
    )

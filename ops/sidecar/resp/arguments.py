"""Arguments of commands: whole numbers, names, and options at the end.

Rules of this file: bytes in, values out; a wrong argument raises Refused that names it, and never repeats a key or a
value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from standfast.ops.shared.error_codes import BAD_NAME, BAD_REQUEST, Refused
from standfast.store.errors import InvalidRequest
from standfast.store.names import check_name, few

NUMBER_DIGITS_MAX = 19
TIME_MAX = 2**63 - 1


def whole(raw: bytes, what: str, *, least: int = 0, most: int = TIME_MAX) -> int:
    """A whole number within bounds."""
    digits = raw[1:] if raw[:1] == b"-" else raw
    # The digits are counted before `int`, whose time grows with the square of their number.
    if not digits.isdigit() or len(digits) > NUMBER_DIGITS_MAX or not least <= int(raw) <= most:
        raise Refused(BAD_REQUEST, f"{what} must be a whole number from {least} to {most}")
    return int(raw)


def name(raw: bytes, what: str = "store") -> str:
    """A name as the library checks it."""
    try:
        # Cut, because an error repeats the name.
        return check_name(what, raw.decode("ascii", "replace")[:256])
    except InvalidRequest as error:
        raise Refused(BAD_NAME, str(error)) from None


def text(raw: bytes, what: str) -> str:
    """UTF-8 text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Refused(BAD_REQUEST, f"{what} must be UTF-8 text") from None


def options(args: Sequence[bytes], start: int, allowed: Mapping[bytes, int]) -> dict[bytes, list[bytes]]:
    """Options after the fixed arguments, in any order and case: name -> its values, as many as `allowed` gives it."""
    found: dict[bytes, list[bytes]] = {}
    at = start
    while at < len(args):
        option = args[at].upper()
        takes = allowed.get(option)
        if takes is None or option in found:
            known = few(sorted(one.decode() for one in allowed)) or "none"
            raise Refused(
                BAD_REQUEST, f"argument {at} is not an option of this command, or is given twice (options: {known})"
            )
        if at + takes >= len(args):
            raise Refused(BAD_REQUEST, f"option {option.decode()} takes {takes} more argument(s)")
        found[option] = list(args[at + 1 : at + 1 + takes])
        at += 1 + takes
    return found

"""Numbers and flags in query strings and forms.

Only what is plainly written counts: Python also reads `1_000`, and digits of other scripts.
"""

from __future__ import annotations

import re

#: Largest whole number that databases hold, and its digits.
WHOLE_LIMIT = 2**63 - 1
_DIGITS_LIMIT = len(str(WHOLE_LIMIT))
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
FLAGS_HELP = "Give 1, true or yes, or 0, false or no."


def whole_read(text: str | None) -> int | None:
    """Return the whole number from 0 to `WHOLE_LIMIT` that a text is; None if it is none."""
    if not text or not text.isascii() or not text.isdecimal() or len(text) > _DIGITS_LIMIT:
        return None
    number = int(text)
    return number if number <= WHOLE_LIMIT else None


def number_read(text: str) -> float | None:
    """Return the number that a text is; None if it is none."""
    return float(text) if _NUMBER.fullmatch(text) else None


def flag_read(text: str) -> bool | None:
    """Return the truth value that a text is; None if it is none."""
    return _FLAGS.get(text.lower())

"""A secret that is looked for. Trainers import nothing of this: they would have it anyway."""

from __future__ import annotations

from tests.security.secret_forms import secret_forms

#: Lines, quotes and letters beyond ASCII: its encodings differ from it.
VALUE = 'k€y/"7+x%&\nsecond ¢line of it'
FORMS = secret_forms(VALUE)


def leaks(text: str) -> list[str]:
    """Name the forms of the value that a text contains."""
    return [name for name, form in FORMS.items() if form.rstrip("=") in text]

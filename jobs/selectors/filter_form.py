"""Form of the query parameters of a filter."""

from __future__ import annotations

from typing import Any

from django import forms


class FilterForm(forms.Form):
    """Form whose refusal of a choice names those that there are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field in self.fields.values():
            if isinstance(field, forms.ChoiceField):
                choices: Any = field.choices
                names = ", ".join(str(name) for name, _ in choices if name)
                field.error_messages["invalid_choice"] = f"Choose one of {names}."

"""Bodies of requests: unknown fields, and the messages about nested ones."""

from __future__ import annotations

import pytest

from jobs.api import urls
from jobs.api.bodies import BodySerializer, checked
from jobs.exceptions import MESSAGES_LIMIT, InvalidInputError, messages_by_field


def _bodies(kind: type[BodySerializer] = BodySerializer) -> list[type[BodySerializer]]:
    assert urls.urlpatterns  # all views are loaded
    below = kind.__subclasses__()
    return [*below, *(found for each in below for found in _bodies(each))]


@pytest.mark.parametrize("body", _bodies(), ids=lambda body: body.__name__)
def test_an_unknown_field_is_refused_with_the_known_ones(body: type[BodySerializer]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        checked(body, {"tgas": 1})
    ((name, messages),) = caught.value.fields.items()
    assert name == "tgas"
    assert all(field in messages[0] for field in body().fields)


def test_messages_tell_the_place_of_what_they_are_about() -> None:
    errors = {
        "jobs": {1: ["Give a number."]},
        "changes": {0: {"tier": ["Choose one."]}},
        "per_hour": {"a100": ["Give a number."]},
        "name": ["Too long.", "Not printable."],
        "many": [{}, {"x": ["Wrong."]}],
        "plain": "One text.",
    }
    assert messages_by_field(errors) == {
        "jobs": ["Item 2: Give a number."],
        "changes": ["Item 1: tier: Choose one."],
        "per_hour": ["a100: Give a number."],
        "name": ["Too long.", "Not printable."],
        "many": ["x: Wrong."],
        "plain": ["One text."],
    }


def test_a_long_list_of_errors_is_cut() -> None:
    errors = {"jobs": {place: ["Give a number."] for place in range(500)}}
    assert len(messages_by_field(errors)["jobs"]) == MESSAGES_LIMIT

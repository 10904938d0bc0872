"""Numbers and flags in queries and bodies: what is not plainly one is refused, by its name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rest_framework.exceptions import ValidationError

from jobs.api.jobs.submission_fields import NumberField, WholeField
from jobs.api.openapi import openapi_document
from jobs.models import NotificationChannel
from tests.support.builders import at, job_make, logged_in, node_make, user_make, validation_make

pytestmark = pytest.mark.django_db

#: Python reads most of these as a number.
NO_NUMBERS = ("1_0", "\u0661", " 1", "+1", "0x1", "nan", "one", "9" * 30)
NO_WHOLE_NUMBERS = (*NO_NUMBERS, "1.5", "1e1", "-1")
ODD = {
    "integer": NO_WHOLE_NUMBERS,
    "number": NO_NUMBERS,
    "boolean": ("maybe", "2", "on", "tr\u0443e"),
}


def parameters() -> list[tuple[str, str, str]]:
    """List path, name and type of all query parameters that are numbers or flags."""
    schema: dict[str, Any] = openapi_document()
    return [
        (path, parameter["name"], parameter["schema"]["type"])
        for path, operations in schema["paths"].items()
        for parameter in operations.get("get", {}).get("parameters", ())
        if parameter["in"] == "query" and parameter["schema"].get("type") in ODD
    ]


def test_odd_values_in_queries() -> None:
    admin = user_make(is_staff=True)
    job, (node, _) = job_make(admin), node_make(now=at(0))
    channel = NotificationChannel.objects.create(owner=admin, name="a", created_at=at(0))
    numbers = {"job_id": job, "node_id": node, "validation_id": validation_make(job)}
    numbers["channel_id"] = channel
    client = logged_in(admin)
    found = parameters()
    assert len(found) > 25
    wrong = []
    for path, name, kind in found:
        address = re.sub("{([a-z_]+)}", lambda match: str(numbers[match[1]].pk), path)
        for value in ODD[kind]:
            answer = client.get(address, {name: value})
            told = answer.json().get("errors", {}) if answer.status_code == 400 else {}
            if name not in told:
                wrong.append(f"{path} {name}={value!r}: {answer.status_code} {told}")
    assert wrong == []


@pytest.mark.parametrize("value", [*NO_WHOLE_NUMBERS, 1.0, True, [1], {}])
def test_odd_whole_numbers_in_bodies(value: Any) -> None:
    with pytest.raises(ValidationError, match="whole number from 0 to 9"):
        WholeField(0, 9).run_validation(value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, True, [1], {}])
def test_odd_numbers_in_bodies(value: Any) -> None:
    with pytest.raises(ValidationError, match="Give a"):
        NumberField(0.0, 9.0).run_validation(value)


def test_plain_numbers_in_forms() -> None:
    assert WholeField(-9, 9).run_validation("-7") == -7
    assert NumberField().run_validation("-2.5e-1") == -0.25

"""GET and POST /api/v1/saved-filters/, and the same on the list of jobs."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from jobs.models import SavedFilter
from jobs.services.cluster.saved_filters import FILTERS_LIMIT
from tests.support.builders import Clients, logged_in

pytestmark = pytest.mark.django_db

URL = "/api/v1/saved-filters/"


def keep(client: APIClient, name: str = "mine", query: str = "status=live&tag=a&tag=b") -> Any:
    return client.post(URL, {"name": name, "query": query}, format="json")


def test_a_filter_is_kept_replaced_and_deleted(ada: User, bob: User, client_of: Clients) -> None:
    client = client_of(ada)
    first = keep(client).json()
    assert (first["name"], first["query"]) == ("mine", "status=live&tag=a&tag=b")
    empty = keep(client, query="?q=cnn&tag=&owner").json()
    assert empty["query"] == "q=cnn", "the list of jobs takes no parameter without a value"
    assert [row["id"] for row in client.get(URL).json()] == [first["id"]]
    other = client_of(bob)
    assert other.get(URL).json() == []
    assert other.delete(f"{URL}{first['id']}/").status_code == 404
    assert client.delete(f"{URL}{first['id']}/").status_code == 204
    assert client.delete(f"{URL}{first['id']}/").status_code == 404


@pytest.mark.parametrize(
    ("name", "query", "field"),
    [
        ("", "q=a", "name"),
        ("x" * 61, "q=a", "name"),
        ("a\nb", "q=a", "name"),
        (7, "q=a", "name"),
        ("a", "", "query"),
        ("a", "&&", "query"),
        ("a", "q=a&q=b", "query"),
        ("a", "colour=red", "query"),
        ("a", "status=asleep", "query"),
        ("a", "metric=a>b>c", "query"),
        ("a", "q=" + "x" * 2000, "query"),
    ],
)
def test_a_wrong_filter_names_the_field(
    ada: User, client_of: Clients, name: Any, query: str, field: str
) -> None:
    answer = keep(client_of(ada), name, query)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field])
    assert not SavedFilter.objects.exists()


def test_there_is_a_limit(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    for number in range(FILTERS_LIMIT):
        assert keep(client, f"filter {number}").status_code == 200
    assert "delete one first" in keep(client, "one more").json()["errors"]["name"][0]
    assert keep(client, "filter 3", "q=new").status_code == 200


def test_the_list_of_jobs_offers_them(ada: User) -> None:
    browser = logged_in(ada)
    form = {"name": "<b>live", "query": "status=live"}
    page = browser.post("/jobs/filters/", form, follow=True).content.decode()
    assert 'href="?status=live" aria-current="page">&lt;b&gt;live</a>' in page
    assert "is saved as" in page
    page = browser.get("/jobs/").content.decode()
    assert 'href="?status=live">&lt;b&gt;live</a>' in page
    page = browser.post("/jobs/filters/", {"name": "", "query": "status=live"}, follow=True)
    assert "printable" in page.content.decode()
    kept = SavedFilter.objects.get()
    browser.post("/jobs/filters/", {"delete": kept.pk, "query": "status=live"})
    assert not SavedFilter.objects.exists()

"""Acts of consequence leave an entry that nobody changes: who, what, from where (M10)."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.models import (
    ApiToken,
    AuditEntry,
    ClusterSetting,
    EnrolmentToken,
    Event,
    Job,
    Node,
    Project,
)
from jobs.models.audit import AppendOnlyError, AuditAction, AuditQuerySet
from jobs.services.cluster import api_tokens
from jobs.services.lifecycle.audit import audit_add, audit_expire
from jobs.services.scheduling import policy
from tests.security.audited_acts import ACTS, BY_REST, NOTED_OR_NOT_DONE, PASSWORD, Site
from tests.support.builders import job_make, logged_in, node_make

pytestmark = pytest.mark.django_db

URL = "/api/v1/audit/"


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    cache.clear()


@pytest.fixture
def site(db: None) -> Site:
    return Site()


@pytest.mark.parametrize("name", ACTS)
def test_each_act_leaves_an_entry(name: str, site: Site) -> None:
    act, action, object_ = ACTS[name]
    answer = act(site)
    b"".join(answer)  # a download keeps its place until it is read
    assert answer.status_code < 400
    entries = [entry for entry in site.entries() if entry.action == action]
    assert len(entries) == (2 if name == "a job" else 1)  # the page shows the code, too
    entry = entries[0]
    assert entry.object.startswith(object_)
    assert entry.actor == ("anonymous" if action == "login_failed" else "user:boss")
    assert (entry.address, entry.user_agent) == ("192.0.2.5", "a browser")
    assert ("token" in entry.details) == name.startswith(BY_REST)
    assert PASSWORD not in str(entry.details)


def test_each_network_that_a_token_is_used_from_leaves_an_entry(
    site: Site,
) -> None:
    def use(address: str) -> None:
        assert site.rest.get("/api/v1/jobs/", REMOTE_ADDR=address).status_code == 200

    def networks() -> list[str]:
        return [e.details["network"] for e in site.entries() if e.action == "token_used_elsewhere"]

    used = ["192.0.2.5", "192.0.2.6", "2001:db8::1", "2001:db8::2:3", "192.0.2.6", "192.0.2.7"]
    for address in used:
        use(address)
    assert networks() == ["192.0.2.6", "2001:db8::", "192.0.2.7"]
    (entry,) = AuditEntry.objects.filter(address="192.0.2.7")
    assert (entry.actor, entry.user_agent) == ("user:boss", "a browser")
    with CaptureQueriesContext(connection) as queries:
        use("192.0.2.7")
    assert not [query for query in queries if "audit" in query["sql"]]
    cache.clear()  # as in another process
    use("192.0.2.7")
    for number in range(api_tokens.NETWORKS_LIMIT):
        use(f"198.51.100.{number}")
    assert len(networks()) == 3 + api_tokens.NETWORKS_LIMIT
    cache.clear()
    use("192.0.2.7")
    assert len(networks()) == 4 + api_tokens.NETWORKS_LIMIT


def test_an_enrolment_is_noted_with_its_token(site: Site) -> None:
    node_make("node-b")
    (entry,) = (entry for entry in site.entries() if entry.action == "node_enrolled")
    assert (entry.actor, entry.object) == ("node:node-b", "node:node-b")
    token = EnrolmentToken.objects.get(node=Node.objects.get(name="node-b"))
    assert entry.details["by"] == f"enrolment-token:{token.pk}"


def test_owners_reading_their_own_leave_nothing(site: Site) -> None:
    client = logged_in(site.ada)
    assert client.get(f"/jobs/{site.job.pk}/code/").status_code == 200
    assert not AuditEntry.objects.filter(action="job_read").exists()


def test_a_followed_log_is_one_entry_in_an_hour(site: Site) -> None:
    for _ in range(3):
        site.session.get(f"/jobs/{site.job.pk}/log/")
    (entry,) = AuditEntry.objects.filter(action="job_read")
    assert entry.object == f"job:{site.job.pk}/log"
    assert entry.details["owner"] == "ada"
    # Other places that show a job's settings are as its page; lists and polls show less.
    jobs = [site.job.pk, site.ended.pk, job_make(site.ada).pk]
    assert site.session.get(f"/jobs/{jobs[0]}/copy/").status_code == 200
    assert site.session.get(f"/jobs/compare/?job={jobs[0]}&job={jobs[1]}").status_code == 200
    assert site.rest.get(f"/api/v1/jobs/compare/?job={jobs[2]}").status_code == 200
    jobs += [job_make(site.ada, name=name).pk for name in ("one", "many", "many")]
    for query in ("", "?fields=id,status_reason,loss"):
        assert len(site.rest.get(f"/api/v1/jobs/{query}").json()["results"]) == len(jobs)
    assert site.rest.get(f"/api/v1/jobs/{jobs[3]}/?fields=status,step").status_code == 200
    assert site.rest.get(f"/api/v1/jobs/{jobs[3]}/?fields=status,settings").status_code == 200
    for _ in range(2):
        found = site.rest.get("/api/v1/jobs/?name=many&fields=id,error_traceback").json()["results"]
        assert [row["id"] for row in found] == [jobs[5], jobs[4]]
    noted = AuditEntry.objects.filter(action="job_read").order_by("id")[1:]
    assert Counter(entry.object for entry in noted) == Counter(f"job:{pk}/page" for pk in jobs)


def test_what_is_not_noted_is_not_done(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database may go away between an act and its entry."""

    def stored() -> list[list[Any]]:
        models = (Node, ApiToken, EnrolmentToken, Event, Job, ClusterSetting, Project, User)
        return [list(model.objects.order_by("pk").values()) for model in models]

    def fail(*_: object, **__: object) -> None:
        raise OperationalError

    policy.cluster_setting()
    before = stored()
    monkeypatch.setattr(AuditQuerySet, "bulk_create", fail)
    for name in NOTED_OR_NOT_DONE:
        with contextlib.suppress(OperationalError):
            assert ACTS[name][0](site).status_code == 503
        assert stored() == before, name


def test_entries_are_never_changed_or_deleted() -> None:
    entry = audit_add(AuditAction.LOGIN, "user:ada", actor="user:ada")
    rows = AuditEntry.objects.filter(pk=entry.pk)
    entry.actor = "user:bob"
    changes: list[Callable[[], Any]] = [
        entry.save,
        AuditEntry.objects.get(pk=entry.pk).save,
        entry.delete,
        rows.delete,
        lambda: rows.update(actor="user:bob"),
        lambda: AuditEntry.objects.bulk_update([entry], ["actor"]),
    ]
    for change in changes:
        with pytest.raises(AppendOnlyError):
            change()
    assert AuditEntry.objects.get().actor == "user:ada"


@pytest.mark.skipif("connection.vendor != 'postgresql'")
@pytest.mark.parametrize(
    "statement", ["UPDATE jobs_auditentry SET actor = ''", "DELETE FROM jobs_auditentry"]
)
def test_the_database_refuses_as_well(statement: str) -> None:
    audit_add(AuditAction.LOGIN, "user:ada", actor="user:ada")
    with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
        connection.cursor().execute(statement)


def test_old_entries_go_at_the_end_of_their_time(settings: Any) -> None:
    now = timezone.now()
    for days in (1, settings.AUDIT_DAYS - 1, settings.AUDIT_DAYS + 1):
        audit_add(AuditAction.LOGOUT, now=now - datetime.timedelta(days=days))
    assert audit_expire(now) == 1
    assert AuditEntry.objects.count() == 2


def test_odd_text_is_stored_and_cut(site: Site) -> None:
    client = Client(REMOTE_ADDR="nonsense", headers={"User-Agent": "\xff" + "u" * 500})
    client.post("/login/", {"username": "x" * 150, "password": "y"})
    entry = AuditEntry.objects.get(action="login_failed")
    assert (entry.address, len(entry.user_agent)) == ("", 200)


def test_rest_lists_pages_and_filters(site: Site) -> None:
    for number in range(5):
        audit_add(AuditAction.JOB_READ, f"job:{number}/code", actor="user:eve")
    page = site.rest.get(URL, {"page_size": 2}).json()
    assert [row["object"] for row in page["results"]] == ["job:4/code", "job:3/code"]
    assert site.rest.get(page["next"]).json()["results"][0]["object"] == "job:2/code"
    for query, number in (
        ({"object": "job:3"}, 1), ({"actor": "eve"}, 5), ({"action": "login"}, 0),
        ({"action": ["login", "job_read"]}, 5), ({"after": "2999-01-01T00:00:00Z"}, 0),
    ):  # fmt: skip
        assert len(site.rest.get(URL, query).json()["results"]) == number, query
    refused = site.rest.get(URL, {"action": "nothing"})
    assert (refused.status_code, "Choose one of" in refused.content.decode()) == (400, True)
    assert site.rest.post(URL, {}).status_code == 405


def test_the_page_shows_filters_and_leads_on(site: Site) -> None:
    for number in range(60):
        audit_add(
            AuditAction.JOB_READ, f"job:{number}/code", actor="user:eve",
            owner="ada", is_staff=False, expires_at="2026-12-01T09:05:07.824513+00:00",
        )  # fmt: skip
    page = site.session.get("/audit/", {"actor": "eve"})
    assert page.context["entries"][0].object == "job:59/code"
    expected = "owner: ada · is staff: no · expires at: 2026-12-01 09:05:07 UTC"
    assert expected in page.content.decode()
    assert "job read" in page.content.decode()
    older = site.session.get(f"/audit/?{page.context['older_query']}")
    assert older.context["entries"][-1].object == "job:0/code"
    assert "older_query" not in older.context
    assert 'href="/audit/"' in site.session.get("/").content.decode()
    assert list(site.session.get("/audit/", {"action": "nothing"}).context["entries"]) == []

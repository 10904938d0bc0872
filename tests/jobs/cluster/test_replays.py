"""Questions "what if": asked, limited, taken up by one worker, taken back, answered."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.exceptions import ConflictError, InvalidInputError
from jobs.models import Replay, ReplayStatus
from jobs.services.cluster import replays
from jobs.services.cluster.replay_run import ReplayStoppedError
from tests.support.builders import accelerators, node_make

pytestmark = pytest.mark.django_db

Clients = Callable[..., APIClient]
NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
URL = "/api/v1/replays/"


def ask(**changes: Any) -> Replay:
    values: dict[str, Any] = {"policy": "fifo", "accelerators": {}, "hours": 2, "now": NOW}
    return replays.replay_ask(None, **{**values, **changes})


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., dict[str, Any]]) -> None:
    monkeypatch.setattr(replays, "replay_answer", answer)


def test_kinds_that_are_left_out_stay_as_they_are() -> None:
    node_make("alpha", 2)
    node_make("beta", accelerators=accelerators(3, "gpu"))
    replay = ask(accelerators={"gpu": 8})
    assert replay.accelerators == {"cpu": 2, "gpu": 8}
    assert (replay.end_at - replay.start_at).total_seconds() == 7200
    assert ask(accelerators={"cpu": 0}).accelerators == {"gpu": 3}


@pytest.mark.parametrize(
    ("changes", "field", "word"),
    [
        ({"policy": "best"}, "policy", "fifo"),
        ({"hours": 0}, "hours", "720"),
        ({"hours": "5"}, "hours", "whole hours"),
        ({"hours": True}, "hours", "whole hours"),
        ({"accelerators": {"tpu": 4}}, "accelerators", "Known kinds: cpu"),
        ({"accelerators": {"cpu": -1}}, "accelerators", "for cpu"),
        ({"accelerators": {"cpu": 2.5}}, "accelerators", "for cpu"),
        ({"accelerators": {"cpu": 0}}, "accelerators", "not 0"),
        ({"accelerators": {"cpu": 10_241}}, "accelerators", "not 10241"),
    ],
)
def test_wrong_questions_name_the_field(changes: dict[str, Any], field: str, word: str) -> None:
    node_make("alpha", 2)
    with pytest.raises(InvalidInputError) as caught:
        ask(**changes)
    assert list(caught.value.fields) == [field]
    assert word in caught.value.fields[field][0]
    assert not Replay.objects.exists()


def test_only_so_many_wait_and_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    node_make("alpha", 2)
    monkeypatch.setattr(replays, "KEPT_LIMIT", 3)
    for _ in range(replays.LIVE_LIMIT):
        ask()
    with pytest.raises(ConflictError):
        ask()
    Replay.objects.update(status=ReplayStatus.DONE)
    newest = ask()
    assert list(Replay.objects.values_list("id", flat=True)) == [
        newest.pk, newest.pk - 1, newest.pk - 2,
    ]  # fmt: skip


def test_the_oldest_is_answered_first(monkeypatch: pytest.MonkeyPatch) -> None:
    node_make("alpha", 2)
    first, second = ask(), ask(policy="priority")
    answer_with(monkeypatch, lambda replay, progress: {"policy": replay.policy})
    assert replays.replay_next(NOW) == first.pk
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.status, first.progress, first.result) == ("done", 1.0, {"policy": "fifo"})
    assert second.status == "waiting"
    assert replays.replay_next(NOW) == second.pk
    assert replays.replay_next(NOW) is None


def test_a_lost_worker_is_followed_by_one_more_and_no_third(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node_make("alpha", 2)
    replay = ask()
    silent = NOW - datetime.timedelta(seconds=replays.SILENCE_LIMIT_S + 1)
    Replay.objects.update(status=ReplayStatus.RUNNING, attempts=1, beat_at=NOW)
    assert replays.replay_next(NOW) is None  # its worker was heard of
    Replay.objects.update(beat_at=silent)
    answer_with(monkeypatch, lambda replay, progress: {"attempt": replay.attempts})
    assert replays.replay_next(NOW) == replay.pk
    replay.refresh_from_db()
    assert (replay.status, replay.result) == ("done", {"attempt": 2})
    Replay.objects.update(status=ReplayStatus.RUNNING, attempts=2, beat_at=silent, result={})
    assert replays.replay_next(NOW) == replay.pk
    replay.refresh_from_db()
    assert (replay.status, "twice" in replay.error) == ("failed", True)


def test_progress_is_kept_and_cancelling_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node_make("alpha", 2)
    replay = ask()
    monkeypatch.setattr(replays, "PROGRESS_PERIOD_S", 0.0)
    seen = []

    def answer(row: Replay, progress: Callable[[float], None]) -> dict[str, Any]:
        progress(0.25)
        seen.append(Replay.objects.get(id=row.pk).progress)
        replays.replay_cancel(row.pk, NOW)
        with pytest.raises(ReplayStoppedError):
            progress(0.5)
        seen.append(Replay.objects.get(id=row.pk).progress)
        return {"too": "late"}

    answer_with(monkeypatch, answer)
    replays.replay_next(NOW)
    replay.refresh_from_db()
    assert seen == [0.25, 0.25]
    assert (replay.status, replay.result) == ("cancelled", {})
    replays.replay_cancel(replay.pk, NOW)  # a second time: forgotten
    assert not Replay.objects.exists()


def test_a_failing_simulator_says_so_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    node_make("alpha", 2)
    replay = ask()

    def fail(row: Replay, progress: Callable[[float], None]) -> dict[str, Any]:
        raise ZeroDivisionError

    answer_with(monkeypatch, fail)
    assert replays.replay_next(timezone.now()) == replay.pk
    replay.refresh_from_db()
    assert (replay.status, "worker" in replay.error) == ("failed", True)


def test_by_rest_for_admins_only(ada: User, admin: User, client_of: Clients) -> None:
    node_make("alpha", 2)
    for method in ("get", "post"):
        assert getattr(client_of(ada), method)(URL).status_code == 403
    client = client_of(admin)
    made = client.post(URL, {"policy": "fifo", "accelerators": {"cpu": 4}}, format="json")
    assert (made.status_code, made.data["status"], made.data["requested_by"]) == (
        201, "waiting", "admin",
    )  # fmt: skip
    one = f"{URL}{made.data['id']}/"
    assert client.get(one).data["result"] == {}
    assert client_of(ada).get(one).status_code == 403
    assert "result" not in client.get(URL).json()["results"][0]
    wrong = client.post(URL, {"policy": "fifo", "accelerators": [4]}, format="json")
    assert (wrong.status_code, "accelerators" in wrong.json()["errors"]) == (400, True)
    assert client.delete(one).status_code == 204
    assert client.get(one).data["status"] == "cancelled"
    assert client.delete(one).status_code == 204
    assert client.get(one).status_code == client.delete(one).status_code == 404

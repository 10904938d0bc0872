"""Questions "what if": asked, limited, taken up by one worker, taken back, answered."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs.exceptions import ConflictError, InvalidInputError
from jobs.models import AcceleratorPrice, Replay, ReplayStatus
from jobs.services.cluster import replays
from jobs.services.cluster.replay_run import ReplayStoppedError
from jobs.services.cluster.replays import Scenario
from tests.support.builders import Clients, accelerators, node_make

pytestmark = pytest.mark.django_db

NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
URL = "/api/v1/replays/"


def ask(
    policy: str = "fifo", hours: Any = 2, resize_cost_s: Any = None, **accelerators: Any
) -> Replay:
    return ask_all(Scenario(policy, accelerators, resize_cost_s), hours=hours)[0]


def ask_all(*scenarios: Scenario, hours: Any = 2) -> list[Replay]:
    return replays.replays_ask(None, scenarios, hours=hours, now=NOW)


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Any]) -> None:
    """Let a function of a replay and the callback of progress make the results."""

    def answers(rows: list[Replay], progress: Any) -> Iterator[tuple[Replay, Any]]:
        for row in rows:
            yield row, answer(row, progress)

    monkeypatch.setattr(replays, "replay_answers", answers)


def test_kinds_that_are_left_out_stay_as_they_are() -> None:
    node_make("alpha", 2)
    node_make("beta", accelerators=accelerators(3, "gpu"))
    replay = ask(gpu=8)
    assert replay.accelerators == {"cpu": 2, "gpu": 8}
    assert (replay.end_at - replay.start_at).total_seconds() == 7200
    assert ask(cpu=0).accelerators == {"gpu": 3}


@pytest.mark.parametrize(
    ("changes", "field", "word"),
    [
        ({"policy": "best"}, "policy", "fifo"),
        ({"hours": 0}, "hours", "720"),
        ({"hours": "5"}, "hours", "whole hours"),
        ({"hours": True}, "hours", "whole hours"),
        ({"tpu": 4}, "accelerators", "Known kinds: cpu"),
        ({"cpu": -1}, "accelerators", "for cpu"),
        ({"cpu": 2.5}, "accelerators", "for cpu"),
        ({"cpu": 0}, "accelerators", "not 0"),
        ({"cpu": 10_241}, "accelerators", "not 10241"),
        ({"resize_cost_s": -0.1}, "resize_cost_s", "0 to 86400"),
        ({"resize_cost_s": 86_400.5}, "resize_cost_s", "0 to 86400"),
        ({"resize_cost_s": 10**400}, "resize_cost_s", "0 to 86400"),
        ({"resize_cost_s": math.nan}, "resize_cost_s", "0 to 86400"),
        ({"resize_cost_s": math.inf}, "resize_cost_s", "0 to 86400"),
        ({"resize_cost_s": "30"}, "resize_cost_s", "0 to 86400"),
        ({"resize_cost_s": True}, "resize_cost_s", "0 to 86400"),
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
    first, second = ask(), ask("priority", hours=3)
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


def test_wrong_scenarios_are_named_by_their_place() -> None:
    node_make("alpha", 2)
    with pytest.raises(InvalidInputError) as caught:
        ask_all(Scenario("fifo", {}), Scenario("best", {"tpu": 1}, -1))
    assert sorted(caught.value.fields) == [
        "scenarios.1.accelerators", "scenarios.1.policy", "scenarios.1.resize_cost_s",
    ]  # fmt: skip
    for number in (0, replays.SCENARIOS_LIMIT + 1):
        with pytest.raises(InvalidInputError) as caught:
            ask_all(*[Scenario("fifo", {})] * number)
        assert list(caught.value.fields) == ["scenarios"]
    assert not Replay.objects.exists()


def test_one_worker_runs_the_scenarios_of_a_comparison_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node_make("alpha", 2)
    first, second, third = ask_all(*(Scenario(name, {}) for name in ("fifo", "priority", "srtf")))
    other = ask(hours=3)
    replays.replay_cancel(second.pk, NOW)

    def answer(row: Replay, progress: Callable[[float], None]) -> Any:
        if row.policy == "srtf":
            return ReplayStoppedError("srtf: it is stuck", NOW)
        assert replays.replay_next(NOW) == other.pk or row.pk == other.pk  # nothing else is free
        return {"policy": row.policy}

    answer_with(monkeypatch, answer)
    assert replays.replay_next(NOW) == first.pk
    found = {row.pk: (row.status, row.result, row.error) for row in Replay.objects.all()}
    assert found == {
        first.pk: ("done", {"policy": "fifo"}, ""),
        second.pk: ("cancelled", {}, ""),
        third.pk: ("failed", {}, "srtf: it is stuck"),
        other.pk: ("done", {"policy": "fifo"}, ""),
    }


def test_an_error_after_the_first_result_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node_make("alpha", 2)
    _, second = ask_all(Scenario("fifo", {}), Scenario("priority", {}))

    def answer(row: Replay, progress: Callable[[float], None]) -> Any:
        if row.pk == second.pk:
            raise ZeroDivisionError
        return {"kept": True}

    answer_with(monkeypatch, answer)
    replays.replay_next(NOW)
    assert list(Replay.objects.order_by("id").values_list("status", "result")) == [
        ("done", {"kept": True}), ("failed", {}),
    ]  # fmt: skip


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
    for field in ({"policy": "fifo"}, {"resize_cost_s": 30}):
        both = client.post(URL, {**field, "scenarios": [{"policy": "fifo"}]}, format="json")
        assert (both.status_code, list(both.json()["errors"])) == (400, ["scenarios"])
    assert client.delete(one).status_code == 204
    assert client.get(one).data["status"] == "cancelled"
    assert client.delete(one).status_code == 204
    assert client.get(one).status_code == client.delete(one).status_code == 404


def test_resize_costs_by_rest(admin: User, client_of: Clients) -> None:
    node_make("alpha", 2)
    client = client_of(admin)
    scenarios = [
        {"policy": "fifo", "resize_cost_s": 86_400},
        {"policy": "fifo", "resize_cost_s": 0},
        {"policy": "fifo", "resize_cost_s": None},
        {"policy": "fifo"},
    ]
    made = client.post(URL, {"scenarios": scenarios}, format="json")
    assert (made.status_code, made.json()["resize_cost_s"]) == (201, 86_400.0)
    compared = client.get(f"{URL}{made.data['id']}/comparison/").json()["scenarios"]
    assert [row["resize_cost_s"] for row in compared] == [86_400.0, 0.0, None, None]
    two = {"scenarios": [{"policy": "fifo"}, {"policy": "fifo", "resize_cost_s": -1}]}
    wrong = client.post(URL, two, format="json")
    assert (wrong.status_code, list(wrong.json()["errors"])) == (
        400, ["scenarios.1.resize_cost_s"],
    )  # fmt: skip
    text = '{"policy": "fifo", "resize_cost_s": NaN}'
    assert client.post(URL, text, content_type="application/json").status_code == 400
    assert Replay.objects.count() == len(scenarios)


FIGURES = {"mean_jct_s": 100.0, "makespan_s": 3600.0, "utilisation": 0.5, "resizes_per_job": 2.0}


def test_a_comparison_by_rest(ada: User, admin: User, client_of: Clients) -> None:
    node_make("alpha", 2)
    client = client_of(admin)
    body = {
        "scenarios": [{"policy": "fifo", "accelerators": {"cpu": 4}}, {"policy": "priority"}],
        "hours": 2,
    }
    made = client.post(URL, body, format="json")
    assert (made.status_code, Replay.objects.count()) == (201, 2)
    first, second = Replay.objects.order_by("id")
    address = f"{URL}{first.pk}/comparison/"
    assert client_of(ada).get(address).status_code == 403
    waiting = client.get(address).json()
    assert (waiting["rows"], waiting["num_jobs"]) == ([], None)
    assert [row["status"] for row in waiting["scenarios"]] == ["waiting", "waiting"]
    AcceleratorPrice.objects.create(kind="cpu", per_hour=3.0)
    changes: list[dict[str, float]] = [
        {"mean_jct_s": 70.0, "makespan_s": 1800.0, "utilisation": 0.4, "resizes_per_job": 2.005},
        {"mean_jct_s": 140.0, "makespan_s": 3600.0, "utilisation": 0.5, "resizes_per_job": 0.0},
    ]
    for row, changed in zip((first, second), changes, strict=True):
        row.status = ReplayStatus.DONE.value
        row.result = {"recorded": FIGURES, "as_is": FIGURES, "changed": changed, "num_jobs": 5,
                      "as_is_policy": "fifo", "as_is_accelerators": {"cpu": 2}}  # fmt: skip
        row.save()
    found = client.get(address, {"price": f"{second.pk}:cpu=1.5"}).json()
    assert (found["num_jobs"], found["as_is_policy"]) == (5, "fifo")
    assert [row["prices"] for row in found["scenarios"]] == [{"cpu": 3.0}, {"cpu": 1.5}]
    rows = {row["name"]: [row["as_is"], *row["scenarios"]] for row in found["rows"]}
    shown = {
        name: [(cell["value"], cell["factor"], cell["verdict"], cell["is_best"]) for cell in cells]
        for name, cells in rows.items() if cells[0]["value"] is not None
    }  # fmt: skip
    # 2 accelerators at 3 an hour for an hour; 4 for half an hour; 2 at 1.5 for an hour.
    assert shown == {
        "mean_jct_s": [
            (100.0, None, "", False), (70.0, 0.7, "better", True), (140.0, 1.4, "worse", False),
        ],
        "makespan_s": [
            (3600.0, None, "", False), (1800.0, 0.5, "better", True), (3600.0, 1.0, "same", False),
        ],
        "cost": [(6.0, None, "", False), (6.0, 1.0, "same", False), (3.0, 0.5, "better", True)],
        "utilisation": [
            (0.5, None, "", True), (0.4, 0.8, "worse", False), (0.5, 1.0, "same", True),
        ],
        "resizes_per_job": [
            (2.0, None, "", False), (2.005, 1.0025, "same", False), (0.0, 0.0, "better", True),
        ],
    }  # fmt: skip
    for wrong in (f"{second.pk}:cpu=much", f"{second.pk}:tpu=1", "cpu=1", "nan"):
        answer = client.get(address, {"price": wrong})
        assert (answer.status_code, list(answer.json()["errors"])) == (400, ["price"])
    assert client.get(f"{URL}999999/comparison/").status_code == 404

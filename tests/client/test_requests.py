"""Requests of the client: repetitions, time limits, strange answers, and where the token goes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from virtualflow import Client, VirtualFlowError, answers
from virtualflow.transport import AWAY_LIMIT_S, PAUSE_LIMIT_S, server_read

from tests.client.conftest import TOKEN, Connect
from tests.client.scripted_site import Answer, file_of, problem, scripted_site
from tests.test_docs import ROOT

REPLAY = {"id": 1, "status": "waiting", "progress": 0.0, "policy": "fifo", "error": ""}
#: How each method of the client is called by the tests of all of them.
CALLS: dict[str, Callable[[Client], Any]] = {
    "index": lambda client: client.index(),
    "changes": lambda client: next(client.changes()),
    "submit": lambda client: client.submit({"name": "a"}),
    "validate": lambda client: client.validate({"name": "a"}),
    "validation": lambda client: client.validation(1),
    "wait_validation": lambda client: client.wait_validation(1),
    "secrets": lambda client: client.secrets(),
    "set_secret": lambda client: client.set_secret("KEY", "x" * 8),
    "delete_secret": lambda client: client.delete_secret("KEY"),
    "clone": lambda client: client.clone(1, seed=2),
    "fork": lambda client: client.fork(1, checkpoint="now", name="b"),
    "dry_run": lambda client: client.dry_run({"name": "a"}),
    "jobs": lambda client: list(client.jobs()),
    "job": lambda client: client.job(1),
    "watch": lambda client: list(client.watch(1)),
    "wait": lambda client: client.wait(1),
    "events": lambda client: list(client.events(1)),
    "generations": lambda client: list(client.generations(1)),
    "metrics": lambda client: client.metrics(1),
    "log": lambda client: client.log(1),
    "search_log": lambda client: list(client.search_log(1, "x")),
    "whole_log": lambda client: list(client.whole_log(1)),
    "follow_log": lambda client: list(client.follow_log(1)),
    "download": lambda client: client.download(1, "model.keras", Path("unwritten")),
    "download_code": lambda client: client.download_code(1, Path("unwritten")),
    "cancel": lambda client: client.cancel(1),
    "pause": lambda client: client.pause(1),
    "resume": lambda client: client.resume(1),
    "reprioritise": lambda client: client.reprioritise(1, 5, if_match='"1.1"'),
    "describe": lambda client: client.describe(1, tags=["a"], note="b"),
    "act": lambda client: client.act("tag", [1, 2], tag="a"),
    "preview": lambda client: client.preview(changes=[{"job": 1, "tier": "idle"}]),
    "compare": lambda client: client.compare([1, 2]),
    "submit_sweep": lambda client: client.submit_sweep({"sweep": {"space": {"a": [1]}}}),
    "preview_sweep": lambda client: client.preview_sweep({"sweep": {"space": {"a": [1]}}}),
    "sweeps": lambda client: list(client.sweeps()),
    "sweep": lambda client: client.sweep(1),
    "limit_sweep": lambda client: client.limit_sweep(1, 2, if_match='"3"'),
    "cancel_sweep": lambda client: client.cancel_sweep(1),
    "pause_sweep": lambda client: client.pause_sweep(1),
    "resume_sweep": lambda client: client.resume_sweep(1),
    "templates": lambda client: client.templates(),
    "nodes": lambda client: list(client.nodes()),
    "utilisation": lambda client: client.utilisation(1, step=60, fields=["at"]),
    "cordon": lambda client: client.cordon(1),
    "drain": lambda client: client.drain(1),
    "drain_preview": lambda client: client.drain_preview(1),
    "uncordon": lambda client: client.uncordon(1),
    "windows": lambda client: client.windows(),
    "plan_windows": lambda client: client.plan_windows([1], "2026-03-01", "2026-03-02", "disk"),
    "preview_windows": lambda client: client.preview_windows([1]),
    "cancel_window": lambda client: client.cancel_window(1),
    "policy": lambda client: client.policy(),
    "account": lambda client: client.account(),
    "users": lambda client: list(client.users()),
    "user": lambda client: client.user("ada"),
    "change_user": lambda client: client.change_user("ada", share_factor=2.0),
    "projects": lambda client: client.projects(),
    "project": lambda client: client.project(1),
    "make_project": lambda client: client.make_project("a", guaranteed=2),
    "change_project": lambda client: client.change_project(1, limit=None),
    "set_member": lambda client: client.set_member(1, "ada", "viewer"),
    "delete_project": lambda client: client.delete_project(1),
    "remove_member": lambda client: client.remove_member(1, "ada"),
    "usage": lambda client: client.usage("user"),
    "usage_csv": lambda client: client.usage_csv("tag"),
    "saved_filters": lambda client: client.saved_filters(),
    "save_filter": lambda client: client.save_filter("a", "tag=b"),
    "delete_filter": lambda client: client.delete_filter(1),
    "channels": lambda client: client.channels(),
    "create_channel": lambda client: client.create_channel("a", "https://a.example/b"),
    "change_channel": lambda client: client.change_channel(1, is_paused=True),
    "delete_channel": lambda client: client.delete_channel(1),
    "confirm_channel": lambda client: client.confirm_channel(1, "a"),
    "test_channel": lambda client: client.test_channel(1),
    "deliveries": lambda client: list(client.deliveries(1)),
    "simulate": lambda client: client.simulate("fifo"),
    "simulate_scenarios": lambda client: client.simulate_scenarios([{"policy": "fifo"}]),
    "comparison": lambda client: client.comparison(1, {(1, "cpu"): 0.5}),
    "replay": lambda client: client.replay(1),
    "replays": lambda client: list(client.replays()),
    "delete_replay": lambda client: client.delete_replay(1),
    "watch_replay": lambda client: list(client.watch_replay(1)),
}
#: A change on a condition.
EXPECTED = {"job": 1, "priority": 5, "expected_priority": 9}
#: Methods whose answer may be any text.
TEXTS = {
    *("whole_log", "delete_channel", "test_channel", "remove_member", "delete_project"),
    *("delete_filter", "delete_secret", "delete_replay", "usage_csv"),
}
NOT_REPEATED = {
    *("simulate", "simulate_scenarios", "create_channel", "delete_channel", "test_channel"),
    *("make_project", "delete_project", "remove_member", "plan_windows", "delete_filter"),
    *("delete_secret", "delete_replay"),
    *("reprioritise", "limit_sweep", "act as expected"),  # on a condition
}
NONSENSE = {
    "a page": Answer(200, b"<html>Log in</html>", {"Content-Type": "text/html"}),
    "nothing": Answer(200, b""),
    "nothing new": Answer(304, b""),
    "a list": Answer(200, [[]]),
    "a number": Answer(200, 7),
    "another object": Answer(200, {"hello": "world", "results": [7], "next": "http://x/?a=b"}),
    "deep JSON": Answer(200, b"[" * 100_000),
    "bad UTF-8": Answer(200, b'{"id": "\xff\xfe"}'),
    "cut off": Answer(200, b"{", is_cut=True),
    "no gzip": Answer(200, b"abcde", {"Content-Encoding": "gzip"}),
    "a page of a proxy": Answer(404, b"<html>nginx</html>"),
    "a crash": Answer(500, b"Traceback"),
    "a problem of lists": Answer(400, {"code": ["x"], "errors": 5}),
    "a problem of odd fields": problem(400, errors={"a": {"b": 1}, "c": [None], "d": "text"}),
    "an endless problem": Answer(400, b'{"code": "' + b"x" * 2_000_000 + b'"}'),
    "a redirect": Answer(302, b"", {"Location": "http://127.0.0.1:9/elsewhere"}),
    "an odd wait": Answer(429, problem(429).body, {"Retry-After": "soon"}),
}


def test_every_method_is_called_by_these_tests_and_documented() -> None:
    functions = {name for name, _ in inspect.getmembers(Client, inspect.isfunction)}
    methods = {name for name in functions if not name.startswith("_")} - {"close"}
    assert methods == {*CALLS}, "each needs a call in CALLS"
    page = (ROOT / "docs/client.md").read_text()
    missing = {name for name in methods if f"`{name}`" not in page}
    assert missing == set(), "each needs a row of the table of methods in docs/client.md"


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_one_kind_of_error(
    connect: Connect, nonsense: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with scripted_site(NONSENSE[nonsense]) as site:
        client = connect(site, retries=0)
        for name, call in CALLS.items():
            is_other = nonsense in ("a page", "cut off", "no gzip")
            is_text = NONSENSE[nonsense].status == 200 and not is_other
            if name in TEXTS and is_text:
                continue
            with pytest.raises(VirtualFlowError) as caught:
                call(client)
            assert TOKEN not in f"{caught.value} {caught.value!r}", name
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [*CALLS, "act as expected"])
def test_what_may_be_repeated_is_repeated_a_few_times(
    connect: Connect, pauses: list[float], name: str
) -> None:
    calls = {"act as expected": lambda client: client.act("reprioritise", changes=[EXPECTED])}
    with scripted_site(problem(503)) as site:
        with pytest.raises(VirtualFlowError) as caught:
            (CALLS | calls)[name](connect(site))
        assert caught.value.status == 503
        assert not caught.value.is_refusal
        assert len(site.asked) == (1 if name in NOT_REPEATED else 4)
    assert pauses == sorted(pauses)
    assert sum(pauses) < 10


@pytest.mark.parametrize("failure", [problem(502), Answer(200, b"{", is_cut=True)])
def test_a_repeated_submission_keeps_its_key(connect: Connect, failure: Answer) -> None:
    with scripted_site(failure, problem(409, "too_many_jobs")) as site:
        with pytest.raises(VirtualFlowError) as caught:
            connect(site).submit({"name": "a"})
        assert (caught.value.code, caught.value.is_refusal) == ("too_many_jobs", True)
        keys = [asked.headers["Idempotency-Key"] for asked in site.asked]
        assert len(keys) == 2
        assert keys[0] == keys[1]


def test_a_path_may_be_text(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: from a file")
    (tmp_path / "train.py").write_text("the code")
    with scripted_site(problem(400), problem(400), file_of(b"of the site")) as site:
        client = connect(site)
        for code in (None, str(tmp_path / "train.py")):
            with pytest.raises(VirtualFlowError):
                client.submit(str(tmp_path / "job.yaml"), code=code)
        client.download(1, "model.keras", str(tmp_path))
        assert all(b"name: from a file" in asked.body for asked in site.asked[:2])
        assert b"the code" in site.asked[1].body
        with pytest.raises(VirtualFlowError) as caught:
            client.submit("name: a\0")
    assert {*caught.value.fields} == {"spec"}
    assert (tmp_path / "model.keras").read_bytes() == b"of the site"


def test_a_filter_of_one_text_is_one_value(connect: Connect) -> None:
    with scripted_site(Answer(200, {"results": []})) as site:
        list(connect(site).jobs(tag="best", status="live"))
        assert "tag=best&" in site.asked[0].path
        assert "status=live&" in site.asked[0].path


def test_another_submission_has_another_key(connect: Connect) -> None:
    with scripted_site(problem(400)) as site:
        for _ in range(2):
            with pytest.raises(VirtualFlowError):
                connect(site).submit({"name": "a"})
        assert len({asked.headers["Idempotency-Key"] for asked in site.asked}) == 2


def test_a_throttled_request_waits_as_long_as_it_is_told(
    connect: Connect, pauses: list[float]
) -> None:
    throttled = Answer(429, problem(429, "throttled").body, {"Retry-After": "41"})
    with scripted_site(throttled, Answer(201, REPLAY)) as site:
        assert connect(site).simulate("fifo")["id"] == 1
    assert pauses == [41.0]


def test_a_long_ban_is_told_at_once(connect: Connect, pauses: list[float]) -> None:
    ban_s = str(int(PAUSE_LIMIT_S) + 1)
    with scripted_site(Answer(429, problem(429).body, {"Retry-After": ban_s})) as site:
        with pytest.raises(VirtualFlowError) as caught:
            connect(site).index()
        assert (caught.value.retry_after_s, len(site.asked)) == (float(ban_s), 1)
    assert pauses == []


def test_nobody_answers(connect: Connect, pauses: list[float]) -> None:
    with scripted_site(Answer()) as site:
        address = site.address
    with pytest.raises(VirtualFlowError) as caught:
        connect(address).simulate("fifo")
    assert (caught.value.code, caught.value.status, len(pauses)) == ("unreachable", None, 3)
    assert address in str(caught.value)


JOB = dict.fromkeys(answers.Job.__annotations__, "") | {"version": 1, "status": "running"}
WAITING = dict.fromkeys(answers.Replay.__annotations__, "") | REPLAY
VALIDATION = dict.fromkeys(answers.Validation.__annotations__, "") | {"status": "running"}
LOG = dict.fromkeys(answers.LogPart.__annotations__, 0) | {"text": "a"}
AWAY = [problem(503)] * 10


@pytest.mark.parametrize(
    ("first", "rest", "follow"),
    [
        (JOB, [JOB | {"version": 2, "status": "finished"}], lambda client: client.watch(1)),
        (WAITING, [WAITING | {"status": "done"}], lambda client: client.watch_replay(1)),
        (
            LOG,
            [
                LOG | {"text": ""},
                *AWAY,
                {"status": "finished", "num_accelerators": 0},
                *AWAY,
                LOG | {"text": ""},
            ],
            lambda client: client.follow_log(1),
        ),
    ],
)
def test_what_follows_a_job_outlives_an_upgrade_of_the_site(
    connect: Connect, pauses: list[float], first: Any, rest: list[Any], follow: Any
) -> None:
    rows = [row if isinstance(row, Answer) else Answer(200, row) for row in (first, *AWAY, *rest)]
    with scripted_site(*rows) as site:
        assert len([*follow(connect(site))]) in (1, 2)
        assert len(site.asked) == len(rows)
    pauses.clear()
    with scripted_site(*AWAY) as site:
        with pytest.raises(VirtualFlowError):  # it has never answered: is this the site?
            [*follow(connect(site))]
        assert len(pauses) == 3
    pauses.clear()
    with scripted_site(Answer(200, first), problem(503)) as site:
        with pytest.raises(VirtualFlowError):
            [*follow(connect(site))]
        assert 100 < sum(pauses) < AWAY_LIMIT_S + 10


@pytest.mark.parametrize(
    ("first", "wait"),
    [
        (JOB, lambda client: [*client.watch(1, timeout_s=20.0)]),
        (VALIDATION, lambda client: client.wait_validation(1, timeout_s=20.0)),
        (WAITING, lambda client: [*client.watch_replay(1, timeout_s=20.0)]),
    ],
)
def test_a_limit_of_time_is_one_of_absences_too(
    connect: Connect, pauses: list[float], first: Any, wait: Callable[[Client], object]
) -> None:
    with scripted_site(Answer(200, first), problem(503)) as site:
        with pytest.raises(VirtualFlowError):
            wait(connect(site))
        assert len(pauses) < 8


def test_the_token_goes_to_no_other_place(connect: Connect) -> None:
    with scripted_site(Answer(200, {"results": []})) as other:
        page = {"results": [{"id": 1}], "next": f"{other.address}/api/v1/jobs/?cursor=abc"}
        with scripted_site(Answer(200, page), Answer(200, {"results": []})) as site:
            assert len(list(connect(site).jobs(fields=("id",)))) == 1
            assert site.asked[1].path == "/api/v1/jobs/?cursor=abc"
            assert site.asked[0].headers["Authorization"] == f"Bearer {TOKEN}"
        redirect = Answer(307, b"", {"Location": f"{other.address}/"})
        with scripted_site(redirect) as site, pytest.raises(VirtualFlowError) as caught:
            connect(site).cancel(1)
        assert caught.value.code == "redirected"
        assert other.asked == []


def test_the_token_is_in_no_text(connect: Connect) -> None:
    assert TOKEN not in repr(connect("http://site.example"))


def test_a_client_has_a_connection_for_every_thread(connect: Connect) -> None:
    with scripted_site(Answer(200, b"text", {"Content-Type": "text/plain"})) as site:
        client = connect(site, retries=0)
        logs = [client.whole_log(1) for _ in range(101)]
        assert {next(log) for log in logs} == {"text"}


def test_pages_without_rows_end_a_list(connect: Connect) -> None:
    with scripted_site(Answer(200, {"results": [], "next": "?cursor=again"})) as site:
        assert list(connect(site).nodes()) == []


def test_an_unchanged_job_is_not_asked_for_without_end(
    connect: Connect, pauses: list[float]
) -> None:
    """A site where too many wait already answers at once: the client then waits itself."""
    done = JOB | {"version": 2, "status": "finished"}
    same = Answer(304, b"", {"ETag": '"1.1"'})
    first = Answer(200, JOB, {"ETag": '"1.1"'})
    with scripted_site(first, same, same, Answer(200, done)) as site:
        assert [job["version"] for job in connect(site, poll_s=30.0).watch(1)] == [1, 2]
        assert [asked.headers.get("If-None-Match") for asked in site.asked] == [
            None, '"1.1"', '"1.1"', '"1.1"',
        ]  # fmt: skip
        assert "since_version=1" in site.asked[1].path
    assert len(pauses) == 3
    assert min(pauses) > 10


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/"])
def test_the_address_of_the_api_is_one_of_its_site(path: str) -> None:
    assert server_read(f"https://site.example/lab{path}") == "https://site.example/lab"


@pytest.mark.parametrize(
    ("exempt", "advice"), [("", "Is the proxy"), ("127.0.0.1", "is the site up")]
)
def test_a_proxy_is_named_where_nothing_answers(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, exempt: str, advice: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", exempt)
    with pytest.raises(VirtualFlowError, match=advice):
        connect("http://127.0.0.1:9").index()


def test_a_whole_answer_has_a_time_limit(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtualflow.transport._WHOLE_ANSWER", 0)
    with scripted_site(Answer(body=[])) as site:
        with pytest.raises(VirtualFlowError, match="not complete after 0 s") as caught:
            connect(site.address).templates()
        assert (caught.value.code, len(site.asked)) == ("unreachable", 1)


@pytest.mark.parametrize("name", ["a/b", "a?b=1", "a#b", "a%2Fb"])
def test_a_name_is_one_part_of_the_path(connect: Connect, name: str) -> None:
    part = quote(name, safe="")
    with scripted_site(problem(404)) as site:
        client = connect(site)
        calls: list[tuple[str, Callable[[], Any]]] = [
            (f"secrets/{part}/", lambda: client.delete_secret(name)),
            (f"secrets/{part}/", lambda: client.set_secret(name, "x" * 8)),
            (f"users/{part}/", lambda: client.user(name)),
            (f"users/{part}/", lambda: client.change_user(name, is_active=False)),
            (f"projects/1/members/{part}/", lambda: client.remove_member(1, name)),
            (f"projects/1/members/{part}/", lambda: client.set_member(1, name, "viewer")),
        ]
        for _, call in calls:
            with pytest.raises(VirtualFlowError):
                call()
        assert [one.path for one in site.asked] == [f"/api/v1/{path}" for path, _ in calls]

"""The client: one method for each thing that a program does with a site."""

from __future__ import annotations

import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

from virtualflow import answers
from virtualflow.credentials import credentials_find
from virtualflow.errors import VirtualFlowError
from virtualflow.files import file_name_check, file_store
from virtualflow.submissions import Spec, submission_content
from virtualflow.transport import bad_input
from virtualflow.typed_site import (
    PAGE_SIZE,
    TypedSite,
    answer_json,
    answer_read,
    given_only,
    item_read,
    unexpected_answer,
)

#: Longest wait of a long poll; the site's own limit is 30 s.
_WAIT_S = 25.0
_KEY = re.compile(r"[\x20-\x7e]{1,120}")
#: Fields of a new replay; the result comes with `replay`.
_REQUESTED = ("id", "status", "progress", "policy", "error")


class Client:
    """A connection to a site, acting for the owner of a token.

    All methods raise `VirtualFlowError`. Reads, submissions and actions that do no harm when they
    are done twice are repeated up to `retries` times while the site does not answer.

    Args:
        server: the site's address, such as https://site.example.
        token: an API token of the account page.
        timeout_s: limit for connecting, and for each part of an answer.
        poll_s: least time between two questions while watching.
        sleep: replaced by tests.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_s: float = 15.0,
        retries: int = 3,
        poll_s: float = 1.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._site = TypedSite(server, token, timeout_s=timeout_s, retries=retries, sleep=sleep)
        self._poll_s = poll_s

    @classmethod
    def from_login(cls, **options: Any) -> Self:
        """Return a client with the address and token of the environment or `virtualflow login`."""
        server, token = credentials_find()
        return cls(server, token, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.server!r})"

    @property
    def server(self) -> str:
        """Address of the site."""
        return self._site.server

    def close(self) -> None:
        """Close the connections."""
        self._site.close()

    def index(self) -> answers.Index:
        """Return the user and scopes of the token, and the site's routes."""
        return self._site.get("", answers.Index)

    # --- jobs: submit and read ---------------------------------------------------------------

    def submit(
        self,
        spec: Spec | None = None,
        *,
        code: Path | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> answers.Job:
        """Submit a job.

        Args:
            spec: fields of the submission, or the path of a YAML or JSON file of them.
            code: a `.py` or `.zip` file.
            idempotency_key: the same key with the same submission gives the same job; by default a
                new one, so that a repeated request makes no second job.
            fields: override those of `spec`; `settings.NAME` and `stop.NAME` a part.
        """
        key = idempotency_key or str(uuid.uuid4())
        if not _KEY.fullmatch(key):
            raise bad_input("idempotency_key", "Give at most 120 printable ASCII characters.")
        content = submission_content(spec, code, fields)
        return self._site.post("jobs/", answers.Job, headers={"Idempotency-Key": key}, **content)

    def dry_run(
        self, spec: Spec | None = None, *, code: Path | None = None, **fields: Any
    ) -> answers.Outlook:
        """Check a submission; return when it would start, and why. Nothing is stored."""
        content = submission_content(spec, code, fields)
        return self._site.post("jobs/", answers.Outlook, params={"dry_run": 1}, **content)

    def jobs(
        self,
        *,
        status: Sequence[str] = (),
        q: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        template: str | None = None,
        tag: Sequence[str] = (),
        metric: Sequence[str] = (),
        setting: Sequence[str] = (),
        submitted_after: str | None = None,
        submitted_before: str | None = None,
        order: str | None = None,
        fields: Sequence[str] = (),
        page_size: int = PAGE_SIZE,
    ) -> Iterator[answers.JobSummary]:
        """Yield the visible jobs, newest first unless told; pages are read as they are needed.

        Args:
            status: statuses, or the groups `live`, `waiting`, `active`, `ended`.
            q: a part of the name, or the number of one job.
            tag: tags that the jobs all have.
            metric: metrics that the jobs have, also with a bound of the best value, as
                `val_accuracy>0.9`.
            setting: settings with their values, as `hidden_units=128`.
            order: `submitted`, `name`, `status`, `priority`, `duration` or `metric` (of the first
                `metric`), with `-` from the largest on.
            fields: only these fields, also such that lists otherwise lack.
        """
        given = {
            "q": q,
            "owner": owner,
            "name": name,
            "template": template,
            "submitted_after": submitted_after,
            "submitted_before": submitted_before,
            "order": order,
            "status": list(status),
            "tag": list(tag),
            "metric": list(metric),
            "setting": list(setting),
            "fields": ",".join(fields) or None,
            "page_size": page_size,
        }
        return self._site.pages("jobs/", answers.JobSummary, given, fields or None)

    def job(self, job_id: int, *, fields: Sequence[str] = ()) -> answers.Job:
        """Return a job, or only some of its fields."""
        if not fields:
            return self._site.get(f"jobs/{job_id}/", answers.Job)
        response = self._site.request("GET", f"jobs/{job_id}/", params={"fields": ",".join(fields)})
        return answer_read(response, answers.Job, fields)

    def watch(self, job_id: int, *, timeout_s: float | None = None) -> Iterator[answers.Job]:
        """Yield a job now and after each change, until it has ended.

        The site holds each question until something changes; an unchanged job is not sent again.

        Args:
            timeout_s: raise the error `timed_out` when the job has not ended by then.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        etag, version = "", None
        while True:
            asked_at = time.monotonic()
            left_s = _WAIT_S if deadline is None else min(_WAIT_S, max(deadline - asked_at, 0.0))
            wait: dict[str, Any] = {}
            if version is not None:
                wait = {"wait": f"{left_s:.3f}", "since_version": version}
            response = self._site.request(
                "GET", f"jobs/{job_id}/", params=wait, wait_s=left_s,
                headers={"If-None-Match": etag} if etag else {},
            )  # fmt: skip
            if response.status_code != httpx.codes.NOT_MODIFIED:
                job = answer_read(response, answers.Job)
                etag, version = response.headers.get("ETag", ""), job["version"]
                yield job
                if job["status"] in answers.ENDED:
                    return
            if deadline is not None and time.monotonic() >= deadline:
                raise VirtualFlowError(
                    f"Job {job_id} has not ended within {timeout_s:g} s; it goes on.",
                    code="timed_out",
                )
            # The site answers at once when too many requests wait already.
            self._site.sleep(max(0.0, asked_at + self._poll_s - time.monotonic()))

    def wait(self, job_id: int, *, timeout_s: float | None = None) -> answers.Job:
        """Return a job as soon as it has ended, whichever way."""
        return deque(self.watch(job_id, timeout_s=timeout_s), maxlen=1)[0]

    def events(self, job_id: int) -> Iterator[answers.Event]:
        """Yield the events of a job, newest first."""
        return self._site.pages(f"jobs/{job_id}/events/", answers.Event)

    def generations(self, job_id: int) -> Iterator[answers.Generation]:
        """Yield the resizes of a job with their figures, newest first."""
        return self._site.pages(f"jobs/{job_id}/generations/", answers.Generation)

    def metrics(self, job_id: int) -> answers.Metrics:
        """Return the series of a job: loss and speed over steps, logs over epochs."""
        return self._site.get(f"jobs/{job_id}/metrics/", answers.Metrics)

    def compare(self, job_ids: Sequence[int], *, all_settings: bool = False) -> answers.Comparison:
        """Return up to twelve jobs side by side: settings that differ, best and last values."""
        params = {"job": list(job_ids), "all": int(all_settings)}
        return self._site.get("jobs/compare/", answers.Comparison, params=params)

    # --- logs and files ----------------------------------------------------------------------

    def log(
        self, job_id: int, *, slot: int | None = None, cursor: int | None = None
    ) -> answers.LogPart:
        """Return the newest part of a log, or what came since a cursor.

        Args:
            slot: only this trainer's.
            cursor: `next_cursor` of an earlier part. The new text may begin with a carriage
                return: then it replaces the unfinished line before it.
        """
        params = {"slot": slot, "cursor": cursor}
        return self._site.get(f"jobs/{job_id}/logs/", answers.LogPart, params=given_only(params))

    def whole_log(self, job_id: int, *, slot: int | None = None) -> Iterator[str]:
        """Yield all of a log in pieces, trainer after trainer."""
        params = given_only({"slot": slot, "download": 1})
        with self._site.stream(f"jobs/{job_id}/logs/", params) as response:
            response.encoding = "utf-8"
            yield from response.iter_text()

    def follow_log(self, job_id: int, *, slot: int | None = None) -> Iterator[str]:
        """Yield the newest part of a log, then new text as it comes, until the job has ended."""
        part = self.log(job_id, slot=slot)
        has_ended = False
        while True:
            if part["text"]:
                yield part["text"]
            elif has_ended:
                return
            else:
                has_ended = self.job(job_id, fields=("status",))["status"] in answers.ENDED
                self._site.sleep(self._poll_s)
            part = self.log(job_id, slot=slot, cursor=part["next_cursor"])

    def download(self, job_id: int, name: str, path: Path) -> Path:
        """Store a result file or checkpoint, such as `model.keras`, once its digest is checked.

        Args:
            path: a folder, where the file keeps its name, or the name of the new file.
        """
        file_name_check(name)
        route = f"jobs/{job_id}/files/{quote(name, safe='')}/"
        return file_store(self._site, route, name, path)

    def download_code(self, job_id: int, path: Path) -> Path:
        """Store the code of a job as it was submitted; `path` is as in `download`."""
        name = self.job(job_id, fields=("code_name",))["code_name"]
        return file_store(self._site, f"jobs/{job_id}/code/", name, path)

    # --- jobs: change ------------------------------------------------------------------------

    def cancel(self, job_id: int, reason: str = "") -> answers.Job:
        """End a job for good."""
        return self._act(job_id, "cancel", {"reason": reason})

    def pause(self, job_id: int, reason: str = "") -> answers.Job:
        """Save a job's state and free its accelerators until it is resumed."""
        return self._act(job_id, "pause", {"reason": reason})

    def resume(self, job_id: int) -> answers.Job:
        """Queue a paused job again."""
        return self._act(job_id, "resume", {})

    def reprioritise(
        self, job_id: int, priority: int, reason: str = "", *, if_match: str | None = None
    ) -> answers.Job:
        """Change a job's priority.

        Args:
            reason: required of an admin for another user's job.
            if_match: `"REVISION.VERSION"` of the job as it was read, with the quotes; refused with
                412 when somebody has changed the job since.
        """
        headers = {"If-Match": if_match} if if_match else {}
        body = {"priority": priority, "reason": reason}
        return self._act(job_id, "reprioritise", body, headers)

    def describe(
        self, job_id: int, *, tags: Sequence[str] | None = None, note: str | None = None
    ) -> answers.Job:
        """Change the tags or the note of a job; what is None stays."""
        body = given_only({"tags": None if tags is None else list(tags), "note": note})
        response = self._site.request("PATCH", f"jobs/{job_id}/", is_repeatable=True, json=body)
        return answer_read(response, answers.Job)

    def act(
        self,
        action: str,
        job_ids: Sequence[int],
        *,
        priority: int | None = None,
        tag: str | None = None,
        reason: str = "",
    ) -> answers.Outcomes:
        """Act on up to 200 jobs; each is done or refused by itself, as `results` says.

        Args:
            action: `cancel`, `reprioritise`, `tag` or `untag`.
        """
        fields = {"action": action, "jobs": list(job_ids), "priority": priority, "tag": tag}
        body = given_only(fields) | {"reason": reason}
        return self._site.post("jobs/actions/", answers.Outcomes, json=body)

    def _act(
        self, job_id: int, action: str, body: dict[str, Any], headers: Mapping[str, str] = {}
    ) -> answers.Job:
        return self._site.post(f"jobs/{job_id}/{action}/", answers.Job, json=body, headers=headers)

    # --- the cluster -------------------------------------------------------------------------

    def templates(self) -> list[answers.Template]:
        """Return the ready jobs that a submission may name."""
        found = answer_json(self._site.request("GET", "templates/"))
        if not isinstance(found, list):
            raise unexpected_answer()
        return [item_read(row, answers.Template) for row in found]

    def nodes(self) -> Iterator[answers.Node]:
        """Yield the nodes with their accelerators."""
        return self._site.pages("nodes/", answers.Node)

    def cordon(self, node_id: int, reason: str = "") -> answers.Node:
        """Give a node no new work (admins); jobs there keep what they have."""
        return self._site.post(f"nodes/{node_id}/cordon/", answers.Node, json={"reason": reason})

    def drain(self, node_id: int, reason: str = "") -> answers.Node:
        """Take a node out of the pool (admins): the policy moves its jobs to other nodes."""
        return self._site.post(f"nodes/{node_id}/drain/", answers.Node, json={"reason": reason})

    def uncordon(self, node_id: int, reason: str = "") -> answers.Node:
        """Give a node work again (admins)."""
        return self._site.post(f"nodes/{node_id}/uncordon/", answers.Node, json={"reason": reason})

    def policy(self) -> answers.Policy:
        """Return the policy in force, and the names of all."""
        return self._site.get("policy/", answers.Policy)

    # --- users -------------------------------------------------------------------------------

    def account(self) -> answers.User:
        """Return the own limits and the use of them."""
        return self._site.get("account/", answers.User)

    def users(self, *, q: str | None = None) -> Iterator[answers.User]:
        """Yield the users, the newest first (admins); `q` is a part of the name."""
        return self._site.pages("users/", answers.User, {"q": q, "page_size": PAGE_SIZE})

    def user(self, name: str) -> answers.User:
        """Return a user's limits and use (admins)."""
        return self._site.get(f"users/{quote(name, safe='')}/", answers.User)

    def change_user(
        self, name: str, *, if_match: str | None = None, **changes: Any
    ) -> answers.User:
        """Change a user's limits, or whether the account is active (admins).

        Args:
            if_match: the ETag of the user as it was read; refused with 412 when somebody has
                changed the user since.
            changes: `priority_ceiling`, `share_factor`, `live_jobs_limit`, `storage_limit_bytes`,
                `is_active`. None stands for the site's own limit.
        """
        headers = {"If-Match": if_match} if if_match else {}
        path = f"users/{quote(name, safe='')}/"
        return self._site.patch(path, answers.User, json=changes, headers=headers)

    # --- replays -----------------------------------------------------------------------------

    def simulate(
        self, policy: str, *, accelerators: Mapping[str, int] | None = None, hours: int = 24
    ) -> answers.Replay:
        """Ask for a replay of the last hours under a policy (admins); `replay` has the answer.

        Args:
            accelerators: number by kind; a kind that is left out stays as it is.
        """
        body = {"policy": policy, "accelerators": dict(accelerators or {}), "hours": hours}
        response = self._site.request("POST", "replays/", json=body)
        return answer_read(response, answers.Replay, _REQUESTED)

    def replay(self, replay_id: int) -> answers.Replay:
        """Return a replay; `result` is empty until `status` is `done`."""
        return self._site.get(f"replays/{replay_id}/", answers.Replay)

    def watch_replay(
        self, replay_id: int, *, timeout_s: float | None = None
    ) -> Iterator[answers.Replay]:
        """Yield a replay now and then, until it is no longer waiting or running."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            replay = self.replay(replay_id)
            yield replay
            if replay["status"] not in ("waiting", "running"):
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise VirtualFlowError(
                    f"Replay {replay_id} is not done within {timeout_s:g} s; it goes on.",
                    code="timed_out",
                )
            self._site.sleep(self._poll_s)

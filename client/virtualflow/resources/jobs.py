"""Requests that submit, read and change jobs, and keep filters of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import httpx

from virtualflow import answers
from virtualflow.deadlines import POLL_LIMIT_S, Deadline
from virtualflow.submissions import Spec, StrPath, key_headers, submission_content
from virtualflow.transport import AWAY_LIMIT_S
from virtualflow.typed_site import PAGE_SIZE, TypedSite, answer_read, given_only


class JobRequests:
    """Methods of `Client` about jobs, and the own saved filters of their list."""

    _site: TypedSite
    _poll_s: float

    def submit(
        self,
        spec: Spec | None = None,
        *,
        code: StrPath | None = None,
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
        headers = key_headers(idempotency_key)
        content = submission_content(spec, code, fields)
        return self._site.post("jobs/", answers.Job, headers=headers, **content)

    def clone(
        self,
        job_id: int,
        *,
        code: StrPath | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> answers.Job:
        """Submit a job again, equal except for `code` and `fields`.

        Args:
            code, idempotency_key, fields: as of `submit`.
        """
        headers = key_headers(idempotency_key)
        content = submission_content(None, code, fields)
        return self._site.post(f"jobs/{job_id}/clone/", answers.Job, headers=headers, **content)

    def fork(
        self,
        job_id: int,
        *,
        checkpoint: int | str = "newest",
        code: StrPath | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> answers.Job:
        """Submit a job that starts from a state of another one, as `clone` else.

        Args:
            checkpoint: `newest`, `now` (the job saves its state), or the step of a kept one.
            code, idempotency_key, fields: as of `submit`.
        """
        headers = key_headers(idempotency_key)
        content = submission_content({"checkpoint": checkpoint}, code, fields)
        return self._site.post(f"jobs/{job_id}/fork/", answers.Job, headers=headers, **content)

    def dry_run(
        self, spec: Spec | None = None, *, code: StrPath | None = None, **fields: Any
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
        project: str | None = None,
        template: str | None = None,
        tier: Sequence[str] = (),
        forked_from: int | None = None,
        sweep: int | None = None,
        trial_of: int | None = None,
        idle: bool | None = None,
        tag: Sequence[str] = (),
        metric: Sequence[str] = (),
        setting: Sequence[str] = (),
        submitted_after: str | None = None,
        submitted_before: str | None = None,
        order: str | None = None,
        query: str = "",
        fields: Sequence[str] = (),
        page_size: int = PAGE_SIZE,
    ) -> Iterator[answers.JobSummary]:
        """Yield the visible jobs, newest first unless told; pages are read as they are needed.

        Args:
            status: statuses, or the groups `live`, `waiting`, `active`, `ended`.
            q: a part of the name, or the number of one job.
            forked_from: number of a job: its forks.
            sweep: number of a sweep: its jobs.
            trial_of: number of a job: its parallel trials, which no other list has.
            idle: whether they hold accelerators that they hardly use.
            tag: tags that the jobs all have.
            metric: metrics that the jobs have, also with a bound of the best value, as
                `val_accuracy>0.9`.
            setting: settings with their values, as `hidden_units=128`.
            tier: tiers of the jobs.
            order: `submitted`, `name`, `status`, `tier`, `priority`, `duration` or `metric` (of the
                first `metric`), with `-` from the largest on.
            query: that of a saved filter; the arguments above win over its parameters.
            fields: only these fields, also such that lists otherwise lack.
        """
        given: dict[str, Any] = {
            "q": q,
            "owner": owner,
            "project": project,
            "name": name,
            "template": template,
            "forked_from": forked_from,
            "sweep": sweep,
            "trial_of": trial_of,
            "idle": idle,
            "submitted_after": submitted_after,
            "submitted_before": submitted_before,
            "order": order,
            "status": _several(status),
            "tier": _several(tier),
            "tag": _several(tag),
            "metric": _several(metric),
            "setting": _several(setting),
            "fields": ",".join(fields) or None,
            "page_size": page_size,
        }
        wanted = {name: value for name, value in given.items() if value not in (None, [])}
        return self._site.pages(
            "jobs/", answers.JobSummary, {**parse_qs(query), **wanted}, fields or None
        )

    def job(self, job_id: int, *, fields: Sequence[str] = ()) -> answers.Job:
        """Return a job, or only some of its fields."""
        if not fields:
            return self._site.get(f"jobs/{job_id}/", answers.Job)
        response = self._site.request("GET", f"jobs/{job_id}/", params={"fields": ",".join(fields)})
        return answer_read(response, answers.Job, fields)

    def watch(self, job_id: int, *, timeout_s: float | None = None) -> Iterator[answers.Job]:
        """Yield a job now and after each change, until it has ended.

        The site holds each question until something changes; an unchanged job is not sent again.
        Once it has answered, the site may be away for some minutes.

        Args:
            timeout_s: raise the error `timed_out` when the job has not ended by then.
        """
        deadline = Deadline(timeout_s)
        etag, version = "", None
        while True:
            asked_at, left_s = time.monotonic(), deadline.left_s(POLL_LIMIT_S)
            wait: dict[str, Any] = {}
            if version is not None:
                wait = {"wait": f"{left_s:.3f}", "since_version": version}
            response = self._site.request(
                "GET", f"jobs/{job_id}/", params=wait, wait_s=left_s,
                away_s=0.0 if version is None else deadline.left_s(AWAY_LIMIT_S),
                headers={"If-None-Match": etag} if etag else {},
            )  # fmt: skip
            if response.status_code != httpx.codes.NOT_MODIFIED:
                job = answer_read(response, answers.Job)
                etag, version = response.headers.get("ETag", ""), job["version"]
                yield job
                if job["status"] in answers.ENDED:
                    return
            deadline.check(f"Job {job_id} has not ended")
            # The site answers at once when too many requests wait already.
            self._site.sleep(max(0.0, asked_at + self._poll_s - time.monotonic()))

    def wait(self, job_id: int, *, timeout_s: float | None = None) -> answers.Job:
        """Return a job as soon as it has ended, whichever way."""
        return deque(self.watch(job_id, timeout_s=timeout_s), maxlen=1)[0]

    def events(self, job_id: int, *, kind: str | Sequence[str] = ()) -> Iterator[answers.Event]:
        """Yield the events of a job, newest first.

        Args:
            kind: only those of these kinds, at most 5.
        """
        params = given_only({"kind": _several(kind) or None})
        return self._site.pages(f"jobs/{job_id}/events/", answers.Event, params)

    def generations(self, job_id: int) -> Iterator[answers.Generation]:
        """Yield the resizes of a job with their figures, newest first."""
        return self._site.pages(f"jobs/{job_id}/generations/", answers.Generation)

    def metrics(self, job_id: int) -> answers.Metrics:
        """Return the series of a job: loss and speed over steps, logs over epochs."""
        return self._site.get(f"jobs/{job_id}/metrics/", answers.Metrics)

    def compare(self, job_ids: Sequence[int], *, all_settings: bool = False) -> answers.Comparison:
        """Return up to 50 jobs side by side: settings that differ, best and last values."""
        params = {"job": list(job_ids), "all": int(all_settings)}
        return self._site.get("jobs/compare/", answers.Comparison, params=params)

    def cancel(self, job_id: int, reason: str = "") -> answers.Job:
        """End a job for good."""
        return self._act(job_id, "cancel", {"reason": reason})

    def pause(self, job_id: int, reason: str = "") -> answers.Job:
        """Save a job's state and free its accelerators until it is resumed."""
        return self._act(job_id, "pause", {"reason": reason})

    def resume(self, job_id: int, reason: str = "") -> answers.Job:
        """Queue a paused job again."""
        return self._act(job_id, "resume", {"reason": reason})

    def reprioritise(
        self,
        job_id: int,
        priority: int | None = None,
        reason: str = "",
        *,
        tier: str | None = None,
        if_match: str | None = None,
    ) -> answers.Job:
        """Change a job's priority, its tier, or both.

        Args:
            tier: `urgent`, `normal` or `idle`.
            reason: required for another user's job.
            if_match: `"REVISION.VERSION"` of the job as it was read, with the quotes; refused with
                412 when somebody has changed the job since.
        """
        headers = {"If-Match": if_match} if if_match else {}
        body = given_only({"priority": priority, "tier": tier}) | {"reason": reason}
        return self._act(job_id, "reprioritise", body, headers)

    def describe(
        self, job_id: int, *, tags: Sequence[str] | None = None, note: str | None = None
    ) -> answers.Job:
        """Change the tags or the note of a job; what is None stays."""
        body = given_only({"tags": None if tags is None else _several(tags), "note": note})
        return self._site.patch(f"jobs/{job_id}/", answers.Job, json=body)

    def act(
        self,
        action: str,
        job_ids: Sequence[int] | None = None,
        *,
        changes: Sequence[Mapping[str, Any]] | None = None,
        all_or_none: bool | None = None,
        priority: int | None = None,
        expected_priority: int | None = None,
        tier: str | None = None,
        expected_tier: str | None = None,
        tag: str | None = None,
        reason: str = "",
    ) -> answers.Outcomes:
        """Act on up to 200 jobs; each is done or refused by itself, as `results` says.

        Args:
            action: `cancel`, `reprioritise`, `tag` or `untag`.
            changes: instead of `job_ids`: of each job `job`, and the fields of `reprioritise`.
            all_or_none: refuse the request, and change no job, if one is refused.
            expected_priority, expected_tier: jobs of another priority or tier are refused.
        """
        fields = {
            "action": action,
            "jobs": None if job_ids is None else list(job_ids),
            "changes": changes,
            "all_or_none": all_or_none,
            "priority": priority,
            "expected_priority": expected_priority,
            "tier": tier,
            "expected_tier": expected_tier,
            "tag": tag,
        }
        body = given_only(fields) | {"reason": reason}
        # A second request on a condition would be refused over what the first has changed.
        conditions = {"expected_priority", "expected_tier"}
        is_repeatable = all(conditions.isdisjoint(one) for one in (body, *(changes or ())))
        path = "jobs/actions/"
        response = self._site.request("POST", path, is_repeatable=is_repeatable, json=body)
        return answer_read(response, answers.Outcomes)

    def preview(
        self,
        job_ids: Sequence[int] | None = None,
        *,
        priority: int | None = None,
        tier: str | None = None,
        changes: Sequence[Mapping[str, Any]] | None = None,
    ) -> answers.Preview:
        """Return what new priorities or tiers of jobs would change now; nothing changes."""
        jobs = None if job_ids is None else list(job_ids)
        fields = {"jobs": jobs, "priority": priority, "tier": tier, "changes": changes}
        body = given_only(fields) | {"action": "reprioritise"}
        return self._site.post("jobs/actions/preview/", answers.Preview, json=body)

    def _act(
        self, job_id: int, action: str, body: dict[str, Any], headers: Mapping[str, str] = {}
    ) -> answers.Job:
        return self._site.post(f"jobs/{job_id}/{action}/", answers.Job, json=body, headers=headers)

    def saved_filters(self) -> list[answers.SavedFilter]:
        """Return the own filters by name; `jobs(query=...)` takes the query of one."""
        return self._site.rows("saved-filters/", answers.SavedFilter)

    def save_filter(self, name: str, query: str) -> answers.SavedFilter:
        """Keep a filter, in place of one of the same name.

        Args:
            query: parameters of `GET jobs/`, such as `status=live&tag=baseline`.
        """
        body = {"name": name, "query": query}
        return self._site.post("saved-filters/", answers.SavedFilter, json=body)

    def delete_filter(self, filter_id: int) -> None:
        """Delete a filter."""
        self._site.request("DELETE", f"saved-filters/{filter_id}/")


def _several(values: Sequence[str]) -> list[str]:
    """Return values as a list; a single text is one value, not its letters."""
    return [values] if isinstance(values, str) else list(values)

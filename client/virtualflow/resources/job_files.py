"""Requests for logs and files of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from virtualflow import answers
from virtualflow.files import file_name_check, file_store
from virtualflow.resources.jobs import JobRequests
from virtualflow.submissions import StrPath
from virtualflow.transport import AWAY_LIMIT_S
from virtualflow.typed_site import answer_read, given_only


class JobFileRequests(JobRequests):
    """Methods of `Client` about logs, results and checkpoints."""

    def log(
        self, job_id: int, *, slot: int | None = None, cursor: int | None = None
    ) -> answers.LogPart:
        """Return the newest part of a log, or what came since a cursor.

        Args:
            slot: only this trainer's.
            cursor: `next_cursor` of an earlier part. The new text may begin with a carriage
                return: then it replaces the unfinished line before it.
        """
        return self._log(job_id, slot, cursor)

    def _is_over(self, job_id: int) -> bool:
        """Return whether a job has ended, and its trainers, whose last lines come after that."""
        path, fields = f"jobs/{job_id}/", ("status", "num_accelerators")
        params = {"fields": ",".join(fields)}
        response = self._site.request("GET", path, params=params, away_s=AWAY_LIMIT_S)
        job = answer_read(response, answers.Job, fields)
        return job["status"] in answers.ENDED and not job["num_accelerators"]

    def _log(
        self, job_id: int, slot: int | None, cursor: int | None, away_s: float = 0.0
    ) -> answers.LogPart:
        params, path = given_only({"slot": slot, "cursor": cursor}), f"jobs/{job_id}/logs/"
        return self._site.get(path, answers.LogPart, params=params, away_s=away_s)

    def search_log(
        self,
        job_id: int,
        search: str = "",
        *,
        level: str | None = None,
        context: int = 0,
        slot: int | None = None,
    ) -> Iterator[answers.LogMatch]:
        """Yield the lines of a log that match, trainer after trainer; each request is bounded.

        Args:
            search: a part of the line, whatever the case.
            level: `debug`, `info`, `warning`, `error` (or above), or `output`: no level.
            context: lines about each match, at most 20.
            slot: only this trainer's.
        """
        given = {"search": search or None, "level": level, "context": context, "slot": slot}
        params = given_only(given)
        cursor = ""
        while True:
            asked = params | ({"cursor": cursor} if cursor else {})
            found = self._site.get(f"jobs/{job_id}/logs/", answers.LogSearch, params=asked)
            yield from found["matches"]
            if found["next_cursor"] in ("", cursor):
                return
            cursor = found["next_cursor"]

    def whole_log(self, job_id: int, *, slot: int | None = None) -> Iterator[str]:
        """Yield all of a log in pieces, trainer after trainer."""
        params = given_only({"slot": slot, "download": 1})
        with self._site.stream(f"jobs/{job_id}/logs/", params=params) as response:
            response.encoding = "utf-8"
            yield from response.iter_text()

    def follow_log(self, job_id: int, *, slot: int | None = None) -> Iterator[str]:
        """Yield the newest part of a log, then new text as it comes, until the job has ended.

        Once it has answered, the site may be away for some minutes.
        """
        part = self.log(job_id, slot=slot)
        is_over = False
        while True:
            if part["text"]:
                yield part["text"]
            elif is_over:
                return
            else:
                is_over = self._is_over(job_id)
                self._site.sleep(self._poll_s)
            part = self._log(job_id, slot, part["next_cursor"], AWAY_LIMIT_S)

    def download(self, job_id: int, name: str, path: StrPath) -> Path:
        """Store a result file or checkpoint, such as `model.keras`, once its digest is checked.

        Args:
            path: a folder, where the file keeps its name, or the new file, whose folder is made.
        """
        file_name_check(name)
        route = f"jobs/{job_id}/files/{quote(name, safe='')}/"
        return file_store(self._site, route, name, path)

    def download_code(self, job_id: int, path: StrPath) -> Path:
        """Store the code of a job as it was submitted; `path` is as in `download`."""
        name = self.job(job_id, fields=("code_name",))["code_name"]
        return file_store(self._site, f"jobs/{job_id}/code/", name, path)

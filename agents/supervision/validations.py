"""Validations: builds of a job's code in disposable processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path

from agents.session.backoff import Backoff
from agents.session.client import is_passing, wished_wait_s
from agents.session.report_queue import storable
from agents.supervision.agent_context import AgentContext
from agents.supervision.deletion import folder_delete
from agents.supervision.devices import VALIDATION_ENVIRONMENT
from agents.supervision.fetch import code_fetch, forked_state_fetch, source_fetch
from agents.supervision.isolation import Isolation
from agents.supervision.masking import Mask
from agents.supervision.processes import OwnedProcess, processes_of
from agents.supervision.starvation import Starvation
from agents.trainer.contract.full_disk import is_disk_full
from agents.trainer.contract.plain_files import (
    json_parse,
    plain_file_open,
    plain_file_read,
    plain_file_size,
    plain_file_truncate,
    plain_file_write,
)
from controlplane.core.protocol.node_messages import ValidationReport, WantedValidation
from controlplane.core.protocol.wire import decode, encode

log = logging.getLogger("agents")

ValidationKey = tuple[int, int]
#: Bytes from the end of a failed validation's log that are copied into its report.
LOG_TAIL_BYTES = 8 * 1024
MAX_RESULT_BYTES = 512 * 1024


class ValidationAttempt:
    """One attempt of a validation. Call `step` until `report` is set; then it does nothing.

    Attributes:
        path: its folder, deleted when the validation is no longer in the desired state.
        report: the result; None before.
        is_accepted: whether the control plane has acknowledged the result.
    """

    def __init__(self, wanted: WantedValidation, parent: Path, surroundings: AgentContext) -> None:
        self.report: ValidationReport | None = None
        self.is_accepted = False
        self._wanted = wanted
        self.path = parent / f"{wanted.validation_id}-{wanted.attempt}"
        self._around = surroundings
        self._mask = Mask(wanted.secrets.values())
        settings = surroundings.settings
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_cap_s)
        self._fetch: Future[None] | None = None
        self._fetch_after = 0.0
        self._process: OwnedProcess | None = None
        self._started_at = 0.0
        self._starvation: Starvation | None = None
        self._has_timed_out = False
        self._kill_reason = ""
        self._is_unwanted = False

    @property
    def is_over(self) -> bool:
        """True once the process is gone and the result is known, or no longer wanted."""
        return self.report is not None

    @property
    def pid(self) -> int:
        """The process id; 0 without a process."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        """True while a process of the validation is left."""
        return self._process is not None and not self.is_over

    def end(self) -> None:
        """Cancel the validation: its result is no longer wanted."""
        self._is_unwanted = True
        if self._process is not None:
            self._process.kill()

    def watched(self) -> AbstractContextManager[None]:
        """Have the validation killed if a block that handles its files takes too long."""
        return self._around.watchdog.watching(self._kill_stuck)

    def _kill_stuck(self) -> None:
        """Kill the validation, whose files the loop waits for; called on the watchdog's thread."""
        self._kill_reason = "its files could not be read or written"
        log.error("killing validation %s: %s", self.path.name, self._kill_reason)
        if self._process is not None:
            self._process.kill()
        self._around.isolation.kill(self.path)

    def delete(self) -> None:
        """Remove its folder."""
        folder_delete(self.path)

    def step(self, now: float) -> None:
        """Advance as far as possible; never blocks."""
        if self.is_over:
            return
        if self._process is not None:
            self._step_running(now, self._process)
        elif self._is_unwanted and (self._fetch is None or self._fetch.done()):
            self._finish(code="cancelled", message="it was not wanted any more")
        elif self._fetch is None:
            if now >= self._fetch_after:
                self._fetch = self._around.transfers.start(self.path.name, self._prepare)
        elif (
            self._fetch.done()
            and not self._around.fork_servers.is_warming(VALIDATION_ENVIRONMENT)
            and not self._around.isolation.is_paused
            and self.path not in self._around.isolation.leaving
        ):
            self._start(now, self._fetch.exception())

    def _prepare(self) -> None:
        self.delete()
        self.path.mkdir(mode=0o700)
        (self.path / "code").mkdir()
        spec = self._wanted.spec
        files = self._around.files_of(f"validations/{self._wanted.validation_id}")
        code_fetch(files, spec.code_sha256, self._wanted.code_name, self.path / "code")
        source_fetch(files, spec, self.path)
        forked_state_fetch(files, spec, self.path)
        plain_file_write(self.path / "orders.json", json.dumps(encode(spec)).encode())

    def _start(self, now: float, error: BaseException | None) -> None:
        if error is not None and (is_passing(error) or is_disk_full(error)):
            self._fetch_again(now, error)
            return
        if isinstance(error, ValueError):
            self._finish(code="bad_archive", message=str(error), at_fault="code")
            return
        if error is not None:
            self._finish(code="internal", message=f"{type(error).__name__}: {error}")
            return
        try:
            user = self._around.isolation.enter(self.path.name, self.path)
            self._process = self._around.fork_servers.start(
                "--validate", self.path, VALIDATION_ENVIRONMENT, user, self._wanted.secrets
            )
        except OSError as failure:
            self._around.isolation.leave(self.path)
            if is_disk_full(failure):
                self._fetch_again(now, failure)
            else:
                self._finish(code="internal", message=f"the validation does not start: {failure}")
            return
        self._started_at, self._starvation = now, Starvation(self._process.pid)

    def _fetch_again(self, now: float, error: BaseException) -> None:
        if is_disk_full(error):
            self.delete()
            self._around.make_room()
        self._fetch = None
        self._fetch_after = now + self._backoff.next_delay_s(wished_wait_s(error))

    def _step_running(self, now: float, process: OwnedProcess) -> None:
        if not process.is_ending and self._is_too_long(now):
            self._has_timed_out = process.exit_code is None
            process.kill()
        fault = self._around.isolation.port_fault(self.path)
        if fault and not self._kill_reason:
            self._kill_reason = fault
            process.kill()
        is_gone = process.is_gone(now)
        if not is_gone and process.outlives_kill(now):
            self._around.isolation.kill_begin(self.path)
        if not is_gone or not self._around.isolation.is_cleared(self.path):
            self._trim_log()
            return
        if self._is_unwanted:
            self._finish(code="cancelled", message="it was not wanted any more")
        elif self._has_timed_out:
            self._finish(
                code="timeout",
                message=f"Building the code took longer than {self._wanted.timeout_s:g} s and was "
                "ended. Look for an endless loop, and load or compute less while it is built",
                at_fault="code",
                traceback=self._log_tail(),
            )
        else:
            self._take_result(process.exit_code)

    def _is_too_long(self, now: float) -> bool:
        """Return whether the limit is passed; time without a processor does not count."""
        limit_s, took_s = self._wanted.timeout_s, now - self._started_at
        starvation = self._starvation
        return took_s >= limit_s and (starvation is None or took_s >= starvation.extended(limit_s))

    def _take_result(self, exit_code: int | None) -> None:
        number, attempt = self._wanted.validation_id, self._wanted.attempt
        report = _result_read(self.path / "validation.json")
        if report and exit_code == 0:
            if report.traceback and (output := self._log_tail().strip()):
                # As in a terminal: first what the code wrote, then where it failed.
                report = dataclasses.replace(report, traceback=f"{output}\n\n{report.traceback}")
            self.report = self._masked(
                dataclasses.replace(report, validation_id=number, attempt=attempt)
            )
            # The code is what the job's own code may have written.
            log.info("validation %d: %.60r", number, report.code or "passed")
            return
        message = f"the process that built the code ended with status {exit_code}"
        if exit_code == 0:
            message = (
                "the code ended its own process before the model was built; look for os._exit(0)"
            )
        if self._kill_reason:
            message = f"the process that built the code was ended: {self._kill_reason}"
        self._finish(
            code="crashed",
            message=message,
            at_fault="code",
            traceback=self._log_tail(),
        )
        log.info("validation %d, attempt %d crashed", number, attempt)

    def _finish(
        self, *, code: str, message: str, at_fault: str | None = None, traceback: str = ""
    ) -> None:
        report = ValidationReport(
            validation_id=self._wanted.validation_id,
            attempt=self._wanted.attempt,
            ok=False,
            code=code,
            field=at_fault,
            message=message,
            traceback=traceback,
        )
        if code == "internal":
            log.error("validation %s fails on this node: %s", self.path.name, message)
        self.report = self._masked(report)
        self.is_accepted = self._is_unwanted  # an unwanted result is not sent

    def _masked(self, report: ValidationReport) -> ValidationReport:
        """Return the result without the values of the job's secrets."""
        masked = decode(ValidationReport, self._mask.fields(encode(report)))
        return dataclasses.replace(masked, facts=self._mask.fields(report.facts))

    def _trim_log(self) -> None:
        settings = self._around.settings
        log_path = self.path / "log.txt"
        if plain_file_size(log_path) > settings.log_slack_bytes:
            with contextlib.suppress(OSError):  # no regular file any more
                plain_file_truncate(log_path, 0)

    def _log_tail(self) -> str:
        try:
            with plain_file_open(self.path / "log.txt") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return file.read().decode("utf-8", "replace").replace("\0", "?")
        except OSError:
            return ""


def _result_read(path: Path) -> ValidationReport | None:
    """Read the validation's result; None if invalid (user code can write to the file too)."""
    try:
        content = plain_file_read(path, MAX_RESULT_BYTES)
        return decode(ValidationReport, storable(json_parse(content)))
    except (OSError, ValueError):
        return None


def validations_sweep(parent: Path, isolation: Isolation) -> None:
    """Kill and delete validations of an earlier agent process; they are run again."""
    for path in list(parent.iterdir()):
        for process in processes_of(path, uid=isolation.adopt(path.name, path)):
            process.kill()
        isolation.leave(path)
        folder_delete(path)

"""Requests for replays of the recorded history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from virtualflow import answers
from virtualflow.deadlines import Deadline
from virtualflow.transport import AWAY_LIMIT_S
from virtualflow.typed_site import TypedSite, answer_read

#: Fields of a new replay; the result comes with `replay`.
_REQUESTED = ("id", "status", "progress", "policy", "error")


class ReplayRequests:
    """Methods of `Client` about replays."""

    _site: TypedSite
    _poll_s: float

    def simulate(
        self,
        policy: str,
        *,
        accelerators: Mapping[str, int] | None = None,
        resize_cost_s: float | None = None,
        hours: int = 24,
    ) -> answers.Replay:
        """Ask for a replay of the last hours under a policy (admins); `replay` has the answer.

        Args:
            accelerators: number by kind; a kind that is left out stays as it is.
            resize_cost_s: seconds for which every start and every resize stops a job, up to a
                day; None: as measured.
        """
        scenario = {
            "policy": policy,
            "accelerators": dict(accelerators or {}),
            "resize_cost_s": resize_cost_s,
        }
        return self.simulate_scenarios([scenario], hours=hours)

    def simulate_scenarios(
        self, scenarios: Sequence[Mapping[str, Any]], *, hours: int = 24
    ) -> answers.Replay:
        """Ask for replays of the last hours under several scenarios; return the first (admins).

        Args:
            scenarios: each with `policy` and optionally `accelerators` and `resize_cost_s`, as of
                `simulate`.
        """
        body = {"scenarios": [dict(one) for one in scenarios], "hours": hours}
        response = self._site.request("POST", "replays/", json=body)
        return answer_read(response, answers.Replay, _REQUESTED)

    def comparison(
        self, replay_id: int, prices: Mapping[tuple[int, str], float] | None = None
    ) -> answers.ReplayComparison:
        """Return a replay side by side with those over the same history.

        Args:
            prices: of an hour by number of the replay and kind; others are those of the site.
        """
        given = [f"{number}:{kind}={price}" for (number, kind), price in (prices or {}).items()]
        path = f"replays/{replay_id}/comparison/"
        return self._site.get(path, answers.ReplayComparison, params={"price": given})

    def replays(self) -> Iterator[answers.ReplaySummary]:
        """Yield all replays without their results, newest first (admins)."""
        return self._site.pages("replays/", answers.ReplaySummary)

    def delete_replay(self, replay_id: int) -> None:
        """Cancel a replay that waits or runs, or delete one that has ended (admins)."""
        self._site.request("DELETE", f"replays/{replay_id}/")

    def replay(self, replay_id: int) -> answers.Replay:
        """Return a replay; `result` is empty until `status` is `done`."""
        return self._site.get(f"replays/{replay_id}/", answers.Replay)

    def watch_replay(
        self, replay_id: int, *, timeout_s: float | None = None
    ) -> Iterator[answers.Replay]:
        """Yield a replay now and then, until it is no longer waiting or running.

        Once it has answered, the site may be away for some minutes.
        """
        deadline, away_s = Deadline(timeout_s), 0.0
        while True:
            replay = self._site.get(f"replays/{replay_id}/", answers.Replay, away_s=away_s)
            yield replay
            if replay["status"] not in ("waiting", "running"):
                return
            deadline.check(f"Replay {replay_id} is not done")
            self._site.sleep(self._poll_s)
            away_s = deadline.left_s(AWAY_LIMIT_S)

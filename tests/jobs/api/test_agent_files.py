"""/api/v1/agent/jobs/: the code and files that a node may read, and those that it may store."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from django.test import Client

from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.wire import ReportKind, encode
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, Artifact, Job, Node
from jobs.selectors.forks import ADOPTED_FILE
from jobs.selectors.retention import stored_bytes
from jobs.services.submission.validations import validation_start, validation_take
from tests.jobs.world import PlayedNode, settled
from tests.support.builders import CODE, agent_client, agent_token_give, at, job_make
from tests.support.rows import file_store

pytestmark = pytest.mark.django_db
BASE = "/api/v1/agent/"


class TestFiles:
    def put(self, client: Client, job: Job, name: str, content: bytes, **other: Any) -> Any:
        query = {"slot": "0", "generation": "1", **other.pop("query", {})}
        headers = {"X-Sha256": hashlib.sha256(content).hexdigest(), **other}
        return client.put(
            f"{BASE}jobs/{job.pk}/files/{name}/",
            content,
            content_type="application/octet-stream",
            headers=headers,
            query_params=query,
        )

    def training(self) -> tuple[Job, Client, PlayedNode]:
        world, job = settled()
        (played,) = world.nodes
        return job, agent_client(agent_token_give(played.node)), played

    def test_code_and_files(self) -> None:
        job, client, _ = self.training()
        response = client.get(f"{BASE}jobs/{job.pk}/code/")
        assert b"".join(response.streaming_content) == CODE  # type: ignore[attr-defined]
        assert response.headers["X-Sha256"] == hashlib.sha256(CODE).hexdigest()
        assert client.get(f"{BASE}jobs/{job.pk}/checkpoint/").status_code == 404
        assert self.put(client, job, "checkpoint.npz", b"first").status_code == 204
        assert self.put(client, job, "checkpoint.npz", b"second").status_code == 204
        response = client.get(f"{BASE}jobs/{job.pk}/checkpoint/")
        assert b"".join(response.streaming_content) == b"second"  # type: ignore[attr-defined]
        assert Artifact.objects.get().size_bytes == 6

    def test_nodes_that_have_nothing_to_do_with_the_job(
        self, fresh_node: tuple[Node, Client]
    ) -> None:
        job, _, _ = self.training()
        _, stranger = fresh_node
        assert stranger.get(f"{BASE}jobs/{job.pk}/code/").status_code == 404
        assert stranger.get(f"{BASE}jobs/{job.pk}/checkpoint/").status_code == 404
        assert self.put(stranger, job, "model.keras", b"x").status_code == 404
        assert stranger.get(f"{BASE}jobs/{job.pk + 1}/code/").status_code == 404

    def test_a_former_node_reads_and_stores_nothing(self) -> None:
        job, client, _ = self.training()
        assert self.put(client, job, "checkpoint.npz", b"x").status_code == 204
        Allocation.objects.update(released_at=at(9))
        for part in ("code", "checkpoint"):
            assert client.get(f"{BASE}jobs/{job.pk}/{part}/").status_code == 404
        for name in ("checkpoint.npz", "model.keras"):
            assert self.put(client, job, name, b"y").status_code == 404
        assert Artifact.objects.count() == 1

    def test_an_adopted_state_is_for_nodes_of_the_job(
        self, fresh_node: tuple[Node, Client]
    ) -> None:
        job, client, _ = self.training()
        address = f"{BASE}jobs/{job.pk}/adopted/"
        assert client.get(address).status_code == 404
        file_store(job, "checkpoint.npz", b"state")
        Artifact.objects.update(name=ADOPTED_FILE)
        response = client.get(address)
        assert b"".join(response.streaming_content) == b"state"  # type: ignore[attr-defined]
        assert response.headers["X-Sha256"] == hashlib.sha256(b"state").hexdigest()
        assert fresh_node[1].get(address).status_code == 404
        assert client.post(address).status_code == 405
        assert self.put(client, job, ADOPTED_FILE, b"other").status_code == 400
        Allocation.objects.update(released_at=at(9))
        assert client.get(address).status_code == 404

    def test_a_validating_node_reads_the_code_only(self, fresh_node: tuple[Node, Client]) -> None:
        node, client = fresh_node
        job = job_make(status=JobStatus.VALIDATING)
        code = f"{BASE}validations/{job.validation.pk}/code/"
        assert client.get(code).status_code == 404
        validation_start(job.validation, at(0))
        assert client.get(code).status_code == 200
        assert client.get(f"{BASE}jobs/{job.pk}/code/").status_code == 404
        assert client.get(f"{BASE}jobs/{job.pk}/checkpoint/").status_code == 404
        job.validation.refresh_from_db()
        report = ValidationReport(validation_id=job.validation.pk, attempt=1, ok=True)
        assert validation_take(node, report, at(1))
        assert client.get(code).status_code == 404

    @pytest.mark.parametrize(
        ("name", "change", "status"),
        [
            ("evil.sh", {}, 400),
            ("model.keras", {"X-Sha256": "0" * 64}, 400),
            ("model.keras", {"X-Sha256": "short"}, 400),
            ("model.keras", {"query": {"slot": "x"}}, 400),
            ("model.keras", {"query": {"slot": "9"}}, 404),
            ("model.keras", {"query": {"generation": "-1"}}, 409),
            ("model.keras", {"query": {"generation": str(2**30)}}, 409),
        ],
    )
    def test_what_is_refused(self, name: str, change: dict[str, Any], status: int) -> None:
        job, client, _ = self.training()
        assert self.put(client, job, name, b"x", **dict(change)).status_code == status
        assert not Artifact.objects.exists()

    def test_a_trainer_that_was_told_to_stop_stores_nothing(self, settings: Any) -> None:
        settings.AGENT_TOKEN_DAYS = 0  # the world's clock is not the one of requests
        job, client, played = self.training()
        trainer = next(iter(played.trainers.values()))
        played.say(trainer, ReportKind.FAILED, code="internal", message="odd", traceback="")
        body, url = json.dumps(encode(played.batch())), f"{BASE}reports/"
        assert client.post(url, body, content_type="application/json").status_code == 200
        assert self.put(client, job, "model.keras", b"x").status_code == 409

    def test_too_large(self, settings: Any) -> None:
        settings.ARTIFACT_LIMIT_BYTES = 3
        job, client, _ = self.training()
        assert self.put(client, job, "model.keras", b"four").status_code == 413

    @pytest.mark.parametrize("name", ["checkpoint.npz", "model.keras", "history.csv"])
    def test_what_a_job_leaves_is_bounded_by_twice_its_owners_storage(
        self, settings: Any, name: str
    ) -> None:
        job, client, _ = self.training()
        settings.STORAGE_LIMIT_BYTES = 100
        file_store(job, "model.weights.h5", b"x" * 150)
        assert self.put(client, job, name, b"y" * 51).json()["code"] == "storage_full"
        assert self.put(client, job, name, b"y" * 50).status_code == 204
        assert stored_bytes(job.owner_id) == 200

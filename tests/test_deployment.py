"""The container setup: complete, and without a password that somebody forgot to set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
REQUIRED = ("VIRTUALFLOW_SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "ADMIN_PASSWORD",
            "VIRTUALFLOW_HOSTS")  # fmt: skip


@pytest.fixture(scope="module")
def docker_compose() -> str:
    path = shutil.which("docker-compose")
    if path is None:
        reason = "docker-compose is not installed: apt-get install docker-compose"
        if os.environ.get("TEST_SERVERS_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def run_config(
    program: str, directory: Path, values: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Let docker-compose read docker-compose.yml with `values` as its .env file."""
    env_file = directory / "env"
    env_file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [program, "--file", ROOT / "docker-compose.yml", "--env-file", env_file, "config"],
        env=environment, cwd=directory, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_config_is_complete_with_the_variables(docker_compose: str, tmp_path: Path) -> None:
    done = run_config(docker_compose, tmp_path, dict.fromkeys(REQUIRED, "a-b_c"))
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert set(services) == {
        "postgres", "redis", "prepare", "web", "stream", "worker", "replayer", "beat",
        "node-a", "node-b",
    }  # fmt: skip
    assert all("healthcheck" in service for name, service in services.items() if name != "prepare")


@pytest.mark.parametrize("missing", REQUIRED)
def test_config_names_a_variable_that_is_missing(
    docker_compose: str, tmp_path: Path, missing: str
) -> None:
    values = dict.fromkeys(REQUIRED, "a-b_c") | {missing: ""}
    done = run_config(docker_compose, tmp_path, values)
    assert done.returncode != 0
    assert missing in done.stderr


def test_users_code_is_kept_from_database_and_broker(docker_compose: str, tmp_path: Path) -> None:
    """Agents run what users submit: no network to PostgreSQL or Redis, no secret, no open port."""
    secret = "value-that-must-not-leak"
    done = run_config(docker_compose, tmp_path, dict.fromkeys(REQUIRED, secret))
    services = yaml.safe_load(done.stdout)["services"]
    hidden = set(services["postgres"]["networks"]) | set(services["redis"]["networks"])
    for name in ("node-a", "node-b"):
        assert not hidden & set(services[name]["networks"])
        assert secret not in json.dumps(services[name])
        assert "ports" not in services[name]


def test_env_example_lists_what_is_required() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert [line.rstrip("=") for line in lines if line and not line.startswith("#")] == list(
        REQUIRED
    )

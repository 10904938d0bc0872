"""The container setup: complete, and without a password that somebody forgot to set."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from string import Template
from typing import Any, cast

import pytest
import yaml
from django.conf import settings

from agents.supervision.isolation import CAPABILITIES
from controlplane.request_bodies import ANONYMOUS_LIMIT_BYTES
from jobs.places import WAITING_LIMIT

ROOT = Path(__file__).parent.parent
REQUIRED = ("VIRTUALFLOW_SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "ADMIN_PASSWORD",
            "VIRTUALFLOW_HOSTS")  # fmt: skip
SETTINGS_CODE = (ROOT / "controlplane/settings.py").read_text()
NODES = ("node-a", "node-b")
AGENT_RIGHTS = {f"CAP_{name}" for name in (*CAPABILITIES, "NET_ADMIN")}
SECRET = "value-that-must-not-leak"


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
    program: str, directory: Path, values: dict[str, str], *more_files: str
) -> subprocess.CompletedProcess[str]:
    """Let docker-compose read docker-compose.yml with `values` as its .env file."""
    env_file = directory / "env"
    env_file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    names = ("docker-compose.yml", *more_files)
    files = [f"--file={ROOT / name}" for name in names]
    return subprocess.run(
        [program, *files, "--env-file", env_file, "config"],
        env=environment, cwd=directory, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def config(docker_compose: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the configuration, with a secret for each variable."""
    values = dict.fromkeys(REQUIRED, SECRET)
    done = run_config(docker_compose, tmp_path_factory.mktemp("config"), values)
    assert done.returncode == 0, done.stderr
    return cast(dict[str, Any], yaml.safe_load(done.stdout))


def test_every_service_is_there_and_has_a_health_check(config: dict[str, Any]) -> None:
    services = config["services"]
    assert set(services) == {
        "postgres", "redis", "prepare", "web", "stream", "proxy", "gateway", "worker", "replayer",
        "notifier", "beat", *NODES,
    }  # fmt: skip
    assert all("healthcheck" in service for name, service in services.items() if name != "prepare")


def test_every_service_is_hardened(config: dict[str, Any]) -> None:
    for name, service in config["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert {"pids_limit", "mem_limit", "cpus"} <= set(service), name
        assert not {"privileged", "devices"} & set(service), name
        if name in NODES:  # two jobs and a validation
            assert service["pids_limit"] > 3 * 4096
        rights = {f"CAP_{right}" for right in service.get("cap_add", ())}
        assert rights == (AGENT_RIGHTS if name.startswith("node-") else set()), name


def test_only_proxy_and_notifier_reach_beyond_the_containers(config: dict[str, Any]) -> None:
    """The proxy is called from outside; the notifier calls out and cannot be called."""
    services, networks = config["services"], config["networks"]
    assert [name for name, network in networks.items() if not network.get("internal")] == [
        "outside"
    ]
    assert [name for name in services if "outside" in services[name]["networks"]] == [
        "notifier", "proxy",
    ]  # fmt: skip
    assert [name for name in services if "ports" in services[name]] == ["proxy"]


def test_logins_by_openid_connect_let_web_reach_out_as_well(
    docker_compose: str, tmp_path: Path
) -> None:
    values = dict.fromkeys(REQUIRED, "a-b_c") | {"VIRTUALFLOW_OIDC_ISSUER": "https://login.example"}
    more = "docker-compose.oidc.yml"
    missing = run_config(docker_compose, tmp_path, values, more)
    assert "VIRTUALFLOW_OIDC_CLIENT_ID" in missing.stderr
    values["VIRTUALFLOW_OIDC_CLIENT_ID"] = "virtualflow"
    done = run_config(docker_compose, tmp_path, values, more)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    outside = {name for name in services if "outside" in services[name]["networks"]}
    assert outside == {"notifier", "proxy", "web"}
    assert set(services["web"]["networks"]) == {"site", "data", "outside"}
    names = set(re.findall(r'"(VIRTUALFLOW_(?:OIDC|PASSWORD)_[A-Z_]+)"', SETTINGS_CODE))
    assert names <= set(services["web"]["environment"])
    assert len(names) > 10


@pytest.mark.parametrize("missing", REQUIRED)
def test_config_names_a_variable_that_is_missing(
    docker_compose: str, tmp_path: Path, missing: str
) -> None:
    values = dict.fromkeys(REQUIRED, "a-b_c") | {missing: ""}
    done = run_config(docker_compose, tmp_path, values)
    assert done.returncode != 0
    assert missing in done.stderr


def test_users_code_reaches_the_gateway_alone(config: dict[str, Any]) -> None:
    """Agents run what users submit: no network of the site, no secret, no other node's token."""
    services = config["services"]
    assert {name for name in services if "training" in services[name]["networks"]} == {
        "gateway", *NODES,
    }  # fmt: skip
    for name in NODES:
        assert list(services[name]["networks"]) == ["training"]
        assert SECRET not in json.dumps(services[name])
        others = {volume.split(":")[0] for other in set(services) - {name, "prepare"}
                  for volume in services[other].get("volumes", [])}  # fmt: skip
        assert not others & {volume.split(":")[0] for volume in services[name]["volumes"]}


BODY_LIMITS = ("large", "sender_of_large")


def test_bodies_that_the_proxy_keeps_fit_into_its_folder() -> None:
    """Large ones are bounded in number; others are below 100 kB, or of the site's limit."""
    text = re.sub(r"#.*", "", (ROOT / "proxy/nginx.conf").read_text())
    proxy = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["proxy"]
    (folder,) = proxy["tmpfs"]
    (folder_mib,) = re.findall(r"^/tmp:size=(\d+)m$", folder)
    server, *locations = re.split(r"\blocation\b", text[text.index("server {") :])
    buffered = [part for part in locations if "proxy_request_buffering off" not in part]
    limits = [dict(re.findall(r"limit_conn (\w+) (\d+);", part)) for part in (server, *buffered)]
    whole, *own = limits
    for kept in own:  # limits of its own replace the server's
        assert not kept or {name: kept[name] for name in BODY_LIMITS} == {
            name: whole[name] for name in BODY_LIMITS
        }
    sizes = [int(mib) for part in buffered
             for mib in re.findall(r"client_max_body_size (\d+)m;", part)]  # fmt: skip
    assert int(whole["large"]) * max(sizes) <= 0.8 * int(folder_mib)
    assert int(whole["sender_of_large"]) < int(whole["large"])
    assert max(sizes) * 2**20 >= settings.CODE_LIMIT_BYTES + settings.DATA_UPLOAD_MAX_MEMORY_SIZE


def test_refusals_of_the_proxy_are_problems_for_programs() -> None:
    text = (ROOT / "proxy/nginx.conf").read_text()
    (statuses,) = re.findall(r"error_page ([\d ]+) \$refusal;", text)
    maps = {
        name: dict(re.findall(r'(default|\d+) "?(.*?)"?;', body))
        for name, body in re.findall(r"map \$status \$(\w+) \{(.*?)\}", text, re.DOTALL)
    }
    (problem,) = re.findall(r"return 200 '(\{.*?)\\n';", text, re.DOTALL)
    table = (ROOT / "docs/rest-api.md").read_text()
    for status in statuses.split():
        values = {name: known.get(status, known["default"]) for name, known in maps.items()}
        filled = json.loads(Template(problem).substitute(values, status=status))
        assert {*filled} == {"type", "title", "status", "code", "detail"}
        assert (filled["title"], filled["status"]) == (HTTPStatus(int(status)).phrase, int(status))
        assert f"`{filled['code']}`" in table


def test_open_pages_and_nodes_behind_one_address_keep_no_request_out() -> None:
    """They are counted apart from other requests, which are refused beyond a hundred."""
    text = (ROOT / "proxy/nginx.conf").read_text()
    for location in ("= /stream/", "/api/v1/agent/"):
        start = text.index(f"location {location} {{")
        kept = dict(re.findall(r"limit_conn (\w+) (\d+);", text[start : text.index("}", start)]))
        assert "address" not in kept
        assert int(kept["waiting"]) >= 500
    assert int(kept["waiting"]) * 2 < int(*re.findall(r"worker_connections (\d+);", text))


def test_the_proxy_takes_no_large_body_of_anybody() -> None:
    text = (ROOT / "proxy/nginx.conf").read_text()
    (large,) = re.findall(r"location ~ (\S+) \{\s+client_max_body_size 66m;", text)
    submissions = (
        "/jobs/new/",
        *(f"/api/v1/{name}/" for name in ("jobs", "sweeps", "validations")),
    )
    assert all(re.fullmatch(large, path) for path in submissions)
    (digits,) = re.findall(r'map \$content_length \$is_large \{\s+default "";\s+'
                           r'"~\^\[0-9\]\{(\d+),\}\$" large;', text)  # fmt: skip
    assert ANONYMOUS_LIMIT_BYTES < 10 ** (int(digits) - 1) < 2 * ANONYMOUS_LIMIT_BYTES
    named = f"map $is_large$http_authorization$cookie_{settings.SESSION_COOKIE_NAME} "
    assert f"{named}$is_anonymous_large {{" in text
    assert "if ($is_anonymous_large) { return 413; }" in text
    assert "if ($http_transfer_encoding) { return 411; }" in text
    # The site knows the sender before a body is read, on every way that buffers one for `web`.
    blocks = dict(re.findall(r"\n        location ([^{]+?) \{(.*?)\n?        \}", text, re.DOTALL))
    to_web = {name for name, block in blocks.items() if "proxy_pass $web;" in block}
    redirected = {name for name in to_web if "if ($is_large) { return 418; }" in blocks[name]}
    assert to_web - redirected == {"@large"}
    assert len(redirected) == 2
    assert "error_page 418 = @large;" in text
    assert "auth_request /is-known;" in blocks["@large"]
    assert "proxy_pass $web/api/v1/account/;" in blocks["= /is-known"]


@pytest.mark.parametrize(
    "path", ["docker-compose.yml", "docs/operations.md", "jobs/demo/stack/processes.py"]
)
def test_slow_clients_leave_a_thread_of_each_web_process(path: str) -> None:
    (threads,) = re.findall(r'--blocking-threads[", ]+(\d+)', (ROOT / path).read_text())
    slow = settings.BODIES_LIMIT + settings.DOWNLOADS_LIMIT + 2 * WAITING_LIMIT
    assert slow + settings.WAITS_LIMIT < int(threads)


@pytest.mark.parametrize("path", ["docker-compose.yml", "docs/operations.md"])
def test_servers_speak_http_1_alone(path: str) -> None:
    """Limits of the proxy, and of headers, are those of HTTP/1; tests/browser try the demo's."""
    commands = re.findall(r".*granian.*--interface.*", (ROOT / path).read_text())
    assert len(commands) == 2
    for command in commands:
        words = re.findall(r"[^\s\",]+", command)
        assert "--http 1 --no-ws" in " ".join(words)


@pytest.mark.parametrize("path", ["files/model.keras/", "code/"])
@pytest.mark.parametrize("prefix", ["/jobs/7/", "/api/v1/jobs/7/"])
def test_the_proxy_has_files_sent_without_a_thread(prefix: str, path: str) -> None:
    text = (ROOT / "proxy/nginx.conf").read_text()
    blocks = re.findall(r"\n        location ~ (\S+) \{(.*?)\n        \}", text, re.DOTALL)
    first = next(block for pattern, block in blocks if re.search(pattern, prefix + path))
    assert "proxy_pass $stream;" in first


@pytest.mark.parametrize("name", ["nginx.conf", "gateway.conf"])
def test_the_site_learns_its_clients_addresses(name: str) -> None:
    """A block's own headers replace those of the blocks around it."""
    text = (ROOT / "proxy" / name).read_text()
    runs = re.findall(r"(?:^ *proxy_set_header .*\n)+", text, re.MULTILINE)
    assert runs
    for run in runs:
        assert "proxy_set_header X-Forwarded-For $remote_addr;" in run
        assert 'proxy_set_header Connection "";' in run
    assert "proxy_set_header" not in (ROOT / "proxy/common.conf").read_text()


def test_env_example_lists_what_is_required() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert [line.rstrip("=") for line in lines if line and not line.startswith("#")] == list(
        REQUIRED
    )


@pytest.mark.parametrize(
    ("requirements", "modules"),
    [
        ("site.txt", ["controlplane.wsgi", "controlplane.asgi", "controlplane.celery",
                      "controlplane.urls", "jobs.tasks", "jobs.management.commands.prepare"]),
        ("agent.txt", ["agents.__main__", "agents.trainer.__main__", "agents.trainer.validate"]),
    ],
)  # fmt: skip
def test_an_image_has_every_package_that_it_imports(requirements: str, modules: list[str]) -> None:
    """Import the entry points of an image with the packages refused that it does not install."""
    program = """
import importlib, importlib.metadata, re, sys
installed = set(re.findall(r"^([\\w.-]+)==", open(sys.argv[1]).read(), re.MULTILINE))
normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()
for package, distributions in importlib.metadata.packages_distributions().items():
    if not installed & {normal(name) for name in distributions}:
        sys.modules.setdefault(package, None)
for module in sys.argv[2:]:
    importlib.import_module(module)
    if module == "controlplane.wsgi":
        import django
        django.setup()
"""
    environment = os.environ | {"VIRTUALFLOW_DEBUG": "1"}
    path = ROOT / "requirements" / requirements
    done = subprocess.run(
        [sys.executable, "-c", program, path, *modules], env=environment, cwd=ROOT,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", ["site.txt", "agent.txt"])
def test_parts_have_the_versions_of_the_whole(part: str) -> None:
    pinned = (ROOT / "requirements.txt").read_text()
    text = (ROOT / "requirements" / part).read_text()
    assert set(re.findall(r"^\S+==\S+", text, re.MULTILINE)) <= set(
        re.findall(r"^\S+==\S+", pinned, re.MULTILINE)
    )


def test_the_site_installs_no_tensorflow() -> None:
    text = (ROOT / "requirements" / "site.txt").read_text()
    assert not re.search(r"^(tensorflow|keras)", text, re.MULTILINE)


def test_every_setting_of_the_site_can_be_set_in_env(docker_compose: str, tmp_path: Path) -> None:
    """Folders, debugging and logins by OpenID Connect are left out."""
    documented = set(
        re.findall(r"`(VIRTUALFLOW_[A-Z_]+)`", (ROOT / "docs/settings.md").read_text())
    )
    decided = {"STATE_DIR", "FILES_DIR", "WORKER_HEARTBEAT_FILE", "DEBUG", "PASSWORD_LOGIN"}
    names = documented - {f"VIRTUALFLOW_{name}" for name in decided}
    names = {name for name in names if "_OIDC_" not in name}
    values = dict.fromkeys(REQUIRED, "a-b_c") | dict.fromkeys(names, "17")
    done = run_config(docker_compose, tmp_path, values)
    passed = yaml.safe_load(done.stdout)["services"]["web"]["environment"]
    assert {name for name in names if not str(passed.get(name)).startswith("17")} == set()
    assert len(names) > 50
    for name in ("worker", "stream", "notifier"):
        assert yaml.safe_load(done.stdout)["services"][name]["environment"] == passed


def test_examples_of_settings_are_their_defaults() -> None:
    """Examples other than folders are the defaults of the containers."""
    example = (ROOT / ".env.example").read_text()
    compose = "".join(path.read_text() for path in ROOT.glob("docker-compose*.yml"))
    defaults = dict(re.findall(r"\$\{([A-Z_]+):-([^}]+)\}", compose))
    shown = dict(re.findall(r"^#([A-Z_]+)=([^/\n]+)$", example, re.MULTILINE))
    both = shown.keys() & defaults.keys()
    assert "VIRTUALFLOW_PROXIES" in both
    assert {name: shown[name] for name in both} == {name: defaults[name] for name in both}

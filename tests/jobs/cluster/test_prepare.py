"""`manage.py prepare`: safe to run again, loud without a password."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.signals import pre_migrate

from controlplane.core.protocol.node_messages import EnrolRequest
from controlplane.core.protocol.wire import AcceleratorInfo
from jobs.models import ApiToken, EnrolmentToken, Node, NotificationChannel, Secret
from jobs.sealing import UnsealError, unseal
from jobs.services.cluster.nodes import node_enrol, node_remove
from jobs.services.cluster.secrets import secret_store
from jobs.services.cluster.tokens import token_digest
from jobs.services.notifications.channels import channel_create
from tests.support.builders import at

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ADMIN_PASSWORD", "a good long one")
    return "a good long one"


def prepare(directory: Path, *nodes: str, again: bool = False) -> None:
    call_command("prepare", *nodes, admin="root-of-all", enrolment_dir=directory / "enrolment",
                 token_file=directory / "token", again=again)  # fmt: skip


def enrol(name: str, token: str) -> None:
    accelerator = AcceleratorInfo(index=0, kind="cpu", name="emulated", memory_bytes=0)
    node_enrol(
        EnrolRequest(
            token=token, name=name, host="127.0.0.1", first_port=2000, last_port=2001,
            boot_id="b", accelerators=(accelerator,),
        ),
        at(0),
    )  # fmt: skip


def test_makes_the_admin_a_token_and_lets_nodes_in(tmp_path: Path, password: str) -> None:
    prepare(tmp_path, "node-a")
    admin = User.objects.get(username="root-of-all")
    assert admin.is_superuser
    assert admin.check_password(password)
    token = (tmp_path / "token").read_text().strip()
    assert ApiToken.objects.get(digest=token_digest(token)).user == admin
    enrolment = tmp_path / "enrolment" / "node-a" / "token"
    assert stat.S_IMODE(enrolment.stat().st_mode) == 0o600
    enrol("node-a", enrolment.read_text().strip())
    assert Node.objects.filter(name="node-a").exists()


def test_a_second_run_changes_nothing_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, "node-a")
    enrol("node-a", (tmp_path / "enrolment" / "node-a" / "token").read_text().strip())
    token = (tmp_path / "token").read_text()
    monkeypatch.setenv("ADMIN_PASSWORD", "another one")
    prepare(tmp_path, "node-a")
    assert User.objects.get().check_password("a good long one")
    assert (tmp_path / "token").read_text() == token
    assert ApiToken.objects.count() == 1
    assert EnrolmentToken.objects.count() == 1


def test_a_removed_node_is_let_in_again_only_if_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "enrolment" / "node-a" / "token"
    prepare(tmp_path, "node-a")
    enrol("node-a", path.read_text().strip())
    path.unlink()
    node_remove(Node.objects.get(), at(1), actor="root-of-all")
    prepare(tmp_path, "node-a")
    assert not path.exists()
    assert EnrolmentToken.objects.count() == 1
    prepare(tmp_path, "node-a", again=True)
    enrol("node-a", path.read_text().strip())


def test_refuses_to_run_without_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADMIN_PASSWORD")
    with pytest.raises(CommandError, match="Set ADMIN_PASSWORD"):
        prepare(tmp_path)
    assert not User.objects.exists()


def test_refuses_a_database_whose_migrations_are_gone() -> None:
    MigrationRecorder.Migration.objects.filter(app="jobs", name__gt="0040").delete()
    with pytest.raises(CommandError, match="older than the migration 0041_job_attempts"):
        pre_migrate.send(sender=apps.get_app_config("jobs"), using="default")


def test_asks_where_the_tokens_of_nodes_shall_go() -> None:
    with pytest.raises(CommandError, match="--enrolment-dir"):
        call_command("prepare", "node-a", admin="root-of-all")


@pytest.mark.parametrize("nodes", [(), ("node-a",)])
def test_a_token_that_cannot_be_written_is_named(tmp_path: Path, nodes: tuple[str, ...]) -> None:
    (tmp_path / ("enrolment" if nodes else "token")).symlink_to("/dev/null/x")
    with pytest.raises(CommandError, match="token cannot be written"):
        prepare(tmp_path, *nodes)


def test_static_files_are_collected_on_request(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    """Compressing takes half a minute, so that it is asked for and here only noted."""
    commands: list[str] = []
    monkeypatch.setattr(
        "jobs.management.commands.prepare.call_command",
        lambda name, *_arguments, **_options: commands.append(name),
    )
    call_command("prepare", admin="root")
    assert commands == ["migrate"]
    call_command("prepare", admin="root", static=True)
    assert commands[1:] == ["migrate", "collectstatic"]


FIRST, SECOND, THIRD = ("first key" * 6, "second key" * 6, "third key" * 6)


def stored(settings: Any, key: str, user: User, name: str) -> None:
    """Store a secret and a channel under a key."""
    settings.SECRETS_KEY = key
    secret_store(user, name.upper(), f"value of {name}", at(0))
    channel_create(
        user,
        {
            "name": name, "kind": "webhook", "address": f"https://hooks.example/{name}",
            "events": ["failed"], "is_cluster_wide": False,
        },
        at(0),
    )  # fmt: skip


def readable() -> dict[str, tuple[str, str]]:
    """Return secrets and addresses that the keys of now read, by name."""
    found: dict[str, tuple[str, str]] = {}
    for channel in NotificationChannel.objects.all():
        with contextlib.suppress(UnsealError):
            assert unseal(channel.signing_key).startswith("whsec_")
            sealed = Secret.objects.get(name=channel.name.upper()).sealed
            found[channel.name] = unseal(sealed), unseal(channel.address)
    return found


def test_a_changed_key_loses_nothing_while_the_former_one_is_named(
    tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ada = User.objects.create_user("ada")
    stored(settings, FIRST, ada, "one")
    stored(settings, SECOND, ada, "two")
    settings.SECRETS_KEY = THIRD
    assert readable() == {}
    settings.OLD_SECRETS_KEYS = [SECOND, FIRST]
    both = {name: (f"value of {name}", f"https://hooks.example/{name}") for name in ("one", "two")}
    assert readable() == both
    prepare(tmp_path)
    assert "encrypted 6 stored secrets" in capsys.readouterr().out
    settings.OLD_SECRETS_KEYS = []
    assert readable() == both
    before = [*Secret.objects.order_by("id").values_list("sealed", flat=True)]
    prepare(tmp_path)
    assert "secrets" not in capsys.readouterr().out
    assert [*Secret.objects.order_by("id").values_list("sealed", flat=True)] == before


def test_what_no_key_reads_is_told_and_kept(
    tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ada = User.objects.create_user("ada")
    stored(settings, FIRST, ada, "one")
    stored(settings, SECOND, ada, "two")
    settings.SECRETS_KEY, settings.OLD_SECRETS_KEYS = THIRD, [SECOND]
    prepare(tmp_path)
    said = capsys.readouterr().out
    assert "encrypted 3 stored secrets" in said
    assert "3 stored secrets cannot be read" in said
    settings.OLD_SECRETS_KEYS = [FIRST]
    assert set(readable()) == {"one", "two"}

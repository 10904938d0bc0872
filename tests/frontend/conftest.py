"""A seeded world, and browsers that are logged in."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client, override_settings
from django.utils import timezone
from pytest_django import DjangoDbBlocker, Settings

from jobs.models import Node
from tests.frontend.world import World, make_world
from tests.support.builders import logged_in
from tests.support.shared_rows import rows_shared


@pytest.fixture(scope="module")
def shared_world(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[World, Path]]:
    """Make one world for all tests of a module, which takes longer than most; add its files."""
    files = tmp_path_factory.mktemp("files")
    changed = override_settings(MEDIA_ROOT=str(files))
    with rows_shared(django_db_blocker):
        with changed:
            world = make_world()
        yield world, files


@pytest.fixture
def world(shared_world: tuple[World, Path], db: None, settings: Settings, tmp_path: Path) -> World:
    """Give a test a copy of the world, whose nodes have just been heard of."""
    shared, files = shared_world
    settings.MEDIA_ROOT = str(shutil.copytree(files, tmp_path / "files"))
    Node.objects.exclude(last_seen_at=None).update(last_seen_at=timezone.now())
    return copy.deepcopy(shared)


@pytest.fixture
def ada(world: World) -> Client:
    return logged_in(world.ada)


@pytest.fixture
def ben(world: World) -> Client:
    return logged_in(world.ben)


@pytest.fixture
def admin(world: World) -> Client:
    return logged_in(world.admin)

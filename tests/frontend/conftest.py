"""A seeded world, and browsers that are logged in."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from tests.frontend.world import World, make_world


@pytest.fixture
def world(db: None, settings: Settings, tmp_path: Path) -> World:
    settings.MEDIA_ROOT = str(tmp_path)
    # Passwords of tests need no slow digest.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    return make_world()


def _logged_in(person: object) -> Client:
    client = Client()
    client.force_login(person)  # type: ignore[arg-type]
    return client


@pytest.fixture
def ada(world: World) -> Client:
    return _logged_in(world.ada)


@pytest.fixture
def ben(world: World) -> Client:
    return _logged_in(world.ben)


@pytest.fixture
def admin(world: World) -> Client:
    return _logged_in(world.admin)

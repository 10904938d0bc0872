"""The preview of a policy on the queue page."""

from __future__ import annotations

import re

from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from controlplane.core.policies import POLICIES
from jobs.models import Allocation, Event, Generation
from jobs.selectors.policy_preview import policy_preview
from jobs.services.scheduling.policy import cluster_setting
from tests.frontend.world import World


def test_a_switch_is_previewed_with_its_changes(world: World, admin: Client) -> None:
    moves = policy_preview("weighted_fair", timezone.now()).moves
    page = admin.get("/queue/", {"policy": "weighted_fair"}).content.decode()
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Switch from goodput_fair to weighted_fair?" in text
    assert moves
    for move in moves:
        assert (
            f"#{move.job.pk} {escape(move.job.name)} {move.held} → {move.wanted} accelerators"
            in text
        )


def test_a_preview_changes_nothing(world: World, admin: Client) -> None:
    counted = (Allocation, Generation, Event)
    before = [model.objects.count() for model in counted]
    for name in POLICIES:
        assert admin.get("/queue/", {"policy": name}).status_code == 200
    assert [model.objects.count() for model in counted] == before
    assert cluster_setting().policy == "goodput_fair"


def test_no_preview_without_another_policy(world: World, admin: Client) -> None:
    for name in ("", "goodput_fair", "<b>"):
        assert "preview-title" not in admin.get("/queue/", {"policy": name}).content.decode()

"""Messages survive JSON and refuse what does not fit, by path."""

from __future__ import annotations

import json

import pytest

from controlplane.core.protocol.wire import (
    AcceleratorInfo,
    Member,
    Membership,
    ReductionMode,
    SlotAddress,
    StopCondition,
    StopKind,
    TrainerOrders,
    TrainingSpec,
    decode,
    encode,
)

ORDERS = TrainerOrders(
    spec=TrainingSpec(
        job_id=3,
        name="digits",
        entry_file="job.py",
        code_sha256="ab",
        settings={"width": 8, "rates": [0.1, 0.2]},
        global_batch_size=64,
        num_virtual_nodes=4,
        seed=1,
        reduction=ReductionMode.EXACT,
        stop=StopCondition(kind=StopKind.METRIC, limit=9, metric="val_loss", target=0.5),
    ),
    slot=2,
    accelerator=AcceleratorInfo(index=0, kind="cpu", name="emulated", memory_bytes=1, threads=1),
    membership=Membership(
        generation=4,
        members=(Member(slot=2, node_id=1, accelerator_index=0, virtual_nodes=(0, 1, 2, 3)),),
        leader_slot=2,
        source_slot=None,
        cluster_addresses=(SlotAddress(slot=2, address="10.0.0.1:5000"),),
    ),
    go=True,
)


def test_message_survives_json() -> None:
    assert decode(TrainerOrders, json.loads(json.dumps(encode(ORDERS)))) == ORDERS


def test_unknown_fields_of_a_newer_writer_are_ignored() -> None:
    assert decode(TrainerOrders, encode(ORDERS) | {"later": 1}) == ORDERS


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("slot",), "2", "TrainerOrders.slot must be a whole number, got str '2'"),
        (("slot",), True, "TrainerOrders.slot must be a whole number, got bool True"),
        (("go",), 1, "TrainerOrders.go must be true or false, got int 1"),
        (("spec", "reduction"), "slow", "TrainerOrders.spec.reduction must be one of exact, fast"),
        (("spec", "settings"), [], r"TrainerOrders.spec.settings must be an object"),
        (("membership", "members"), {}, "TrainerOrders.membership.members must be a list"),
        (
            ("membership", "members", 0, "virtual_nodes"),
            ["a"],
            r"members\[0\].virtual_nodes\[0\] must be a whole number",
        ),
        (("spec", "stop", "target"), "x", "TrainerOrders.spec.stop.target must be a number"),
        pytest.param(
            ("spec", "stop", "target"), 10**400, "stop.target is too large: int 1", id="huge"
        ),
    ],
)
def test_ill_typed_field_is_named(path: tuple, value: object, message: str) -> None:
    raw = json.loads(json.dumps(encode(ORDERS)))
    inner = raw
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        decode(TrainerOrders, raw)


def test_missing_field_is_named() -> None:
    raw = encode(ORDERS)
    del raw["spec"]["seed"]
    with pytest.raises(ValueError, match=r"TrainerOrders\.spec\.seed is missing"):
        decode(TrainerOrders, raw)

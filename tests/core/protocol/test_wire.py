"""Messages survive JSON and refuse what does not fit, by path."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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


#: Whatever a line of JSON can hold, numbers beyond every float included.
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**400)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def places_of(message: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """List the paths of everything in an encoded message."""
    entries: list[tuple[str | int, object]] = []
    if isinstance(message, dict):
        entries = list(message.items())
    elif isinstance(message, list):
        entries = list(enumerate(message))
    return [path, *(place for key, entry in entries for place in places_of(entry, (*path, key)))]


@given(ANY_JSON)
@example(10**400)
def test_a_message_with_anything_in_any_place_is_read_or_refused(value: object) -> None:
    whole = json.dumps(encode(ORDERS))
    for place in places_of(json.loads(whole)):
        message = {"": json.loads(whole)}
        owner, key = message, ""
        for step in place:
            owner, key = owner[key], step
        owner[key] = value
        refusal = None
        try:
            decode(TrainerOrders, message[""])
        except ValueError as error:
            refusal = str(error)
        assert refusal is None or refusal.startswith("TrainerOrders")

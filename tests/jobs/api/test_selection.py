"""`selection` of a submission: default, values, refusals, and its way to the trainer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import TrainingSpec, decode, encode
from jobs.api.jobs.submission_request import submission_read
from jobs.exceptions import InvalidInputError
from jobs.models import Job
from jobs.selectors.cluster import remaining_examples
from jobs.selectors.desired_state.state import training_spec
from jobs.selectors.validations import validation_matching, validations_passed
from tests.support.builders import Clients, job_make, node_make, submission_values, validation_make

URL = "/api/v1/jobs/"
EPOCHS = {"kind": "epochs", "limit": 10}
GIVEN = {
    "method": "stale_selective_backprop",
    "beta": 2,
    "stale_every": 4,
    "end": 8,
    "guard": False,
    "control_every": 5,
}
FULL = SelectionSpec(
    method=SelectionMethod.STALE_SELECTIVE_BACKPROP,
    beta=2.0,
    stale_every=4,
    end=8,
    guard=False,
    control_every=5,
)


def _refused(**selection: Any) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as caught:
        submission_read(submission_values(stop=EPOCHS, selection=selection))
    return {name: [*messages] for name, messages in caught.value.fields.items()}


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
def test_a_selection_reaches_the_trainer_and_a_clone(
    kind: str, ada: User, client_of: Clients
) -> None:
    node_make()
    client = client_of(ada)
    values = submission_values(stop=EPOCHS, selection=GIVEN)
    response = client.post(URL, json.dumps(values), content_type=kind)
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    spec = training_spec(job)
    assert spec.selection == FULL
    assert decode(TrainingSpec, json.loads(json.dumps(encode(spec)))) == spec
    read = client.get(f"{URL}{job.pk}/").data
    assert read["selection"]["stale_every"] == 4
    Job.objects.update(status="cancelled", ended_at=timezone.now())
    clone = client.post(f"{URL}{job.pk}/clone/", {"selection": {"beta": 3}}, format="json")
    assert clone.status_code == 201, clone.data
    assert clone.data["selection"] == {**read["selection"], "beta": 3.0}


def test_without_a_selection_every_example_is_trained_on() -> None:
    for more in ({}, {"selection": {"method": "none", "beta": 2}}, {"selection_method": "none"}):
        submission = submission_read(submission_values(stop=EPOCHS, **more))
        assert submission.selection == {}
    assert training_spec(Job(**_columns())).selection is None


def _columns(**more: Any) -> dict[str, Any]:
    values = {
        "num_virtual_nodes": 4,
        "global_batch_size": 32,
        "stop_kind": "epochs",
        "stop_limit": 10,
        "reduction": "exact",
        "task": "train",
        "on_nonfinite": "stop",
    }
    return values | more


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("method", "importance", "Choose one of none, selective_backprop, stale_selective_b"),
        ("beta", 0, "Give a number from 0.1 to 10."),
        ("beta", "nan", "Give a number."),
        ("beta", True, "Give a number."),
        ("history", 4, "Give a whole number from 16 to 65536."),
        ("history", 1.5, "Give a whole number from 16 to 65536."),
        ("stale_every", 1, "Give a whole number from 2 to 100."),
        ("start", 0, "Give a whole number from 1 to 100000000."),
        ("start", 10, "The job has the epochs 0 to 9, so no epoch would select; give at most 9, "),
        ("end", 1, "Give a whole number from 2 to 100000000."),
        ("loss_cap", 100, "Give a number from 0 to 90."),
        ("guard", "perhaps", "Give true or false."),
        ("control_every", 2, "Give a whole number from 3 to 1000."),
        ("gamma", 1, "There is no such field; use "),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, wrong: object, message: str) -> None:
    errors = _refused(**{"method": "selective_backprop", name: wrong})
    (only,) = errors
    assert only == f"selection_{name}"
    assert errors[only][0].startswith(message)


def test_an_end_before_the_start_is_refused() -> None:
    errors = _refused(method="random", start=5, end=5)
    assert errors == {"selection_end": ["Give more than 5, the first epoch that selects."]}


def test_random_selection_has_no_control_epochs() -> None:
    errors = _refused(method="random", control_every=4)
    assert [*errors] == ["selection_control_every"]


@pytest.mark.parametrize("given", ["random", ["random"], 3])
def test_a_selection_that_is_no_object_is_refused(given: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        submission_read(submission_values(stop=EPOCHS, selection=given))
    assert caught.value.fields == {"selection": ["Give an object with method."]}


def test_a_job_that_predicts_refuses_it_by_name() -> None:
    values = {"name": "p", "task": "predict", "code": "def build(s): ...", "global_batch_size": 8}
    assert submission_read(values | {"selection": {"method": "none"}}).selection == {}
    with pytest.raises(InvalidInputError) as caught:
        submission_read(values | {"selection": {"method": "random"}})
    assert list(caught.value.fields) == ["selection_method"]


@pytest.mark.parametrize(
    ("selection", "epoch", "expected"),
    [
        ({}, 0, 1000),
        ({"method": "random", "beta": 1.0}, 0, 100 + 9 * 50),
        ({"method": "random", "beta": 3.0, "start": 2, "end": 6}, 0, 600 + 4 * 25),
        ({"method": "random", "beta": 3.0, "start": 2, "end": 6}, 5, 400 + 25),
        ({"method": "random", "beta": 3.0, "start": 2, "end": 6}, 10, 0),
    ],
)
def test_remaining_examples_are_those_expected_to_be_trained_on(
    selection: dict[str, Any], epoch: int, expected: float
) -> None:
    job = Job(**_columns(selection=selection, epoch=epoch, facts={"num_examples": 100}))
    assert remaining_examples(job, in_epoch=0) == expected


@pytest.mark.parametrize(
    ("measured", "wanted", "fits"),
    [
        ({}, GIVEN, False),
        (GIVEN, {}, False),
        (GIVEN, {"method": "selective_backprop", "control_every": 3}, True),
        (GIVEN, GIVEN | {"control_every": None}, False),
        (GIVEN | {"control_every": None}, GIVEN | {"control_every": 5}, False),
        ({}, {"method": "random"}, True),
    ],
)
def test_a_validation_counts_if_it_tried_losses_of_single_examples(
    measured: dict[str, Any], wanted: dict[str, Any], fits: bool, ada: User
) -> None:
    passed = validation_make(job_make(ada, selection=measured))
    job = job_make(ada, selection=wanted)
    assert (validation_matching(job, validations_passed(job)) == passed) is fits

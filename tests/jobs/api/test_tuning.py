"""`tuning` of a submission: default, values, refusals, and its way to the trainer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import TrainingSpec, decode, encode
from jobs.api.jobs.submission_request import submission_read
from jobs.exceptions import InvalidInputError
from jobs.models import Job
from jobs.selectors.desired_state.state import training_spec
from jobs.selectors.validations import validation_matching, validations_passed
from tests.support.builders import Clients, job_make, node_make, submission_values, validation_make

URL = "/api/v1/jobs/"
EPOCHS = {"kind": "epochs", "limit": 10}
SPACE = {
    "learning_rate": {"low": 0.001, "high": 1, "log": True},
    "momentum": {"low": 0, "high": 0.9},
}
GIVEN = {"space": SPACE, "max_trials": 9, "objective": "val_accuracy", "higher_is_better": True}
FULL = TuningSpec(
    space={
        "learning_rate": TunableRange(low=0.001, high=1.0, log=True),
        "momentum": TunableRange(low=0.0, high=0.9),
    },
    max_trials=9,
    objective="val_accuracy",
    higher_is_better=True,
)
SIZED = TuningSpec(space={"batch_size": TunableRange(low=16.0, high=64.0)})
EXPONENT = TuningSpec(space={"selection_beta": TunableRange(low=0.2, high=5.0)})


def _refused(tuning: Any, **more: Any) -> dict[str, list[str]]:
    with pytest.raises(InvalidInputError) as caught:
        submission_read(submission_values(stop=EPOCHS, tuning=tuning, **more))
    return {name: [*messages] for name, messages in caught.value.fields.items()}


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
def test_a_tuning_reaches_the_trainer_and_a_clone(kind: str, ada: User, client_of: Clients) -> None:
    node_make()
    client = client_of(ada)
    values = submission_values(stop=EPOCHS, tuning=GIVEN)
    response = client.post(URL, json.dumps(values), content_type=kind)
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    spec = training_spec(job)
    assert spec.tuning == FULL
    assert decode(TrainingSpec, json.loads(json.dumps(encode(spec)))) == spec
    read = client.get(f"{URL}{job.pk}/").data
    assert read["tuning"]["space"]["momentum"] == {"low": 0.0, "high": 0.9, "log": False}
    assert read["tuned"] == {
        "num_trials": 0,
        "steps": 0,
        "share": None,
        "values": None,
        "search_end": "",
        "trials": [],
    }
    Job.objects.update(status="cancelled", ended_at=timezone.now())
    clone = client.post(f"{URL}{job.pk}/clone/", {"tuning": {"max_trials": 5}}, format="json")
    assert clone.status_code == 201, clone.data
    assert clone.data["tuning"] == {**read["tuning"], "max_trials": 5}


@pytest.mark.parametrize("name", ["beta", "selection.beta", "history"])
def test_what_is_no_tunable_is_refused_with_those_that_are(name: str) -> None:
    selection = {"method": "selective_backprop", "start": 1}
    space = {**SPACE, name: {"low": 0.5, "high": 3}}
    errors = _refused({"space": space}, selection=selection)
    assert list(errors) == ["tuning_space"]
    (message,) = errors["tuning_space"]
    assert message.startswith(f"tuning.space.{name} is no tunable; choose from learning_rate, ")
    assert "selection_beta" in message
    assert "compare other values by forks of one state, each with its own" in message


@pytest.mark.parametrize(
    "more", [{}, {"tuning": {}}, {"tuning": {"space": {}, "max_trials": 5}}, {"tuning_space": ""}]
)
def test_without_a_space_nothing_is_tuned(more: dict[str, Any]) -> None:
    assert submission_read(submission_values(stop=EPOCHS, **more)).tuning == {}


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("space", "{", "Not valid JSON"),
        ("space", [1], "Give an object with text keys"),
        ("space", {"dropout": {"low": 0, "high": 1}}, "tuning.space.dropout is no tunable; choose"),
        ("space", {"momentum": 0.5}, "tuning.space[momentum] must be an object"),
        ("space", {"momentum": {"low": 0.5}}, "tuning.space[momentum].high is missing"),
        (
            "space",
            {"momentum": {"low": "a", "high": 1}},
            "tuning.space[momentum].low must be a num",
        ),
        (
            "space",
            {"momentum": {"low": 0, "high": 1}},
            "tuning.space.momentum.high must be at most",
        ),
        ("space", {"momentum": {"low": 0, "hi": 1}}, "tuning.space.momentum has 'hi'; give low"),
        ("max_trials", 1, "Give a whole number from 2 to 200."),
        ("max_share", 0.95, "Give a number from 0.01 to 0.9."),
        ("max_branches", 17, "Give a whole number from 2 to 16."),
        ("objective", "\n", "Give 1 to 100 printable"),
        ("retune", "perhaps", "Give true or false."),
        ("gamma", 1, "There is no such field; use "),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, wrong: object, message: str) -> None:
    errors = _refused({**GIVEN, name: wrong})
    (only,) = errors
    assert only == f"tuning_{name}"
    assert errors[only][0].startswith(message), errors


PARALLEL = {"space": SPACE, "parallel": True, "max_parallel": 3, "trial_steps": 40}


def test_parallel_trials_reach_the_job_and_a_clone(ada: User, client_of: Clients) -> None:
    node_make()
    client = client_of(ada)
    made = client.post(URL, submission_values(tuning=PARALLEL), format="json")
    assert made.status_code == 201, made.data
    job = Job.objects.get()
    assert job.tuning_spec == TuningSpec(
        space=FULL.space, parallel=True, max_parallel=3, trial_steps=40
    )
    assert job.tuning_spec.num_kept_states == 0
    clone = client.post(f"{URL}{job.pk}/clone/", {"tuning": {"trial_steps": 60}}, format="json")
    assert clone.status_code == 201, clone.data
    assert clone.data["tuning"] == {**made.data["tuning"], "trial_steps": 60}


@pytest.mark.parametrize(
    ("tuning", "more", "field", "message"),
    [
        ({**PARALLEL, "max_share": 0.5}, {}, "tuning_max_share", "It is of trials in the job"),
        ({**PARALLEL, "retune": False}, {}, "tuning_retune", "leave it out, or leave out tuning.p"),
        ({**GIVEN, "max_parallel": 2}, {}, "tuning_max_parallel", "or give tuning.parallel"),
        ({**PARALLEL, "trial_steps": 25}, {}, "tuning_trial_steps", "Give a multiple of 10"),
        ({**PARALLEL, "trial_steps": 10}, {}, "tuning_trial_steps", "Give a whole number from 20"),
        (
            PARALLEL,
            {"selection": {"method": "random", "start": 1}},
            "tuning_parallel",
            "leave out selection, or tuning.parallel",
        ),
        (
            PARALLEL,
            {"batch_size_min": 32, "batch_size_max": 64},
            "tuning_space",
            "leave out tuning, or batch_size_min",
        ),
    ],
)
def test_what_parallel_trials_cannot_have_is_refused_by_name(
    tuning: dict[str, Any], more: dict[str, Any], field: str, message: str
) -> None:
    errors = _refused(tuning, **more)
    assert list(errors) == [field]
    assert message in errors[field][0]


BATCH = {"batch_size": {"low": 16, "high": 128, "log": True}}


def test_a_tuned_batch_size_reaches_the_job_and_its_bounds() -> None:
    job = Job(**_columns(submission_read(submission_values(stop=EPOCHS, tuning={"space": BATCH}))))
    assert job.tuning_spec is not None
    assert job.tuning_spec.batch_size == TunableRange(low=16.0, high=128.0, log=True)
    assert (job.batch_size_now, job.largest_batch_size) == (job.global_batch_size, 128)
    assert (job.tunes_batch_size, job.adapts_batch_size) == (True, False)


def _columns(submission: Any) -> dict[str, Any]:
    names = ("tuning", "global_batch_size", "num_virtual_nodes")
    return {name: getattr(submission, name) for name in names}


@pytest.mark.parametrize(
    ("tuning", "more", "message"),
    [
        ({}, {"stop": {"kind": "steps", "limit": 100}}, "stop after epochs or at a metric"),
        ({}, {"selection": {"method": "random", "start": 1}}, "leave out batch_size, or selection"),
        ({"parallel": True}, {}, "leave out one of them"),
        ({}, {"batch_size_min": 32, "batch_size_max": 64}, "or batch_size_min and batch_size_max"),
        ({"space": {"batch_size": {"low": 17, "high": 23}}}, {}, "give wider bounds"),
        ({"space": {"batch_size": {"low": 16, "high": 24.5}}}, {}, "needs whole numbers"),
    ],
)
def test_what_a_tuned_batch_size_cannot_have_is_refused_with_the_fix(
    tuning: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        submission_read(
            submission_values(
                num_virtual_nodes=8,
                **{"stop": EPOCHS, "tuning": {"space": BATCH, **tuning}, **more},
            )
        )
    assert list(caught.value.fields) == ["tuning_space"]
    assert message in caught.value.fields["tuning_space"][0]


BETA = {"selection_beta": {"low": 0.2, "high": 5, "log": True}}
SELECTION = {"method": "selective_backprop", "start": 1}


def test_a_tuned_exponent_reaches_the_job_beside_its_selection() -> None:
    submission = submission_read(
        submission_values(stop=EPOCHS, tuning={"space": BETA}, selection=SELECTION)
    )
    job = Job(**_columns(submission), selection=submission.selection)
    assert job.tuning_spec is not None
    assert job.tuning_spec.tunes_selection
    assert job.tuning_spec.space == {"selection_beta": TunableRange(low=0.2, high=5.0, log=True)}
    assert job.selection_spec is not None


@pytest.mark.parametrize(
    ("tuning", "selection", "more", "message"),
    [
        ({}, {"method": "none"}, {}, "give selection.method selective_backprop"),
        ({}, {**SELECTION, "method": "random"}, {}, "give selection.method selective_backprop"),
        ({}, {**SELECTION, "end": 4}, {}, "with selection.end"),
        ({}, {**SELECTION, "control_every": 3}, {}, "with selection.control_every"),
        ({}, SELECTION, {"stop": {"kind": "steps", "limit": 100}}, "stop after epochs"),
        ({"space": {"selection_beta": {"low": 0.0, "high": 5}}}, SELECTION, {}, "at least 0.1"),
        ({"space": BETA | BATCH}, SELECTION, {}, "leave out batch_size, or selection"),
    ],
)
def test_what_a_tuned_exponent_cannot_have_is_refused_with_the_fix(
    tuning: dict[str, Any], selection: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    given = {"stop": EPOCHS, "tuning": {"space": BETA, **tuning}, "selection": selection, **more}
    with pytest.raises(InvalidInputError) as caught:
        submission_read(submission_values(num_virtual_nodes=8, **given))
    assert list(caught.value.fields) == ["tuning_space"]
    assert message in caught.value.fields["tuning_space"][0]


def test_what_cannot_be_tuned_is_refused() -> None:
    adapting = _refused(GIVEN, batch_size_min=32, batch_size_max=64)
    assert "leave out tuning, or batch_size_min" in adapting["tuning_space"][0]
    assert _refused("learning_rate") == {"tuning": ["Give an object with space."]}
    values = {"name": "p", "task": "predict", "code": "def build(s): ...", "global_batch_size": 8}
    assert submission_read(values | {"tuning": {"space": {}}}).tuning == {}
    with pytest.raises(InvalidInputError) as caught:
        submission_read(values | {"tuning": GIVEN})
    assert list(caught.value.fields) == ["tuning_space"]


@pytest.mark.parametrize(
    ("measured", "wanted", "fits"),
    [
        ({}, encode(FULL), False),
        (encode(FULL), {}, False),
        (encode(FULL), encode(FULL) | {"max_trials": 3}, True),
        (encode(FULL), encode(FULL) | {"objective": "val_loss"}, False),
        (encode(SIZED), encode(SIZED) | {"max_trials": 3}, True),
        (encode(SIZED), encode(SIZED) | {"space": BATCH}, False),
        (encode(EXPONENT), encode(EXPONENT) | {"max_trials": 3}, True),
        (encode(FULL), encode(FULL) | {"space": {"momentum": {"low": 0.0, "high": 0.5}}}, False),
    ],
)
def test_a_validation_counts_if_it_tried_these_tunables(
    measured: dict[str, Any], wanted: dict[str, Any], fits: bool, ada: User
) -> None:
    passed = validation_make(job_make(ada, tuning=measured))
    job = job_make(ada, tuning=wanted)
    assert (validation_matching(job, validations_passed(job)) == passed) is fits

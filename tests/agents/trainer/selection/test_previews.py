"""Previews of examples: what counts as an image and as a label, and which ones are sent when."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.selection import previews
from agents.trainer.selection.previews import PreviewReports, preview_of
from controlplane.core.protocol.reported_values import report_read
from controlplane.core.protocol.selection import LABEL_LENGTH
from controlplane.core.protocol.wire import ReportKind, TrainerReport
from jobs.services.reports.selection import png_encode
from tests.support.present import present

GREY = np.array([[0, 15, 0, 0], [0, 5, 0, 0], [0, 3, 0, 0], [0, 0, 0, 0]], np.float32)


def picture(x: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = preview_of(0, (x,))["picture"]
    return found


def pixels(found: dict[str, Any]) -> np.ndarray:
    shape = (found["height"], found["width"], found["channels"])
    return np.frombuffer(base64.b64decode(found["pixels"]), np.uint8).reshape(shape)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_files_hold_their_pixels(channels: int) -> None:
    values = np.random.default_rng(1).integers(0, 256, (5, 7, channels), np.uint8)
    read = tf.io.decode_png(png_encode(5, 7, channels, values.tobytes())).numpy()
    assert read.tolist() == values.tolist()


@pytest.mark.parametrize("image", [GREY, GREY[..., None], (GREY * 100).astype("int32"), GREY - 9])
def test_values_are_stretched_to_the_whole_range(image: np.ndarray) -> None:
    found = present(picture(image[None]))
    expected = [[0, 255, 0, 0], [0, 85, 0, 0], [0, 51, 0, 0], [0, 0, 0, 0]]
    assert pixels(found)[..., 0].tolist() == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((64, 32, 3), (32, 16, 3)),
        ((100, 30, 1), (32, 9, 1)),
        ((33, 33), (32, 32, 1)),
        ((8, 8, 4), (8, 8, 3)),
        ((1000, 4, 1), (32, 1, 1)),
    ],
)
def test_images_shrink_in_proportion(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    found = present(picture(np.random.default_rng(1).normal(size=(1, *shape))))
    assert pixels(found).shape == expected


def test_the_corners_of_a_large_image_stay_in_their_places() -> None:
    image = np.zeros((1, 64, 64, 3), np.uint8)
    image[0, :32, 32:] = [255, 0, 0]
    found = present(picture(image))
    assert pixels(found)[[0, 0, -1, -1], [0, -1, 0, -1], 0].tolist() == [0, 255, 0, 0]


@pytest.mark.parametrize(
    "example",
    [
        np.zeros((1, 64)),
        np.zeros((1, 100, 8)),
        np.zeros((1, 8, 8, 2)),
        np.zeros((1, 2, 2, 3)),
        np.zeros((1, 8, 8), complex),
        np.array(["a text"]),
        np.zeros((1, 3, 8, 8, 3)),
    ],
)
def test_other_arrays_are_no_images(example: np.ndarray) -> None:
    assert picture(example) is None


def test_the_first_input_that_is_an_image_is_shown() -> None:
    found = present(picture({"a": np.zeros((1, 3)), "b": (np.full((1, 5, 7, 1), np.nan),)}))
    assert pixels(found).shape == (5, 7, 1)
    assert not pixels(found).any()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([7]), "7"),
        (np.array([[7.0]]), "7"),
        (np.array([0.25]), "0.25"),
        (np.array([[0, 0, 1.0]]), "2"),
        (np.array([[0.5, 0.5]]), ""),
        (np.array([["cat"]], object), "cat"),
        (np.array([b"caf\xc3\xa9"], object), "café"),
        (np.zeros((1, 8, 8)), ""),
        ({"kind": np.array([3]), "mask": np.zeros((1, 8, 8))}, "kind 3"),
        ((np.array([1]), np.array([2])), "1, 2"),
        (np.array(["long " * 99]), ("long " * 99)[:LABEL_LENGTH]),
    ],
)
def test_labels_are_short_texts(labels: Any, expected: str) -> None:
    assert preview_of(0, (np.zeros((1, 2)), labels))["label"] == expected


def test_each_example_is_sent_when_it_is_new_among_the_most_chosen() -> None:
    reports, read = PreviewReports(), []

    def fetch(indices: np.ndarray) -> tuple[Any, ...]:
        read.append(int(indices[0]))
        if indices[0] == 9:
            raise JobCodeError("unreadable_data", "data.train", "no")
        return np.zeros((1, 8, 8, 1)), indices

    sent = [[one["place"] for one in reports.new(p, fetch)] for p in ([1, 9], [1, 9, 2], [2], [1])]
    assert sent == [[1], [2], [], [1]]
    assert read == [1, 9, 2, 1]


def test_slow_data_do_not_hold_up_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(previews.time, "monotonic", lambda: next(clock) * previews.READ_LIMIT_S)
    reports = PreviewReports()
    sent = [reports.new([1, 2, 3], lambda indices: (np.zeros((1, 2)), indices)) for _ in range(3)]
    assert [[one["place"] for one in found] for found in sent] == [[1], [2], [3]]


def test_the_control_plane_reads_what_trainers_send() -> None:
    sent = [preview_of(5, (GREY[None], np.array([3]))), preview_of(6, (np.zeros((1, 2)),))]
    data = {"epoch": 0, "step": 1, "logs": {}, "most_chosen": [[5, 1]], "previews": sent}
    report = TrainerReport(
        job_id=1, slot=0, generation=1, sequence=0, at=1.0, kind=ReportKind.EPOCH, data=data
    )
    found = report_read(report).data["previews"]
    assert [one["place"] for one in found] == [5, 6]
    assert found[0]["picture"] == sent[0]["picture"] is not None
    assert (found[0]["label"], found[1]) == ("3", {"place": 6, "label": "", "picture": None})

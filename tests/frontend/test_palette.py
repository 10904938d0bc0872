"""The colours of the style sheet, measured: contrast, and how they look to the colour-blind."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import frontend
from jobs.models.jobs import NUM_COLOURS

STATIC = Path(frontend.__file__).parent / "static/frontend"
SHEETS = {
    theme: (STATIC / name).read_text()
    for theme, name in (("light", "app.css"), ("dark", "dark.css"))
}
JOBS = [f"job-{place}" for place in range(NUM_COLOURS)]

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION = {
    "full": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip


def test_text_that_is_not_to_be_selected_is_not_by_safari_either() -> None:
    lines = [line for line in SHEETS["light"].splitlines() if " user-select: none;" in line]
    assert len(lines) > 2
    assert [line for line in lines if "-webkit-user-select: none;" not in line] == []


def _properties(theme: str) -> dict[str, str]:
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", sheet)) for sheet in SHEETS.values()
    )
    return light if theme == "light" else light | dark


def _linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted((float(weights @ _linear(one)), float(weights @ _linear(other))))
    return (high + 0.05) / (low + 0.05)


def _lab(linear: np.ndarray) -> np.ndarray:
    """Oklab coordinates (Ottosson 2020): distances go with what people see."""
    first = np.array(
        [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]
    )  # fmt: skip
    second = np.array(
        [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
         [0.0259040371, 0.7827717662, -0.8086757660]]
    )  # fmt: skip
    return second @ np.cbrt(first @ np.clip(linear, 0, 1))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_the_contrast_that_aa_asks_for(theme: str) -> None:
    colour = _properties(theme)
    grounds = ["surface", "bg", "sunken"]
    pairs = [(text, ground) for text in ("text", "muted", "accent", "bad") for ground in grounds]
    tones = ("good", "warn", "bad", "info", "quiet")
    pairs += [(tone, f"{tone}-soft") for tone in tones]
    pairs += [(text, f"{job}-soft") for job in JOBS for text in ("text",)]
    pairs += [("on-accent", "accent"), ("text", "accent-soft"), ("muted", "accent-soft")]
    pairs += [("good", "surface"), ("muted", "quiet-soft"), ("second", "surface")]
    code = ("text", "accent", "good", "second", "muted")
    pairs += [(text, ground) for text in code for ground in ("sunken", "info-soft")]
    weak = {
        pair: round(ratio, 2)
        for pair in pairs
        if (ratio := _contrast(colour[pair[0]], colour[pair[1]])) < 4.5
    }
    assert not weak


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_no_text_has_a_contrast_of_three(theme: str) -> None:
    colour = _properties(theme)
    shapes = [*JOBS, "line-strong", "focus", "capacity", "accent", "second"]
    weak = {
        name: round(ratio, 2)
        for name in shapes
        if (ratio := _contrast(colour[name], colour["surface"])) < 3
    }
    assert not weak


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_no_two_jobs_look_alike(theme: str, vision: str) -> None:
    colour = _properties(theme)
    seen = {job: _lab(VISION[vision] @ _linear(colour[job])) for job in JOBS}
    distances = {
        (one, other): float(np.linalg.norm(seen[one] - seen[other]))
        for one, other in itertools.combinations(JOBS, 2)
    }
    # More than four times what is just noticeable side by side.
    assert min(distances.values()) >= (0.15 if vision == "full" else 0.09), min(
        distances, key=distances.__getitem__
    )


def test_a_job_has_the_same_hue_in_both_themes() -> None:
    for job in JOBS:
        light, dark = (_lab(_linear(_properties(theme)[job])) for theme in SHEETS)
        cosine = light[1:] @ dark[1:] / np.linalg.norm(light[1:]) / np.linalg.norm(dark[1:])
        assert np.degrees(np.arccos(cosine)) < 15, job


def test_both_themes_define_every_job_colour() -> None:
    for job in JOBS:
        for name in (job, f"{job}-soft"):
            assert f"--{name}:" in SHEETS["dark"]
            assert name in _properties("light")

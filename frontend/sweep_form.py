"""Fields of a sweep in the submission form."""

from __future__ import annotations

from typing import Any

from django import forms
from rest_framework.exceptions import ParseError

from jobs.api.parsers import yaml_read, yaml_write
from jobs.api.sweeps.serializers import sweep_plan
from jobs.exceptions import InvalidInputError
from jobs.models import Sweep
from jobs.sweep_space import JOBS_LIMIT

SWEEP_FIELDS = ("sweep_space", "sweep_num_draws", "sweep_seed", "sweep_max_running")


class SweepForm(forms.Form):
    """Values of settings over which a job is to be swept; empty for a single job."""

    sweep_space = forms.CharField(
        label="Values of settings",
        help_text="One setting a line, in YAML: a list of values, or a range.",
        required=False,
        widget=forms.Textarea(
            attrs={
                "rows": 4,
                "spellcheck": "false",
                "maxlength": 20_000,
                "placeholder": "hidden_units: [32, 64, 128]\n"
                "learning_rate: {low: 0.0001, high: 0.1, scale: log}",
            }
        ),
    )
    sweep_num_draws = forms.CharField(
        label="Random draws",
        help_text="Empty: a grid, all combinations; a range then needs num, such as num: 5.",
        required=False,
        widget=forms.NumberInput(attrs={"min": 1, "max": JOBS_LIMIT, "step": 1}),
    )
    sweep_seed = forms.CharField(
        label="Seed of the draws",
        help_text="The same seed draws the same settings.",
        required=False,
        widget=forms.NumberInput(attrs={"min": 0, "step": 1}),
    )
    sweep_max_running = forms.CharField(
        label="Most jobs at once",
        help_text="The others wait until one ends.",
        required=False,
        widget=forms.NumberInput(attrs={"min": 1, "max": JOBS_LIMIT, "step": 1}),
    )

    def sweep_plan(self) -> dict[str, Any] | None:
        """Return the plan of a sweep; None without values of settings.

        Raises:
            InvalidInputError: they are no YAML, or `sweep_plan` refuses them.
        """
        text = self.cleaned_data["sweep_space"].strip()
        if not text:
            return None
        try:
            space = yaml_read(text.encode())
        except ParseError as error:
            raise InvalidInputError.of(sweep_space=str(error.detail)) from None
        if not isinstance(space, dict):
            text = "Give a setting and its values a line, such as hidden_units: [32, 64]."
            raise InvalidInputError.of(sweep_space=text)
        others = {
            name.removeprefix("sweep_"): value
            for name in SWEEP_FIELDS[1:]
            if (value := self.cleaned_data[name].strip())
        }
        return sweep_plan({"space": space, **others})


def sweep_values(sweep: Sweep) -> dict[str, Any]:
    """Return the form's values of a sweep like another one."""
    return {
        "name": sweep.name,
        "sweep_space": yaml_write(sweep.space, is_inline=True).rstrip(),
        "sweep_num_draws": sweep.num_draws or "",
        "sweep_seed": sweep.seed,
        "sweep_max_running": sweep.max_running,
    }

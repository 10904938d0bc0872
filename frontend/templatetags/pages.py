"""Template tags and filters of the pages: status pills, colours, number formats."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import template
from django.forms import BoundField
from django.template.context import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from controlplane.core.values.explanations import end_hidden
from controlplane.core.values.lifecycle import SCHEDULABLE_JOB_STATUSES, JobStatus, NodeStatus
from controlplane.core.values.tiers import Tier
from frontend.choices import SYSTEM, ZONES, Theme, theme_of, zone_of
from frontend.figures.parts import Figure
from frontend.policy import stream_address
from frontend.text.python_code import Part, python_parts
from jobs.models import Job, Node, NotificationChannel, Replay, ReplayStatus
from jobs.models.notifications import NOT_CONFIRMED, PAUSED_BY_OWNER
from jobs.selectors.access import Person, text_for
from jobs.selectors.code_text import CodeText
from jobs.selectors.estimates.memory import size_text
from jobs.selectors.estimates.nonfinite import loss_nonfinite, nonfinite_warning
from jobs.selectors.settings_values import value_text

register = template.Library()
register.filter(end_hidden)

_JOB_TONES = {
    JobStatus.VALIDATING: "info pill-ring",
    JobStatus.INVALID: "bad",
    JobStatus.PENDING: "warn",
    JobStatus.STARTING: "info",
    JobStatus.RUNNING: "good",
    JobStatus.PREEMPTING: "warn pill-ring",
    JobStatus.PAUSED: "quiet pill-ring",
    JobStatus.FINISHED: "quiet",
    JobStatus.FAILED: "bad",
    JobStatus.CANCELLED: "quiet pill-ring",
}
_NODE_TONES = {
    NodeStatus.ONLINE: "good",
    NodeStatus.CORDONED: "warn",
    NodeStatus.DRAINING: "warn pill-ring",
    NodeStatus.MAINTENANCE: "warn pill-ring",
    NodeStatus.QUARANTINED: "bad",
    NodeStatus.LOST: "bad",
}
_TIER_TONES = {Tier.URGENT: "info", Tier.IDLE: "ring"}
_REPLAY_TONES = {
    ReplayStatus.WAITING: "warn",
    ReplayStatus.RUNNING: "info pill-ring",
    ReplayStatus.DONE: "good",
    ReplayStatus.FAILED: "bad",
    ReplayStatus.CANCELLED: "quiet pill-ring",
}
#: Pages without a menu entry of their own, by the entry marked as current for them.
_LED_TO = {
    "jobs": ("job", "compare", "job_copy", "sweeps", "sweep"),
    "overview": ("what_if", "replay", "timeline"),
    "nodes": ("node", "maintenance"),
}
#: Placeholder for an unknown number.
NOTHING = TO = "\N{EN DASH}"
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@register.simple_tag(takes_context=True)
def stream_url(context: Context) -> str:
    """Return the address of the event stream; empty if none is served."""
    request = context.get("request")
    return stream_address(request) if request else ""


@register.simple_tag(takes_context=True)
def theme_now(context: Context) -> Theme:
    """Return the theme that the browser has chosen."""
    request = context.get("request")
    return theme_of(request) if request else SYSTEM


@register.simple_tag(takes_context=True)
def zone_now(context: Context) -> str:
    """Return the name of the time zone that the browser has chosen."""
    request = context.get("request")
    return zone_of(request) if request else "browser"


@register.simple_tag
def zones() -> dict[str, str]:
    """Return the time zones to choose from: name -> label."""
    return ZONES


@register.simple_tag(takes_context=True)
def nav_item(context: Context, name: str, text: str) -> SafeString:
    """Link a page; mark the link if the page or one of its subpages is current."""
    request = context.get("request")
    match = getattr(request, "resolver_match", None)
    here = match.url_name if match else ""
    is_current = here == name or here in _LED_TO.get(name, ())
    current = mark_safe(' aria-current="page"') if is_current else ""
    return format_html('<li><a href="{}"{}>{}</a></li>', reverse(name), current, text)


@register.simple_tag
def status_pill(job: Job) -> SafeString:
    """Render a job's status; a job preempted for a pause shows as "pausing"."""
    tone = _JOB_TONES[JobStatus(job.status)]
    text = "pausing" if job.status == JobStatus.PREEMPTING and job.pause_requested else job.status
    return format_html('<span class="pill pill-{}">{}</span>', tone, text)


@register.simple_tag
def tier_pill(job: Job) -> SafeString:
    """Render a job's tier, unless it is the normal one."""
    tone = _TIER_TONES.get(Tier(job.tier))
    if tone is None:
        return SafeString("")
    return format_html('<span class="pill pill-{}">{}</span>', tone, job.tier)


@register.simple_tag
def replay_pill(replay: Replay) -> SafeString:
    """Render a replay's status."""
    tone = _REPLAY_TONES[ReplayStatus(replay.status)]
    return format_html('<span class="pill pill-{}">{}</span>', tone, replay.status)


@register.simple_tag
def node_pill(node: Node) -> SafeString:
    """Render a node's status, and its present or next maintenance."""
    status = node.shown_status
    pill = format_html('<span class="pill pill-{}">{}</span>', _NODE_TONES[status], status.value)
    start, end = node.maintenance_from, node.maintenance_until
    if start is None:
        return pill
    is_begun = start <= timezone.now()
    verb, at = ("until", end) if is_begun else ("from", start)
    if status is not NodeStatus.MAINTENANCE:
        verb = f"maintenance {verb}"
    return format_html('{} <span class="note note-near">{} {}</span>', pill, verb, when(at))


@register.simple_tag
def job_link(job: Job) -> SafeString:
    """Link a job by number and name, with its colour before it."""
    return format_html(
        '<span class="job-name"><span class="swatch c{}"></span>'
        '<a href="{}">#{} <bdi>{}</bdi></a></span>',
        job.colour,
        reverse("job", args=[job.pk]),
        job.pk,
        job.name,
    )


@register.simple_tag
def when(at: Any, as_: str = "clock") -> SafeString:
    """Render a time in UTC; the page's script converts it to the reader's time zone.

    Args:
        as_: "clock"; "minute", without seconds; "dated", with the day today too; "age".
    """
    if at is None:
        return format_html('<span class="muted">{}</span>', "not yet")
    return format_html(
        '<time datetime="{}" data-as="{}">{} UTC</time>',
        at.isoformat(),
        as_,
        at.strftime("%Y-%m-%d %H:%M:%S"),
    )


@register.simple_tag
def code_lines(code: CodeText) -> SafeString:
    """Render lines of code with numbers that link to them; the numbers are no text to copy."""
    html = (
        '<span class="code-line" id="L{0}"><a href="#L{0}" data-line="{0}" tabindex="-1"'
        ' aria-label="Line {0}"></a>{1}\n</span>'
    )
    is_python = code.name.endswith(".py")
    parts = python_parts(code.lines) if is_python else itertools.repeat(())
    lines = (_coloured(line, of_line) for line, of_line in zip(code.lines, parts, strict=False))
    return format_html_join("", html, enumerate(lines, start=1))


def _coloured(line: str, parts: Sequence[Part]) -> SafeString:
    """Render a line with its parts marked by their kinds."""
    ends = [0, *(end for _, end, _ in parts)]
    coloured = format_html_join(
        "",
        '{}<span class="py-{}">{}</span>',
        (
            (line[before:start], kind, line[start:end])
            for before, (start, end, kind) in zip(ends, parts, strict=False)
        ),
    )
    return format_html("{}{}", coloured, line[ends[-1] :])


@register.simple_tag
def figure_table(figures: Mapping[str, Figure] | str, name: str) -> SafeString:
    """Render the head and the body of a chart's table; empty where the script is to fill it."""
    columns: list[str] = []
    rows: list[list[Any]] = []
    if figures and not isinstance(figures, str) and name in figures:
        columns, rows = figures[name]["table"]["columns"], figures[name]["table"]["rows"]
    head = format_html_join("", '<th scope="col">{}</th>', ((column,) for column in columns))
    body = format_html_join("", "<tr>{}</tr>", ((_cells(columns, row),) for row in rows))
    return format_html("<thead><tr>{}</tr></thead><tbody>{}</tbody>", head, body)


@register.simple_tag
def figure_note(figures: Mapping[str, Figure] | str, name: str) -> str:
    """Return what a chart says of itself and its table, which the script fills in otherwise."""
    if not figures or isinstance(figures, str) or name not in figures:
        return ""
    table = figures[name]["table"]
    left = table.get("num_left_out")
    left_out = f"The first {left} rows are left out." if left else ""
    return " ".join(filter(None, (figures[name].get("note"), table.get("note"), left_out)))


def _cells(columns: list[str], row: list[Any]) -> SafeString:
    """Render the cells of a row; a column "Time" has milliseconds since the epoch."""
    cells = (
        when(datetime.datetime.fromtimestamp(value / 1000, datetime.UTC))
        if column == "Time"
        else value
        for column, value in zip(columns, row, strict=True)
    )
    return format_html_join("", "<td>{}</td>", ((cell,) for cell in cells))


@register.simple_tag
def described(field: BoundField) -> SafeString:
    """Render a form field's widget, linked to its help and error texts for screen readers."""
    attributes: dict[str, str | bool] = {
        "aria-describedby": f"{field.auto_id}_help {field.auto_id}_error"
    }
    if not field.help_text:
        attributes = {"aria-describedby": f"{field.auto_id}_error"}
    if field.errors:
        attributes["aria-invalid"] = "true"
    return field.as_widget(attrs=attributes)


@register.filter
def readable(text: str, person: Person) -> str:
    """Return a stored text as a person may read it."""
    return text_for(person, text)


@register.filter
def why(job: Job, person: Person) -> str:
    """Return the reason of a job's state; the policy's reason while the job is schedulable."""
    reasons = (job.status_reason, job.policy_reason)
    if job.status in SCHEDULABLE_JOB_STATUSES:
        reasons = (job.policy_reason, job.status_reason)
    return readable(next(filter(None, reasons), _WITHOUT_REASON.get(job.status, "")), person)


_WITHOUT_REASON = {
    JobStatus.VALIDATING.value: "Its code is being built once on a node.",
    JobStatus.PENDING.value: "The next allocation cycle decides about it.",
    JobStatus.PAUSED.value: "Somebody paused it; resume it to put it back into the queue.",
}


#: Field of a submission that is at fault -> its words; other fields have their names.
_FAULTS = {
    "code": "its code",
    "code.build": "its code",
    "data.train": "its training data",
    "data.validation": "its validation data",
    "forked_from": "the job that it was forked from",
}


@register.filter
def pause_text(channel: NotificationChannel) -> str:
    """Return that a channel is paused, with the reason unless its owner paused it."""
    reason = channel.paused_reason
    if reason == NOT_CONFIRMED:
        return "Not confirmed"
    return "Paused" if reason == PAUSED_BY_OWNER else f"Paused: {reason}"


@register.filter
def fault_text(job: Job) -> str:
    """Return what is at fault in a failed or invalid job, in words; empty if nothing of it is."""
    if job.status == JobStatus.INVALID and job.status_code == "timeout":
        return "its validation took too long"
    field = job.error_field
    return _FAULTS.get(
        field, field.replace("num_", "number of ").replace("_", " ").replace(".", " ")
    )


@register.filter
def compact(value: float | None) -> str:
    """Format a number with three figures: 1234567 -> "1.23 M"."""
    if value is None:
        return NOTHING
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g}"


@register.filter
def file_size(value: float | None) -> str:
    """Format a number of bytes, in the same units everywhere: 1500 -> "1.5 kB"."""
    return NOTHING if value is None else size_text(value)


@register.filter
def seconds_text(value: float | None) -> str:
    """Format seconds for readers: 0.0123 -> "12 ms", 75 -> "1 min 15 s", 300 -> "5 min"."""
    if value is None:
        return NOTHING
    if 0 < value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s" if value else "0 s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min")) if hours else ((minutes, "min"), (seconds, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


@register.filter
def ranges(numbers: Iterable[int]) -> str:
    """Shorten ascending numbers: (0, 1, 2, 5) -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}{TO}{high}" for low, high in runs)


@register.filter
def decimals(value: Any) -> str:
    """Format a loss or metric: four decimals, or scientific if very small or large."""
    if value is None or value == "":
        return NOTHING
    if not isinstance(value, int | float):
        return str(value)
    if value and not 0.001 <= abs(value) < 100_000:
        return f"{value:.3e}"
    return f"{value:.4f}"


@register.filter
def zipped(values: Iterable[Any], others: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return pairs of two sequences of the same length."""
    return list(zip(values, others, strict=True))


@register.filter
def setting_text(value: Any) -> str:
    """Format a setting's value; a dash where a job lacks it."""
    return NOTHING if value is None or value == "" else value_text(value)


@register.filter
def loss_text(job: Job) -> str:
    """Format a job's newest loss."""
    state = loss_nonfinite(job)
    return decimals(job.loss) if state is None else state.value


@register.filter
def warning(job: Job) -> str:
    """Describe a job's values that are not finite now; empty if there are none."""
    return nonfinite_warning(job)


@register.filter
def separated(value: int) -> str:
    """Format a whole number with commas between thousands."""
    return f"{value:,}"


@register.filter
def per(total: int, parts: int) -> str:
    """Format the number of examples per part: 10 over 4 -> "2-3"."""
    low, rest = divmod(total, parts)
    return f"{low}{TO}{low + 1}" if rest else str(low)


@register.filter
def times(number: int) -> range:
    """Return a range of `number` for loops, at most 64."""
    return range(min(number, 64))


@register.filter
def missing(job: Job, held: int) -> range:
    """Return a range of the accelerators that a job could still use, for loops, at most 64."""
    return range(max(0, min(job.max_accelerators, 64) - held))

"""Reasons for the decisions of policies, as data, and the sentence for each code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

#: Relative gains below this are not reported.
MIN_REPORTED_GAIN = 0.005


@dataclass(frozen=True)
class Reason:
    """Reason for the accelerators that a job holds or waits for; `str` renders the sentence.

    Attributes:
        code: key of `TEXTS`.
        fields: values of the text: numbers, names, nested reasons, or tuples of reasons. None
            leaves a part out. Names ending in `_s` are durations in seconds; `start_s` is a pair.
    """

    code: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        text: str | None = self.__dict__.get("_text")
        if text is None:  # parts of reasons are common to many jobs
            shown = {name: _shown(name, value) for name, value in self.fields.items()}
            text = self.__dict__["_text"] = TEXTS[self.code].format_map(shown)
        return text


def begins(code: str) -> str:
    """Return the text of a code up to its first field, to find its sentences among stored ones."""
    return TEXTS[code].partition("{")[0]


#: Fields with the id of a job.
JOB_FIELDS = frozenset({"blocker", "job", "winner"})
_JOB = re.compile(r"\bjob (\d+)\b")
_HIDDEN_JOB = re.compile(r"(another user's job|its owner's other job) \d+", re.IGNORECASE)
#: `goodput_end` with `goodput_late`.
_END = re.compile(r"; done in about [\d.]+ \w+(?:, (.+? times as long))?")


def others_jobs_named(
    text: str, job_id: int, groups: Mapping[int, tuple[int | None, int | None]]
) -> str:
    """Return a rendered reason of a job in which jobs that its readers may not see are called so.

    Others' jobs are "another user's job N". In a job of a project, which its members read, those
    of the same owner outside the project are "its owner's other job N".

    Args:
        groups: job -> its owner, and its project if any.
    """
    if "job " not in text:
        return text
    user, project = groups.get(job_id, (None, None))

    def named(found: re.Match[str]) -> str:
        other, others_project = groups.get(int(found[1]), (None, None))
        if other != user:
            return f"another user's {found[0]}"
        is_seen = project is None or others_project == project
        return found[0] if is_seen else f"its owner's other {found[0]}"

    return _JOB.sub(named, text)


def others_jobs_hidden(text: str) -> str:
    """Return a text without the numbers of jobs that some of its readers may not see."""
    return _HIDDEN_JOB.sub(r"\1", text)


def end_hidden(text: str) -> str:
    """Return a text without the policy's forecast of the end, for where a measured one stands."""
    return _END.sub(lambda found: f"; takes {found[1]}" if found[1] else "", text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which ends in s unless there is one: `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(part: float, digits: int = 0) -> str:
    """Format a part of one, as numbers before any other unit: `27 %`."""
    return f"{100.0 * part:.{digits}f} %"


def reason(code: str, /, **fields: Any) -> Reason:
    return Reason(code, fields)


def _shown(name: str, value: Any) -> Any:
    """Return a field in the form in which it is put into the text."""
    if value is None:
        return ""
    if isinstance(value, Reason):
        return str(value)
    if name in JOB_FIELDS:
        return f"job {value}"
    if name == "start_s":
        return durations(*value)
    if isinstance(value, tuple):
        return _SEPARATORS.get(name, "; ").join(map(str, value))
    if name.endswith("_s"):
        return duration(value)
    if name in ("jobs", "nodes", "accelerators", "reports"):
        return counted(value, name[:-1])
    if name in ("part", "received", "fraction"):
        return percent(value)
    if name == "gain":
        return f"{percent(value)} faster" if value < 0.995 else f"{1.0 + value:.2g} times as fast"
    if name == "most":
        return value or "none"
    if name == "goodput":
        return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"
    return value


def duration(seconds: float) -> str:
    """Format seconds, coarsely enough that the text does not change every few seconds."""
    if seconds < 90.0:
        return f"{max(round(seconds, -1), 10.0):.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"


def durations(least_s: float, most_s: float) -> str:
    """Format a range of seconds, as a single duration where both ends look alike."""
    least, most = duration(least_s), duration(most_s)
    if least == most:
        return most
    number, unit = least.split()
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


_SEPARATORS = {"have": ", ", "holders": ", ", "kinds": "", "plans": " and "}

#: Code -> text with the fields of the reason.
TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "expected_start": "Expected to start in about {start_s}.",
        "start_too_wide": "No start is estimated yet: the range would be too wide.",
        "start_unknown": "No start is estimated yet: the ends of some jobs are not known.",
        "cannot_start": "Cannot start: needs {accelerators} of one accepted kind, nodes that "
        "take work have {most}. No other job waits for it.",
        "cordoned": "Stays on {accelerators} and is not resized: {count} of them on nodes "
        "that take no new work.",
        "cordoned_all": "Stays on {accelerators} and is not resized while nothing new is placed "
        "there.",
        "cordon_waits": "Waits for {accelerators} at once: too few are left beside those of {jobs} "
        "on nodes that take no new work, where nothing is resized.",
        "maintenance_waits": "Waits for {accelerators} of one accepted kind: nodes that "
        "take work have {most} until {until}, when maintenance ends. No other job waits for it.",
        "maintenance_note": "{own} Maintenance until {until} keeps {accelerators} that it "
        "accepts from new work.",
        "sweep_waits": "Waits for another job of sweep {sweep} to end: it is behind {jobs}, and "
        "the sweep runs at most {limit} at once.",
        "sweep_paused": "Waits until sweep {sweep} is resumed ({jobs} waiting).",
        # changes and prospects, for several policies
        "keeps": "Keeps {given} of {capacity} {kind}",
        "grown": "Is given {given} {kind} instead of {before}{cause}",
        "shrunk": "Is cut from {before} to {given} {kind}{cause}",
        "given": "Is given {given} of {capacity} {kind}",
        "changes_kind": "Moves from {from_count} {from_kind} to {given} of {capacity} {kind}",
        "for_job": " for {winner}",
        "stopped": "Was stopped{cause}. ",
        "free": "{free} of {capacity} {kind} free",
        "left": "{free} of {capacity} {kind} left",
        "parts": "{parts}.",
        "all_usable": "all it can use",
        "speed_unknown": "its speed is not known yet",
        "done_in": "done in about {end_s}",
        "holders": "Waits for {wish} of kind {kind}; {held} of {capacity} held by {jobs}{higher}",
        "more": "{count} more",
        "higher": ", {count} by jobs of higher priority",
        "all_higher": " of higher priority",
        # tiers
        "tier_shares": "{own}{lost} Higher tiers come first: {holders} got {have}, and {tier} jobs "
        "share what is left.",
        "tier_waits": "{stopped}Waits for {accelerators} of one kind: higher tiers come first, "
        "{holders} got {have}, and {tier} jobs share what is left.",
        "tier_lost": " {count} of the {before} accelerators that it held went to higher tiers.",
        "tier_lost_all": " Its {accelerators} went to higher tiers.",
        "tier_taken": "{count} of {capacity} {kind}",
        "tier_holders": "{holders}{more}",
        "tier_holder": "{job} ({tier})",
        "tier_more": " and {count} more",
        # projects
        "quota_own": "{own} {note}",
        "quota_note": "Only its {whose} is counted here, with {accelerators} now{guaranteed}"
        "{ceiling}{kinds}.",
        "quota_kind": "; {given} of kind {kind}{guaranteed}{ceiling}",
        "quota_guaranteed": ", {count} guaranteed",
        "quota_limit": ", at most {count}",
        "quota_needs": "Waits for {accelerators} at once.",
        "quota_taken": "Jobs set apart by a guarantee or a limit, with {accelerators}, are not "
        "counted here.",
        "quota_small": "Waits for {accelerators}: the limit of its {whose} leaves {limit}.",
        # shares by user
        "by_user": "{own} {note}",
        "user_share": "Shares go to users first: its owner has a claim of {claim:g} of {total:g} "
        "among {num_users} users{divided}.",
        "user_divided": ", divided among {number} jobs by priority",
        "user_withheld": "Waits for {needed} of kind {kind}: the minima of its owner's other jobs "
        "take up the owner's share of {limit}.",
        # policies of a queue
        "queue_holds": "Holds its full demand of {count} of kind {kind}.",
        "queue_keeps": "Keeps {count} of kind {kind}: its full demand would be {demand}, but a "
        "queue leaves what runs as it is.",
        "queue_behind": "Waits in place {place} behind {blocker}, which {ahead}; {have}.",
        "queue_earlier": "arrived earlier",
        "queue_higher": "is of higher or equal priority",
        "queue_next": "Waits for {accelerators} at once, next in the queue; {have}.",
        # srtf
        "srtf_holds": "Gets its full demand of {count} of {capacity} {kind}: {end}, {jobs} would "
        "end sooner.",
        "srtf_waits": "Waits for {count} of kind {kind}, its full demand: {have}, the rest goes "
        "to {jobs} before it; {once}{end}.",
        "srtf_once": "once started ",
        "srtf_trial": "it has {trial:.0f} s to show how fast it goes",
        "srtf_unknown": "how long it will take is not known",
        "srtf_end": "it would end in {end_s}",
        # tiresias
        "tiresias_holds": "Holds its full demand of {count} of {capacity} {kind}: {place}.",
        "tiresias_waits": "Waits for {accelerators} at once, {have} by those before it: {place}.",
        "tiresias_place": "place {place} of the {queue} queue, {hours:.1f} accelerator-hours used "
        "(the second begins at {threshold:.0f})",
        # optimus
        "optimus_waits": "Waits for {needed} of kind {kind}: {held} of {capacity} held by {jobs} "
        "that came earlier or need fewer.",
        "optimus_most": "Gets {count} of {capacity} {kind}, the most it can have: about {end_s} "
        "are left.",
        "optimus_unknown": "Gets {count} of {capacity} {kind}: how long it takes there is not "
        "known.",
        "optimus_no_gain": "Gets {count} of {capacity} {kind}: about {end_s} are left, one more "
        "would not shorten that.",
        "optimus_gain": "Gets {count} of {capacity} {kind}: about {end_s} are left, one more "
        "would save {gain_s}, less than it saves others.",
        # weighted_fair
        "weighted_share": "Gets {count} of {capacity} {kind}{bound}: weight {weight:g} of "
        "{total_weight:g} among {running} running.",
        "weighted_most": ", all it can use",
        "weighted_least": ", its minimum",
        "weighted_waits": "Waits for {needed} of kind {kind}: {held} of {capacity} held by "
        "{jobs}{higher}{aged}.",
        "weighted_aged": "; waiting {waited_s} has raised its weight from {weight:g} to "
        "{aged_weight:.0f}",
        # slaq
        "slaq_waits": "Waits for {needed} of kind {kind}: {held} of {capacity} held by {jobs} "
        "with more to gain. It has waited {waited_s}.",
        "slaq_fair": "Gets {count} of {capacity} {kind}, its fair share among {jobs}: its loss "
        "cannot be predicted from {reports}, or its speed is not known yet.",
        "slaq_nonfinite": "Gets {count} of {capacity} {kind}: its loss is not finite, so that no "
        "accelerator lowers it.",
        "slaq_gain": "Gets {count} of {capacity} {kind}: its loss is expected to fall by "
        "{fall:.3g} in {epoch:.0f} s, {part} of its largest change so far; {fewer}.",
        "slaq_fewer": "on {count} it would be {fall:.3g}",
        "slaq_least": "that is its minimum",
        # pollux
        "pollux_waits": "{stopped}{holders}; no way to start it was found that makes the mean "
        "speedup of {jobs} higher than {mean:.2g}.",
        "pollux_moves": "Moves {given} {kind} from {before} to {nodes}{cause}",
        "pollux_change": "{change}, on {nodes}",
        "pollux_speed": "{after:.2f} times as fast as on its fair share of {fair}{before}",
        "pollux_before": ", {speedup:.2f} before",
        "pollux_mean": "the mean speedup of {jobs} goes from {before:.2g} to {after:.2g}",
        # gavel
        "gavel_holds": "Gets {count} of {capacity} {kind} for this round, {left:.0f} s more: it is "
        "to have {plans} and has had {received} there.",
        "gavel_waits": "Waits for {count} of kind {kind}: {used} of {capacity} are with jobs "
        "further behind; it is to have {plans}, has had {received}, and the next round is in "
        "{left:.0f} s.",
        "gavel_plan": "{fraction} of the time on {count} {kind}",
        # sia
        "sia_goodput": "{goodput} useful examples/s",
        "sia_most": "nothing that it may have now is faster",
        "sia_faster": "{count}{kind} would be {gain}, {obstacle}",
        "sia_kind": " {kind}",
        "sia_needed": "but others need them more",
        "sia_resizes": "which is not worth a resize ({resizes} so far)",
        "sia_waits": "{stopped}{holders}{way}.",
        "sia_way": "; {job} would have to {change}, at a cost of {cost:.2g} where the "
        "start would bring {worth:.2g}",
        "sia_stop": "stop",
        "sia_shrink": "go from {before} to {given}",
        # goodput_fair
        "goodput_moves": "Moves to {given} of {capacity} {kind}",
        "goodput_places": "Keeps {given} of {capacity} {kind}, but moves{cause}",
        "goodput_gathers": " from {before} to {nodes}",
        "goodput_room": " to other nodes, from which all jobs together gain",
        "goodput_measures": "Moves to {given} of {capacity} {kind} to measure its speed",
        "goodput_tries": "Tries {given} of {capacity} {kind} to measure its speed, as there are "
        "idle ones",
        "goodput_faster": ", on which it is {gain}",
        "goodput_cluster": ": all jobs together are {gain}",
        "goodput_for_job": " for {winner}{because}{cluster}",
        "goodput_priority": ", which has the higher priority",
        "goodput_sooner": ", which should end sooner",
        "goodput_others": "{count} would be {gain}, but other jobs gain more from these "
        "accelerators",
        "goodput_not_yet": "{count} would be {gain}, which does not pay for a change now",
        "goodput_changed": "{count} would be {gain}, too little for another change "
        "after {changes} so far",
        "goodput_no_faster": "{count} would make it no faster",
        "goodput_end": "done in about {end_s}{late}",
        "goodput_late": ", {fairness:.1f} times as long as alone on its share",
        "goodput_rest": "no other job gains more from them",
        "goodput_waits": "{stopped}Waits for {wish} of kind {kind}; {held} of {capacity} held by "
        "{jobs}{why}{higher}{largest}.",
        "goodput_gains": " with more to gain from them",
        "goodput_turns": " with more to gain from them, or whose turn it is",
        "goodput_begun": ", some of which have just begun or end soon",
        "goodput_unknown": ", none of which is stopped yet for a job of unknown speed",
        "goodput_holder": "{job}",
        "goodput_gains_one": ", which has more to gain from them",
        "goodput_turns_one": ", which has more to gain from them, or whose turn it is",
        "goodput_begun_one": ", which has just begun or ends soon",
        "goodput_unknown_one": ", which is not stopped yet for a job of unknown speed",
        "goodput_higher_one": ", and is of higher priority",
        "goodput_kept": "{stopped}Waits for {wish} of kind {kind}: {free} of {capacity} idle, "
        "but kept for {job}, which waits for more until others may be stopped.",
        "goodput_largest": "; {job} holds {count}",
    }
)

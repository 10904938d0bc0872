"""The sentence of every reason that a policy can give."""

from __future__ import annotations

from string import Formatter

import pytest

from controlplane.core.values.explanations import TEXTS, reason

#: A value for each field of the texts.
FIELDS = {
    "tier": "normal",
    "lost": None,
    "more": reason("tier_more", count=2),
    "after": 1.5,
    "aged": None,
    "aged_weight": 12.4,
    "ahead": reason("queue_earlier"),
    "because": reason("goodput_sooner"),
    "before": 3,
    "blocker": 7,
    "bound": None,
    "capacity": 8,
    "cause": reason("for_job", winner=7),
    "change": reason("sia_stop"),
    "changes": 45,
    "cluster": reason("goodput_cluster", gain=0.25),
    "ceiling": reason("quota_limit", count=6),
    "claim": 100.0,
    "cost": 2.5,
    "count": 2,
    "demand": 6,
    "divided": reason("user_divided", number=4),
    "end": reason("srtf_end", end_s=600.0),
    "end_s": 600.0,
    "epoch": 3.0,
    "fair": 4,
    "fairness": 1.26,
    "fall": 0.0125,
    "fewer": reason("slaq_least"),
    "fraction": 0.5,
    "free": 1,
    "from_count": 2,
    "from_kind": "cpu",
    "gain": 0.25,
    "gain_s": 60.0,
    "given": 4,
    "goodput": 1234.5,
    "guaranteed": reason("quota_guaranteed", count=2),
    "have": tuple(
        reason("free", free=n, capacity=8, kind=kind) for n, kind in ((0, "a"), (1, "b"))
    ),
    "held": 6,
    "higher": None,
    "holders": "Waits",
    "hours": 16.04,
    "job": 7,
    "jobs": 1,
    "kind": "gpu",
    "kinds": (reason("quota_kind", given=1, kind="a100", guaranteed=None, ceiling=None),),
    "largest": reason("goodput_largest", count=4, job=7),
    "late": None,
    "left": 120.0,
    "limit": 3,
    "mean": 1.25,
    "most": 4,
    "needed": 5,
    "accelerators": 5,
    "nodes": 2,
    "note": reason("user_divided", number=4),
    "num_users": 2,
    "number": 4,
    "obstacle": reason("sia_needed"),
    "once": None,
    "own": reason("queue_earlier"),
    "part": 0.12,
    "parts": (reason("all_usable"), reason("done_in", end_s=7200.0)),
    "place": 1,
    "plans": tuple(reason("gavel_plan", fraction=0.5, count=n, kind="a") for n in (1, 2)),
    "queue": "first",
    "received": 0.25,
    "reports": 4,
    "resizes": 3,
    "running": 3,
    "speedup": 0.75,
    "start_s": (120.0, 300.0),
    "stopped": reason("stopped", cause=None),
    "sweep": 6,
    "threshold": 16.0,
    "total": 200.0,
    "total_weight": 7.0,
    "trial": 60.0,
    "until": "2026-03-02 20:00 UTC",
    "used": 6,
    "waited_s": 30.0,
    "way": None,
    "weight": 2.0,
    "winner": 7,
    "why": reason("goodput_gains"),
    "worth": 0.25,
    "wish": reason("more", count=2),
    "whose": "project",
}

#: Code -> sentence with these values.
SENTENCES = {
    "cannot_start": (
        "Cannot start: needs 5 accelerators of one accepted kind, nodes that take work have 4. "
        "No other job waits for it."
    ),
    "cordoned": "Stays on 5 accelerators and is not resized: 2 of them on nodes that take "
    "no new work.",
    "cordoned_all": "Stays on 5 accelerators and is not resized while nothing new is placed there.",
    "cordon_waits": "Waits for 5 accelerators at once: too few are left beside those of 1 job "
    "on nodes that take no new work, where nothing is resized.",
    "maintenance_waits": "Waits for 5 accelerators of one accepted kind: nodes that take "
    "work have 4 until 2026-03-02 20:00 UTC, when maintenance ends. No other job waits for it.",
    "maintenance_note": "arrived earlier Maintenance until 2026-03-02 20:00 UTC keeps 5 "
    "accelerators that it accepts from new work.",
    "sweep_waits": "Waits for another job of sweep 6 to end: it is behind 1 job, and the "
    "sweep runs at most 3 at once.",
    "sweep_paused": "Waits until sweep 6 is resumed (1 job waiting).",
    "tier_lost_all": " Its 5 accelerators went to higher tiers.",
    "keeps": "Keeps 4 of 8 gpu",
    "grown": "Is given 4 gpu instead of 3 for job 7",
    "shrunk": "Is cut from 3 to 4 gpu for job 7",
    "given": "Is given 4 of 8 gpu",
    "changes_kind": "Moves from 2 cpu to 4 of 8 gpu",
    "expected_start": "Expected to start in about 2 to 5 min.",
    "start_too_wide": "No start is estimated yet: the range would be too wide.",
    "start_unknown": "No start is estimated yet: the ends of some jobs are not known.",
    "for_job": " for job 7",
    "stopped": "Was stopped for job 7. ",
    "free": "1 of 8 gpu free",
    "left": "1 of 8 gpu left",
    "parts": "all it can use; done in about 2.0 h.",
    "all_usable": "all it can use",
    "speed_unknown": "its speed is not known yet",
    "done_in": "done in about 10 min",
    "holders": "Waits for 2 more of kind gpu; 6 of 8 held by 1 job",
    "more": "2 more",
    "all_higher": " of higher priority",
    "higher": ", 2 by jobs of higher priority",
    "queue_holds": "Holds its full demand of 2 of kind gpu.",
    "queue_keeps": (
        "Keeps 2 of kind gpu: its full demand would be 6, but a queue leaves what runs as it is."
    ),
    "queue_behind": (
        "Waits in place 1 behind job 7, which arrived earlier; 0 of 8 a free, 1 of 8 b free."
    ),
    "queue_earlier": "arrived earlier",
    "queue_higher": "is of higher or equal priority",
    "queue_next": (
        "Waits for 5 accelerators at once, next in the queue; 0 of 8 a free, 1 of 8 b free."
    ),
    "srtf_holds": (
        "Gets its full demand of 2 of 8 gpu: it would end in 10 min, 1 job would end sooner."
    ),
    "srtf_waits": (
        "Waits for 2 of kind gpu, its full demand: 0 of 8 a free, 1 of 8 b free, the rest "
        "goes to 1 job before it; it would end in 10 min."
    ),
    "srtf_once": "once started ",
    "srtf_trial": "it has 60 s to show how fast it goes",
    "srtf_unknown": "how long it will take is not known",
    "srtf_end": "it would end in 10 min",
    "tiresias_holds": "Holds its full demand of 2 of 8 gpu: 1.",
    "tiresias_waits": (
        "Waits for 5 accelerators at once, 0 of 8 a free, 1 of 8 b free by those before it: 1."
    ),
    "tiresias_place": (
        "place 1 of the first queue, 16.0 accelerator-hours used (the second begins at 16)"
    ),
    "optimus_waits": (
        "Waits for 5 of kind gpu: 6 of 8 held by 1 job that came earlier or need fewer."
    ),
    "optimus_most": "Gets 2 of 8 gpu, the most it can have: about 10 min are left.",
    "optimus_unknown": "Gets 2 of 8 gpu: how long it takes there is not known.",
    "optimus_no_gain": ("Gets 2 of 8 gpu: about 10 min are left, one more would not shorten that."),
    "optimus_gain": (
        "Gets 2 of 8 gpu: about 10 min are left, one more would save 60 s, less than it "
        "saves others."
    ),
    "weighted_share": "Gets 2 of 8 gpu: weight 2 of 7 among 3 running.",
    "weighted_most": ", all it can use",
    "weighted_least": ", its minimum",
    "weighted_waits": "Waits for 5 of kind gpu: 6 of 8 held by 1 job.",
    "weighted_aged": "; waiting 30 s has raised its weight from 2 to 12",
    "slaq_waits": (
        "Waits for 5 of kind gpu: 6 of 8 held by 1 job with more to gain. It has waited 30 s."
    ),
    "slaq_fair": (
        "Gets 2 of 8 gpu, its fair share among 1 job: its loss cannot be predicted from "
        "4 reports, or its speed is not known yet."
    ),
    "slaq_nonfinite": (
        "Gets 2 of 8 gpu: its loss is not finite, so that no accelerator lowers it."
    ),
    "slaq_gain": (
        "Gets 2 of 8 gpu: its loss is expected to fall by 0.0125 in 3 s, 12 % of its largest "
        "change so far; that is its minimum."
    ),
    "slaq_fewer": "on 2 it would be 0.0125",
    "slaq_least": "that is its minimum",
    "pollux_waits": (
        "Was stopped. Waits; no way to start it was found that makes the mean speedup of 1 "
        "job higher than 1.2."
    ),
    "pollux_moves": "Moves 4 gpu from 3 to 2 nodes for job 7",
    "pollux_change": "stop, on 2 nodes",
    "pollux_speed": "1.50 times as fast as on its fair share of 4",
    "pollux_before": ", 0.75 before",
    "pollux_mean": "the mean speedup of 1 job goes from 3 to 1.5",
    "gavel_holds": (
        "Gets 2 of 8 gpu for this round, 120 s more: it is to have 50 % of the time on 1 a "
        "and 50 % of the time on 2 a and has had 25 % there."
    ),
    "gavel_waits": (
        "Waits for 2 of kind gpu: 6 of 8 are with jobs further behind; it is to have 50 % of "
        "the time on 1 a and 50 % of the time on 2 a, has had 25 %, and the next round is in "
        "120 s."
    ),
    "gavel_plan": "50 % of the time on 2 gpu",
    "sia_goodput": "1,234 useful examples/s",
    "sia_most": "nothing that it may have now is faster",
    "sia_faster": "2gpu would be 25 % faster, but others need them more",
    "sia_kind": " gpu",
    "sia_needed": "but others need them more",
    "sia_resizes": "which is not worth a resize (3 so far)",
    "sia_waits": "Was stopped. Waits.",
    "sia_way": "; job 7 would have to stop, at a cost of 2.5 where the start would bring 0.25",
    "sia_stop": "stop",
    "sia_shrink": "go from 3 to 4",
    "goodput_moves": "Moves to 4 of 8 gpu",
    "goodput_places": "Keeps 4 of 8 gpu, but moves for job 7",
    "goodput_gathers": " from 3 to 2 nodes",
    "goodput_room": " to other nodes, from which all jobs together gain",
    "goodput_measures": "Moves to 4 of 8 gpu to measure its speed",
    "goodput_tries": "Tries 4 of 8 gpu to measure its speed, as there are idle ones",
    "goodput_faster": ", on which it is 25 % faster",
    "goodput_cluster": ": all jobs together are 25 % faster",
    "goodput_for_job": " for job 7, which should end sooner: all jobs together are 25 % faster",
    "goodput_priority": ", which has the higher priority",
    "goodput_sooner": ", which should end sooner",
    "goodput_others": "2 would be 25 % faster, but other jobs gain more from these accelerators",
    "goodput_changed": "2 would be 25 % faster, too little for another change after 45 so far",
    "goodput_not_yet": "2 would be 25 % faster, which does not pay for a change now",
    "goodput_no_faster": "2 would make it no faster",
    "goodput_end": "done in about 10 min",
    "goodput_late": ", 1.3 times as long as alone on its share",
    "goodput_rest": "no other job gains more from them",
    "goodput_waits": (
        "Was stopped. Waits for 2 more of kind gpu; 6 of 8 held by 1 job with more to gain from "
        "them; job 7 holds 4."
    ),
    "goodput_gains": " with more to gain from them",
    "goodput_turns": " with more to gain from them, or whose turn it is",
    "goodput_begun": ", some of which have just begun or end soon",
    "goodput_unknown": ", none of which is stopped yet for a job of unknown speed",
    "goodput_holder": "job 7",
    "goodput_gains_one": ", which has more to gain from them",
    "goodput_turns_one": ", which has more to gain from them, or whose turn it is",
    "goodput_begun_one": ", which has just begun or ends soon",
    "goodput_unknown_one": ", which is not stopped yet for a job of unknown speed",
    "goodput_higher_one": ", and is of higher priority",
    "goodput_kept": (
        "Was stopped. Waits for 2 more of kind gpu: 1 of 8 idle, but kept for job 7, which "
        "waits for more until others may be stopped."
    ),
    "goodput_largest": "; job 7 holds 2",
    "tier_shares": (
        "arrived earlier Higher tiers come first: Waits got 0 of 8 a free, 1 of 8 b "
        "free, and normal jobs share what is left."
    ),
    "tier_waits": (
        "Was stopped. Waits for 5 accelerators of one kind: higher tiers come first, "
        "Waits got 0 of 8 a free, 1 of 8 b free, and normal jobs share what is left."
    ),
    "tier_lost": " 2 of the 3 accelerators that it held went to higher tiers.",
    "tier_taken": "2 of 8 gpu",
    "tier_holders": "Waits and 2 more",
    "tier_holder": "job 7 (normal)",
    "tier_more": " and 2 more",
    "quota_own": "arrived earlier , divided among 4 jobs by priority",
    "quota_note": "Only its project is counted here, with 5 accelerators now, 2 guaranteed, at "
    "most 6; 1 of kind a100.",
    "quota_kind": "; 4 of kind gpu, 2 guaranteed, at most 6",
    "quota_guaranteed": ", 2 guaranteed",
    "quota_limit": ", at most 2",
    "quota_needs": "Waits for 5 accelerators at once.",
    "quota_taken": "Jobs set apart by a guarantee or a limit, with 5 accelerators, are not counted "
    "here.",
    "quota_small": "Waits for 5 accelerators: the limit of its project leaves 3.",
    "by_user": "arrived earlier , divided among 4 jobs by priority",
    "user_share": (
        "Shares go to users first: its owner has a claim of 100 of 200 among 2 users, divided "
        "among 4 jobs by priority."
    ),
    "user_divided": ", divided among 4 jobs by priority",
    "user_withheld": (
        "Waits for 5 of kind gpu: the minima of its owner's other jobs take up the owner's share "
        "of 3."
    ),
}


def test_every_code_has_its_sentence() -> None:
    assert SENTENCES.keys() == TEXTS.keys(), "SENTENCES needs each, rendered"


@pytest.mark.parametrize("code", SENTENCES)
def test_a_reason_is_rendered(code: str) -> None:
    names = {name for _, name, _, _ in Formatter().parse(TEXTS[code]) if name}
    assert names <= FIELDS.keys(), "FIELDS needs a value of each"
    fields = {name: FIELDS[name] for name in names}
    if code == "pollux_speed":
        fields["before"] = None
    assert str(reason(code, **fields)) == SENTENCES[code]


def test_one_accelerator_is_no_plural() -> None:
    waits = reason("queue_next", accelerators=1, have=reason("goodput_sooner"))
    assert str(waits).startswith("Waits for 1 accelerator at once, next")

"""A job's log: windows of lines, and its search."""

from __future__ import annotations

from django.test import Client

from tests.frontend.world import SCRIPT_NAME, World
from tests.support.rows import log_add


def test_the_log_comes_in_windows(world: World, ada: Client) -> None:
    job = world.jobs["running"]
    address = f"/jobs/{job.pk}/log/"
    newest = ada.get(address + "?slot=0").json()
    assert newest["lines"][0]["text"].startswith("12:00:00 step 0 loss")
    last = newest["lines"][-1]
    assert (last["text"], last["level"]) == (f"a line with {SCRIPT_NAME}", "output")
    assert (newest["has_earlier"], newest["has_later"]) == (False, False)
    nothing = ada.get(f"{address}?slot=0&after={newest['next_cursor']}").json()
    assert (nothing["lines"], nothing["next_cursor"]) == ([], newest["next_cursor"])
    log_add(job, "new\nhalf", offset=99999)
    more = ada.get(f"{address}?slot=0&after={newest['next_cursor']}").json()
    assert [line["text"] for line in more["lines"]] == ["new", "half"]
    log_add(job, " a line\n", offset=100007)
    (rest,) = ada.get(f"{address}?slot=0&after={more['next_cursor']}").json()["lines"]
    assert (rest["text"], rest["continues"], rest["replaces"]) == (" a line", True, False)
    assert {line["slot"] for line in ada.get(address).json()["lines"]} == {0, 1}


def test_a_huge_log_is_read_by_windows(world: World, ada: Client) -> None:
    job = world.jobs["script"]
    for i in range(30):
        log_add(job, f"{i:05d}" + "x" * 19_994 + "\n", offset=i * 20_000)
    address = f"/jobs/{job.pk}/log/?slot=0"
    part = ada.get(address).json()
    assert [line["text"][:5] for line in part["lines"]] == ["00027", "00028", "00029"]
    assert part["has_earlier"]
    before = ada.get(f"{address}&before={part['first_cursor']}").json()
    assert [line["text"][:5] for line in before["lines"]] == ["00024", "00025", "00026"]
    assert (before["has_earlier"], before["has_later"]) == (True, True)
    place = ada.get(f"{address}&offset=200000").json()
    assert [line["offset"] for line in place["lines"]] == [*range(180_000, 340_001, 20_000)]
    whole = b"".join(ada.get(f"/jobs/{job.pk}/log/file/?slot=0").streaming_content)
    assert len(whole) == 600_000


def test_searching_a_log_finds_lines_across_chunks(world: World, ada: Client) -> None:
    job = world.jobs["script"]
    for offset, text in ((0, "first\nsecond with NEE"), (21, "dle in it\nthird\n"), (37, "needle")):
        log_add(job, text, slot=3, offset=offset)
    address = f"/jobs/{job.pk}/log/"
    found = ada.get(f"{address}?q=needle").json()
    assert [(match["offset"], match["text"]) for match in found["matches"]] == [
        (6, "second with NEEdle in it"),
        (37, "needle"),
    ]
    first, second = found["matches"]
    around = [[line["text"] for line in first[name]] for name in ("before", "after")]
    assert around == [["first"], ["third"]]
    assert (second["before"], second["after"]) == ([], [])
    assert (found["stopped"], found["next_cursor"]) == ("end", "")
    assert ada.get(f"{address}?level=error").json()["matches"] == []
    assert ada.get(f"{address}?q=needle&cursor=odd&level=odd").json()["matches"]

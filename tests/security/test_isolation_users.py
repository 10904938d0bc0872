"""Users of jobs on a node with isolation `uid`: who gets one, and what does not outlive it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.state_directory import StateDirectory
from agents.supervision import isolation as isolation_module
from agents.supervision.isolation import JOB_USER_COMMAND, Isolation, isolation_check
from agents.supervision.leftovers import leftovers_deletion, shared_folders
from agents.trainer.contract.job_user import ipc_objects
from tests.agents.builders import agent_settings, isolation_make, job_uids
from tests.agents.conftest import wait_until
from tests.support.present import present
from tests.support.reachable import reachable_command, root_needed


def has_deleted(isolation: Isolation) -> bool:
    isolation.step()
    return not isolation.is_deleting


def test_users_that_have_an_account_are_not_given_to_jobs(tmp_path: Path) -> None:
    root_needed()
    settings = agent_settings(
        "http://127.0.0.1:9", tmp_path / "state", job_uids=range(65500, 65600)
    )
    state = StateDirectory(settings.state_dir)
    with pytest.raises(ValueError, match=r"65534, the id of the account or group n"):
        isolation_check(settings, state)
    state.close()


def test_a_check_that_hangs_is_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(isolation_module, "_capabilities_missing", list)
    monkeypatch.setattr(isolation_module, "_range_lock", lambda _: None)
    monkeypatch.setattr(isolation_module.subprocess, "run", hang)
    uids = range(300_000, 300_002)
    settings = agent_settings("http://127.0.0.1:9", tmp_path / "state", job_uids=uids)
    state = StateDirectory(settings.state_dir)
    with pytest.raises(OSError, match=r"did not end within 10 s; .* start the agent again"):
        isolation_check(settings, state)
    state.close()


def test_a_user_is_shared_by_a_job_alone_and_not_while_it_is_cleared(tmp_path: Path) -> None:
    isolation = isolation_make(tmp_path, 4)

    def entered(owner: str, name: str) -> int:
        (tmp_path / name).mkdir()
        user = present(isolation.enter(owner, tmp_path / name))
        assert (tmp_path / name).stat().st_uid == user.uid
        return user.uid

    def clear(name: str) -> None:
        wait_until(lambda: isolation.is_cleared(tmp_path / name))
        assert (tmp_path / name).stat().st_uid == os.geteuid()
        wait_until(lambda: has_deleted(isolation))

    first, *_ = job_uids(4)
    assert entered("job 1", "1-0") == entered("job 1", "1-1") == first + 1
    assert entered("job 2", "2-0") == first + 2
    isolation.kill_begin(tmp_path / "2-0")
    assert not isolation.pids  # it has no process
    assert isolation.is_cleared(tmp_path / "1-0")
    assert not isolation.is_cleared(tmp_path / "1-1")  # one that kills its processes was started
    assert entered("job 1", "1-2") == first + 3
    (tmp_path / "9-0").mkdir()
    with pytest.raises(OSError, match="all 3 users of --job-uids are in use"):
        isolation.enter("job 9", tmp_path / "9-0")
    clear("1-1")
    assert entered("job 3", "3-0") == first + 1
    for name in ("1-2", "2-0", "3-0"):
        clear(name)


#: Leaves an object of each kind behind, and a file in each folder; the number is what was made.
LEAVING = """
import ctypes, os, pathlib, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)]
made += [pathlib.Path(folder, f"left-by-{os.getuid()}").write_text("x") for folder in sys.argv[1:]]
add_key = {"x86_64": 248, "aarch64": 217}[platform.machine()]
keys = [libc.syscall(add_key, b"user", b"left", b"x", 1, keyring) for keyring in (-3, -4, -5)]
keys += [libc.syscall(add_key + 2, 22, -1, -2)]  # KEYCTL_GET_PERSISTENT
queue = libc.mq_open(b"/left", 0o102, 0o600, None)
print(sum(number >= 0 for number in made), queue, {*keys})
"""


def test_what_a_user_shares_does_not_outlive_it(tmp_path: Path) -> None:
    isolation = isolation_make(tmp_path, 2)
    run_dir = tmp_path / "1-0"
    run_dir.mkdir()
    user = present(isolation.enter("job 1", run_dir))
    folders = [folder for folder in shared_folders() if Path(folder).is_dir()]
    command = [*JOB_USER_COMMAND, user.text(), sys.executable, "-I", "-c", LEAVING, *folders]
    left = subprocess.run(
        reachable_command(command, tmp_path / "mounts"), capture_output=True, text=True, check=True
    )
    assert left.stdout.split() == [str(3 + len(folders)), "-1", "{-1}"]
    assert f" {user.uid}: " not in Path("/proc/key-users").read_text()
    assert {kind for kind, _ in ipc_objects(user.uid)} == {"shm", "msg", "sem"}
    files = [Path(folder, f"left-by-{user.uid}") for folder in folders]
    assert all(file.exists() for file in files)
    wait_until(lambda: isolation.is_cleared(run_dir))
    wait_until(lambda: has_deleted(isolation))
    assert not list(ipc_objects(user.uid))
    assert not any(file.exists() for file in files)


def test_all_of_a_user_is_killed_at_once_and_nothing_else(tmp_path: Path) -> None:
    isolation = isolation_make(tmp_path, 3)
    sleeping = []
    for job in (1, 2):
        run_dir = tmp_path / f"{job}-0"
        run_dir.mkdir()
        user = present(isolation.enter(f"job {job}", run_dir))
        # A session of its own, and nothing in its environment.
        command = ["/bin/sleep", "100"]
        process = subprocess.Popen(command, env={}, user=user.uid, start_new_session=True)
        sleeping.append(process)
    try:
        isolation.kill(tmp_path / "3-0")
        isolation.kill(tmp_path / "1-0")
        assert sleeping[0].wait(timeout=60) == -signal.SIGKILL
        assert sleeping[1].poll() is None
        isolation.kill_begin(tmp_path / "2-0")
        assert sleeping[1].wait(timeout=60) == -signal.SIGKILL
    finally:
        for process in sleeping:
            process.kill()
            process.wait()
    for job in (1, 2):
        wait_until(lambda name=f"{job}-0": isolation.is_cleared(tmp_path / name))


def test_what_a_user_leaves_deeper_inshared_folders_does_not_outlive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_needed()
    monkeypatch.setattr("agents.supervision.leftovers.shared_folders", lambda: {str(tmp_path)})
    uid = 4_300_000
    shared, own = tmp_path / ".X11-unix", tmp_path / "own"
    for folder, mode in ((shared, 0o1777), (own, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
        os.mknod(folder / "left")
        os.chown(folder / "left", uid, uid)
    (shared / "of another").touch()
    list(leftovers_deletion({uid}))
    assert [path.name for path in shared.iterdir()] == ["of another"]
    assert (own / "left").exists()  # given to it by somebody: no user can leave a file there


def test_files_of_a_user_delay_neither_its_end_nor_the_files_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may leave more files than can be deleted within any time that another one waits."""
    monkeypatch.setattr("agents.supervision.leftovers.shared_folders", set)
    isolation = isolation_make(tmp_path, 3)
    wait_until(lambda: has_deleted(isolation))
    uids = []
    for name in ("1-0", "2-0"):
        (tmp_path / name).mkdir()
        uids.append(present(isolation.enter(f"job {name}", tmp_path / name)).uid)
    deleted = dict.fromkeys(uids, 0)

    def endless(of: set[int], **_: bool) -> Iterator[None]:
        (uid,) = of
        while uid == uids[0] or deleted[uid] < 3:
            deleted[uid] += 1
            yield

    monkeypatch.setattr("agents.supervision.leftovers.leftovers_deletion", endless)
    for name in ("1-0", "2-0"):
        wait_until(lambda name=name: isolation.is_cleared(tmp_path / name))
    assert isolation.is_paused  # no user is left, but one will be
    wait_until(lambda: (isolation.step(), not isolation.is_paused)[1])
    assert deleted[uids[1]] == 3
    assert isolation.is_deleting
    (tmp_path / "1-1").mkdir()
    assert present(isolation.enter("job 1-0", tmp_path / "1-1")).uid == uids[1]
    assert isolation.is_cleared(tmp_path / "2-0")
    wait_until(lambda: isolation.is_cleared(tmp_path / "1-1"))


def test_what_an_earlier_agent_did_not_delete_is_deleted_before_a_user_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_needed()
    shared = tmp_path / "shared"
    monkeypatch.setattr("agents.supervision.leftovers.shared_folders", lambda: {str(shared)})
    own, other, *_ = job_uids(3)
    (tmp_path / f"{own}-0").mkdir()
    os.chown(tmp_path / f"{own}-0", own, own)
    isolation = isolation_make(tmp_path, 3)
    assert isolation.is_paused
    shared.mkdir()
    (shared / ".deleted-1").mkdir()  # of a user, and given to the earlier agent
    (shared / ".deleted-1" / "left").touch()
    for uid in (own, other, other + 1, other + 2):
        (shared / str(uid)).touch()
        os.chown(shared / str(uid), uid, uid)
    assert isolation.adopt("job 1", tmp_path / f"{own}-0") == own
    wait_until(lambda: has_deleted(isolation))
    assert not isolation.is_paused
    assert {path.name for path in shared.iterdir()} == {str(own), str(other + 2)}
    wait_until(lambda: isolation.is_cleared(tmp_path / f"{own}-0"))
    wait_until(lambda: has_deleted(isolation))
    assert [path.name for path in shared.iterdir()] == [str(other + 2)]


def test_every_file_system_in_memory_that_all_can_write_to_is_shared() -> None:
    root_needed()
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("there are no mount namespaces")
    places = ["/mnt/open", "/mnt/read", "/mnt/closed", "/mnt/closed/open", "/mnt/queues"]
    mounts = ["tmpfs 1777", "tmpfs 755", "tmpfs 711", "tmpfs 1777", "mqueue"]
    script = ["set -e; mount -t tmpfs -o mode=755 none /mnt"]
    for place, (kind, *mode) in zip(places, (mount.split() for mount in mounts), strict=True):
        options = f"-o mode={mode[0]}" if mode else ""
        script.append(f"mkdir {place}; mount -t {kind} {options} none {place}")
    script += ["chmod 700 /mnt/closed", 'exec "$@"']
    show = "from agents.supervision.leftovers import shared_folders as f; print(*f())"
    command = ["unshare", "-m", "sh", "-c", "\n".join(script), "sh", sys.executable, "-c", show]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {place for place in shown if place.startswith("/mnt")} == {"/mnt/open", "/mnt/queues"}


def test_the_directory_of_an_account_is_no_jobs(tmp_path: Path) -> None:
    root_needed()
    os.chown(tmp_path, 65534, 65534)  # a former agent's user; its other processes are none of ours
    isolation = Isolation(agent_settings("http://127.0.0.1:9", tmp_path), 1)
    assert isolation.adopt("job 1", tmp_path) is None
    assert isolation.is_cleared(tmp_path)

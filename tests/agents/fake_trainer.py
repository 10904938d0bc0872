"""Stands in for `python -m agents.trainer` in agent tests: keeps the contract, computes nothing.

What it plays is in the job's settings: `train` (until told to leave), `finish`, `crash`, `stubborn`
(ignores SIGTERM), `parent` (starts children), `noisy`, `diverge`, `nonfinite`, `silent` (has no
pulse), `tell` (its secret S3_KEY, in all forms; `tell later`: once outputs/go is there), `save`
(leaves checkpoints beside the training), `intrude` (see tests.security.intruder);
for validations `fine`, `hang`, `die`, `refuse`, `intrude`, `tell`.
What a fork server plays is in FAKE_FORK_SERVER: `deaf` (does not reply), `broken` (does not get
warm), `forgetful` (forks nothing).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agents.trainer.contract import fork_server
from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.wire import (
    ReportKind,
    TrainerOrders,
    TrainerReport,
    TrainingSpec,
    decode,
    encode,
)
from tests.security import intruder
from tests.security.secret_forms import secret_forms

LIFE_S = 60.0
TICK_S = 0.01
#: A child that only SIGKILL ends; it says when it is so far.
SLEEPER = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("asleep", flush=True)
time.sleep(60)
"""


class FakeTrainer:
    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.orders = self.read_orders()
        self.sequence = 0
        self.generation = -1
        self.step = 0
        self.reports = (run_dir / "reports.jsonl").open("a")

    def read_orders(self) -> TrainerOrders:
        return decode(TrainerOrders, json.loads((self.run_dir / "orders.json").read_text()))

    def report(self, kind: ReportKind, **data: Any) -> None:
        report = TrainerReport(
            job_id=self.orders.spec.job_id,
            slot=self.orders.slot,
            generation=self.orders.membership.generation,
            sequence=self.sequence,
            at=time.time(),
            kind=kind,
            data=data,
        )
        self.sequence += 1
        self.reports.write(json.dumps(encode(report)) + "\n")
        self.reports.flush()

    def leave_file(self, name: str, text: str) -> None:
        (self.run_dir / "outputs" / name).write_text(text)

    def play(self) -> int:
        settings = self.orders.spec.settings
        play = settings.get("play", "train")
        self.report(
            ReportKind.PHASE,
            phase="booting",
            environment=dict(os.environ),
            code=sorted(path.name for path in Path().iterdir()),
            accelerator=encode(self.orders.accelerator),
            restored=self.restored(),
        )
        if play == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if play == "parent":
            sleeper_start(is_apart=False)
            sleeper_start(is_apart=True)
        if play == "noisy":
            sys.stdout.write("ä" * settings["characters"])
            sys.stdout.flush()
        found = {"boot_s": 0.1, "build_s": 0.1, "trace_s": 0.1}
        if play == "intrude":
            found |= intrusion(settings)
            intruder.stay_behind(settings["victim"])
        self.report(ReportKind.READY, **found)
        if play == "crash":
            return 7
        deadline = time.monotonic() + LIFE_S
        while time.monotonic() < deadline:
            if play != "silent":
                (self.run_dir / "pulse").touch()
            exit_code = self.round(play)
            if exit_code is not None:
                return exit_code
            time.sleep(TICK_S)
        return 9

    def tell(self) -> int:
        forms = secret_forms(os.environ["S3_KEY"]).values()
        sys.stdout.write("\n".join([*forms, "told\n"]))
        sys.stdout.flush()
        self.report(ReportKind.FAILED, code="user_code", message=" | ".join(forms))
        return 3

    def round(self, play: str) -> int | None:
        orders = self.orders = self.read_orders()
        if play == "tell" or (play == "tell later" and (self.run_dir / "outputs" / "go").exists()):
            return self.tell()
        if not orders.go:
            return None
        if orders.membership.member(orders.slot) is None:
            return self.leave()
        if self.generation != orders.membership.generation:
            self.report(ReportKind.SWITCHED, step=1, joined=self.generation < 0)
            self.generation = orders.membership.generation
        if play == "finish":
            self.leave_file("model.keras", "weights")
            self.leave_file("metrics.json", "{}")
            self.report(ReportKind.FINISHED, step=9, epoch=1, reason="steps",
                        files=["model.keras", "metrics.json", "secrets.txt"])  # fmt: skip
            return 0
        if play == "nonfinite":
            self.leave_file("history.csv", "epoch")
            self.report(ReportKind.FAILED, code="nonfinite_loss", message="nan",
                        files=["history.csv", "secrets.txt"])  # fmt: skip
            return 3
        if play == "save":
            self.save_beside()
        if play == "predict":
            self.predict()
        loss = float("nan") if play == "diverge" else 0.5
        self.report(ReportKind.STEPS, first_step=1, last_step=2, loss=loss)
        return None

    def save_beside(self) -> None:
        """Leave a checkpoint of each step, and delete all but the two newest, as trainers do."""
        if self.step >= self.orders.spec.settings["saves"]:
            return
        self.step += 1
        name = f"checkpoint-{self.step}.npz"
        self.leave_file(name, f"step {self.step}")
        (self.run_dir / "outputs" / f"checkpoint-{self.step - 2}.npz").unlink(missing_ok=True)
        self.report(ReportKind.CHECKPOINTED, step=self.step, epoch=0, file=name, is_last=False)

    def predict(self) -> None:
        """Leave one part of predictions: what the source job's model holds."""
        if self.step:
            return
        self.step = 1
        source = (self.run_dir / "source.keras").read_text()
        self.leave_file("predictions-0-4.npz", f"made by {source}")
        self.report(ReportKind.PART, first=0, end=4, file="predictions-0-4.npz", bytes=9)

    def leave(self) -> int:
        membership = self.orders.membership
        if not membership.members and membership.source_slot == self.orders.slot:
            self.leave_file("checkpoint.npz", "all variables")
            self.report(ReportKind.CHECKPOINTED, step=5, epoch=0, file="checkpoint.npz")
        else:
            self.report(ReportKind.LEFT, step=5)
        return 0

    def restored(self) -> str | None:
        path = self.orders.checkpoint_path
        return Path(path).read_text() if path else None


def intrusion(settings: dict[str, Any]) -> dict[str, Any]:
    """Try to break out; return what was done, and how much was tried."""
    facts = [settings[name] for name in ("state", "agent", "victim")]
    done, num_tried = intruder.intrude(*facts)
    return {"done": done, "num_tried": num_tried}


def sleeper_start(*, is_apart: bool) -> None:
    """Start a child, in a session of its own if it is to be apart, and wait until it sleeps."""
    command = [sys.executable, "-c", SLEEPER]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=is_apart)
    assert child.stdout is not None
    assert child.stdout.readline() == b"asleep\n"


def validate(directory: Path) -> int:
    spec = decode(TrainingSpec, json.loads((directory / "orders.json").read_text()))
    play = spec.settings.get("play", "fine")
    if play == "hang":
        sleeper_start(is_apart=False)
        sys.stdout.write("building for ever\n")
        sys.stdout.flush()
        time.sleep(LIFE_S)
    if play == "leave":
        os._exit(0)
    if play == "die":
        sys.stderr.write("Killed in native code\n")
        return 42
    if play == "refuse":
        sys.stdout.write("what build printed\n")
    facts: dict[str, Any] = {"num_parameters": 12}
    if play == "intrude":
        facts = intrusion(spec.settings)
    if play == "tell":
        facts["environment"] = dict(os.environ)
    report = ValidationReport(
        ok=play in ("fine", "intrude"),
        code=None if play in ("fine", "intrude") else "user_code",
        traceback="" if play == "fine" else f"in {Path.cwd().name}",
        message=" | ".join(secret_forms(os.environ["S3_KEY"]).values()) if play == "tell" else "",
        facts=facts,
    )
    (directory / "validation.json").write_text(json.dumps(encode(report)))
    return 0


def serve(folder: Path) -> tuple[str, str]:
    """Fork as the real one does, with nothing to import."""
    play = os.environ.get("FAKE_FORK_SERVER")
    if play == "deaf":
        (folder / fork_server.WARM_FILE).touch()
        time.sleep(LIFE_S)
    if play == "broken":
        sys.stderr.write("no such module\n")
        sys.exit(1)
    if play == "forgetful":
        (folder / fork_server.WARM_FILE).touch()
        for _ in sys.stdin:
            sys.stdout.write("0\n")
            sys.stdout.flush()
    request = fork_server.fork_server_run(folder, lambda: None)
    return request.option, request.run_dir


if __name__ == "__main__":
    option, path = sys.argv[1:]
    if option == "--fork-server":
        option, path = serve(Path(path))
    if option == "--validate":
        sys.exit(validate(Path(path)))
    sys.exit(FakeTrainer(Path(path)).play())

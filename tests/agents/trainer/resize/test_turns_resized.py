"""A job whose steps take two turns: joiners hear both, and a loss between them undoes the first."""

from pathlib import Path

from controlplane.core.protocol.wire import StopCondition, StopKind
from tests.agents.trainer.dying_trainer import Ending
from tests.agents.trainer.local_jobs import local_job, training_spec, undisturbed
from tests.agents.trainer.peers.test_peer_failures import join, start, steps_go_on, switched_of
from tests.agents.trainer.step.test_update_turns import NORM, code_of
from tests.agents.trainer.streaming_trainer import streaming_program

HEARD_STEPS, LOST_IN_STEP, NUM_STEPS = 6, 150, 220


def test_joined_while_running_and_lost_between_two_turns(tmp_path: Path) -> None:
    code = code_of("a critic, then a maker that deceives it", NORM)
    stop = StopCondition(kind=StopKind.STEPS, limit=NUM_STEPS)
    spec = training_spec(num_virtual_nodes=5, global_batch_size=22, stop=stop)
    expected = undisturbed(tmp_path / "one", spec, code)
    ending = Ending(
        slot=1, place="agents.trainer.step.stepper:Stepper._turn", call=2 * LOST_IN_STEP
    )
    with local_job(tmp_path, spec, code) as job:
        job.program = streaming_program(HEARD_STEPS, [ending])
        start(job, [[0, 3], [1, 2, 4]], 3)
        job.wait_step(20)
        grown = join(job, [0, 1, 2])
        job.wait_switched(grown)
        assert switched_of(job, 2, grown)["step"] >= 20 + HEARD_STEPS
        job.wait_lost(1)
        recovered = job.recover([0, 2], [[0, 1, 2], [3, 4]])
        steps_go_on(job)
        assert switched_of(job, 0, recovered)["step"] == LOST_IN_STEP - 1
        result = job.wait_finished()
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]

"""Steps that update weights several times: over virtual nodes as with `fit`."""

import textwrap
from pathlib import Path

import pytest

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.workload import BuiltJob, workload_build
from agents.trainer.step.functions import StepFunctions
from tests.agents.trainer.step.keras_runs import assert_same_as_keras, spec, trained_by_engine
from tests.agents.trainer.step.test_custom_steps import HEAD
from tests.support.cases import some

PAIR = (
    HEAD
    + """
SGD = keras.optimizers.SGD

def middle():
    return MIDDLE

class Pair(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        first = [keras.Input((6,)), layers.Dense(4)]
        self.critic = keras.Sequential([*first, *middle(), layers.Dense(1)])
        self.maker = keras.Sequential([keras.Input((2,)), layers.Dense(4, "tanh"), layers.Dense(6)])
        self.critic_loss = keras.metrics.Mean("critic_loss")
        self.maker_loss = keras.metrics.Mean("maker_loss")

    @property
    def metrics(self):
        return [self.critic_loss, self.maker_loss]

    def compile(self, critic_optimizer, maker_optimizer, **options):
        super().compile(**options)
        self.critic_optimizer, self.maker_optimizer = critic_optimizer, maker_optimizer
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def judge(self, real, fake):
        ones, zeros = ops.ones_like(real[:, :1]), ops.zeros_like(real[:, :1])
        real_loss = self.entropy(ones, self.critic(real, training=True))
        return real_loss + self.entropy(zeros, self.critic(fake, training=True))

    def deceive(self, fake):
        return self.entropy(ops.ones_like(fake[:, :1]), self.critic(fake, training=True))

    def update(self, optimizer, tape, loss, network):
        weights = network.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

def build(settings):
    model = MODEL()
    model.compile(SGD(0.1, momentum=0.5), SGD(0.2, momentum=0.5))
    return model, (X, Y), None
"""
)

BODIES = {
    "a critic, then a maker that deceives it": """
        class Own(Pair):
            def train_step(self, data):
                real, codes = data
                fake = self.maker(codes)
                with tf.GradientTape() as tape:
                    critic_loss = self.judge(real, fake)
                self.update(self.critic_optimizer, tape, critic_loss, self.critic)
                with tf.GradientTape() as tape:
                    maker_loss = self.deceive(self.maker(codes))
                self.update(self.maker_optimizer, tape, maker_loss, self.maker)
                self.critic_loss.update_state(critic_loss)
                self.maker_loss.update_state(maker_loss)
                return {"critic": self.critic_loss.result(), "maker": self.maker_loss.result()}
    """,
    "both at once, with one tape": """
        class Own(Pair):
            def train_step(self, data):
                real, codes = data
                with tf.GradientTape(persistent=True) as tape:
                    fake = self.maker(codes)
                    critic_loss, maker_loss = self.judge(real, fake), self.deceive(fake)
                critic, maker = self.critic.trainable_weights, self.maker.trainable_weights
                first, second = tape.gradient(critic_loss, critic), tape.gradient(maker_loss, maker)
                self.critic_optimizer.apply(first, critic)
                self.maker_optimizer.apply(second, maker)
                self.critic_loss.update_state(critic_loss + maker_loss)
                return {"total": self.critic_loss.result()}
    """,
    "a critic three times with a penalty of its slope, then the maker": """
        class Own(Pair):
            def train_step(self, data):
                real, codes = data
                for number in range(3):
                    with tf.GradientTape() as tape:
                        fake = self.maker(codes * (number + 1))
                        mixed = 0.3 * real + 0.7 * fake
                        with tf.GradientTape() as inner:
                            inner.watch(mixed)
                            judged = self.critic(mixed, training=True)
                        slope = inner.gradient(judged, [mixed])[0]
                        length = ops.sqrt(ops.sum(ops.square(slope), axis=1) + 1e-6)
                        critic_loss = ops.mean(self.critic(fake)) - ops.mean(self.critic(real))
                        critic_loss += ops.mean((length - 1) ** 2)
                    self.update(self.critic_optimizer, tape, critic_loss, self.critic)
                    self.critic_loss.update_state(critic_loss)
                with tf.GradientTape() as tape:
                    maker_loss = -ops.mean(self.critic(self.maker(codes)))
                self.update(self.maker_optimizer, tape, maker_loss, self.maker)
                self.maker_loss.update_state(maker_loss)
                return {each.name: each.result() for each in self.metrics}
    """,
    "the maker once more, with averages of its weights": """
        class Own(Pair):
            def __init__(self, **options):
                super().__init__(**options)
                self.average = keras.models.clone_model(self.maker)
                self.steps = self.add_weight(shape=(), dtype="int32", trainable=False)

            def train_step(self, data):
                real, codes = data
                self.steps.assign_add(1)
                rate = 1 / ops.cast(self.steps, "float32")
                with tf.GradientTape() as tape:
                    maker_loss = self.deceive(self.maker(codes))
                self.update(self.maker_optimizer, tape, maker_loss, self.maker)
                self.maker_loss.update_state(maker_loss)
                for mean, weight in zip(self.average.weights, self.maker.weights):
                    mean.assign(0.9 * mean + 0.1 * weight)
                with tf.GradientTape() as tape:
                    critic_loss = rate * self.judge(real, self.average(codes))
                self.update(self.critic_optimizer, tape, critic_loss, self.critic)
                with tf.GradientTape() as tape:
                    maker_loss = self.deceive(self.maker(codes)) + rate * ops.mean(codes)
                self.update(self.maker_optimizer, tape, maker_loss, self.maker)
                for mean, weight in zip(self.average.weights, self.maker.weights):
                    mean.assign(0.8 * mean + 0.2 * weight)
                self.critic_loss.update_state(critic_loss)
                return {each.name: each.result() for each in self.metrics}
    """,
    "the compiled optimizer, and another one in a list": """
        class Own(Pair):
            def compile(self, critic_optimizer, maker_optimizer):
                super().compile(None, None, optimizer=critic_optimizer)
                self.others = [maker_optimizer]

            def train_step(self, data):
                real, codes = data
                with tf.GradientTape() as tape:
                    critic_loss = self.judge(real, self.maker(codes))
                self.update(self.optimizer, tape, critic_loss, self.critic)
                with tf.GradientTape() as tape:
                    maker_loss = self.deceive(self.maker(codes))
                self.update(self.others[0], tape, maker_loss, self.maker)
                self.maker_loss.update_state(maker_loss)
                return {"maker": self.maker_loss.result()}
    """,
}


PLAIN = '[layers.Dense(4, "tanh")]'
NORM = "[layers.BatchNormalization(momentum=0.8)]"
#: Its weights are read inside a loop.
RECURRENT = "[layers.Reshape((4, 1)), layers.SimpleRNN(3)]"


def code_of(job: str, middle: str = PLAIN) -> str:
    return PAIR.replace("MODEL", "Own").replace("MIDDLE", middle) + textwrap.dedent(BODIES[job])


TURNS = dict(zip(BODIES, (2, 1, 4, 3, 2), strict=True))


@pytest.mark.parametrize("job", BODIES)
def test_updates_in_turns_train_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    found, trace = [], BuiltJob.trace

    def traced(work: BuiltJob) -> StepFunctions:
        functions = trace(work)
        found.append(len(functions.turns))
        return functions

    monkeypatch.setattr(BuiltJob, "trace", traced)
    assert_same_as_keras(code_of(job), tmp_path)
    assert found == [TURNS[job]]


def test_weights_that_a_loop_reads(tmp_path: Path) -> None:
    assert_same_as_keras(code_of("a critic, then a maker that deceives it", RECURRENT), tmp_path)


@pytest.mark.parametrize(
    "job", some(BODIES, {"a critic three times with a penalty of its slope, then the maker"})
)
def test_state_changes_in_each_turn(tmp_path: Path, job: str) -> None:
    """Statistics of batches go on from turn to turn; of one virtual node they are those of fit."""
    assert_same_as_keras(code_of(job, NORM), tmp_path, num_virtual_nodes=1)


def test_losses_returned_as_numbers_are_averaged_over_the_epoch(tmp_path: Path) -> None:
    tracked = code_of("a critic, then a maker that deceives it")
    plain = tracked.replace("self.critic_loss.result()", "critic_loss")
    plain = plain.replace("self.maker_loss.result()", "maker_loss")
    logs = []
    for name, code in (("tracked", tracked), ("plain", plain)):
        (tmp_path / name / "code").mkdir(parents=True)
        (tmp_path / name / "code" / "job.py").write_text(code)
        reports = ReportWriter(tmp_path / name, 0, 0)
        logs.append(trained_by_engine(workload_build(tmp_path / name, spec(), reports)))
    assert logs[0][0].keys() == {"critic", "maker"}
    for epoch, expected in zip(*reversed(logs), strict=True):
        assert epoch == pytest.approx(expected, rel=1e-5)
    assert logs[1][0] != logs[1][1]

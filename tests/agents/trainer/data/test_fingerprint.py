"""What a validation says about a job's data, and how trainers tell other data apart."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.data.fingerprint import data_fingerprint
from agents.trainer.data.sources import source_open
from agents.trainer.engine.workload import workload_build
from agents.trainer.model.constants import constants_fingerprint
from agents.trainer.validate.job_file import job_load
from tests.agents.trainer.trial_jobs import HEAD, returning, spec_of, validated, warnings_of


def test_data_that_changes_from_reading_to_reading_is_refused(tmp_path: Path) -> None:
    code = returning(
        "compiled(net())",
        "Augmented()",
        before="""
        class Augmented:
            def __len__(self):
                return 24

            def __getitem__(self, index):
                return X[index] + np.random.normal(), Y[index]
        """,
    )
    report = validated(tmp_path, code)
    assert (report.code, report.field) == ("nondeterministic_data", "data.train")


@pytest.mark.parametrize("changed", [0, 23])
@pytest.mark.parametrize("batch_size", [None, 4, 12])
def test_data_of_which_some_items_change_are_refused(
    batch_size: int | None, changed: int, tmp_path: Path
) -> None:
    """Of two items half are the same twice by chance; here all are but one of those looked at."""
    data = f"Flipped({batch_size})" if batch_size else "Flipped()"
    kind = "keras.utils.PyDataset" if batch_size else "object"
    code = returning(
        "compiled(net())",
        data,
        before=f"""
        class Flipped({kind}):
            def __init__(self, size=1):
                super().__init__()
                self.size, self.reads = size, 0

            def __len__(self):
                return 24 // self.size

            def __getitem__(self, index):
                rows = slice(index * self.size, (index + 1) * self.size)
                x = X[rows].copy()
                if rows.start <= {changed} < rows.stop:
                    self.reads += 1
                    x *= 1 - 2 * (self.reads % 3 == 2)
                return (x, Y[rows]) if {batch_size} else (x[0], Y[index])
        """,
    )
    report = validated(tmp_path, code)
    assert (report.code, report.field) == ("nondeterministic_data", "data.train")


def test_values_that_are_not_finite_are_warned_about(tmp_path: Path) -> None:
    report = validated(tmp_path, returning("compiled(net())", "(X * [1, 1, 1, np.nan], Y)"))
    assert report.ok
    assert any("data.train.x holds values that are not finite" in w for w in warnings_of(report))


def fingerprint(folder: Path, code: str) -> str:
    (folder / "job.py").write_text(HEAD + textwrap.dedent(code))
    job = job_load(folder, "job.py", {})
    return data_fingerprint(job.train, job.validation)


def test_the_fingerprint_follows_the_data(tmp_path: Path) -> None:
    same = [fingerprint(tmp_path, returning("compiled(net())")) for _ in range(2)]
    other = fingerprint(tmp_path, returning("compiled(net())", "(X + 1, Y)"))
    shorter = fingerprint(tmp_path, returning("compiled(net())", "(X[:-1], Y[:-1])"))
    assert same[0] == same[1]
    assert len({same[0], other, shorter}) == 3


def test_the_fingerprint_of_text_is_that_of_its_characters() -> None:
    texts = ["a cat", "a cat", "a dog"]
    sources = [source_open([text, text * 9], "data.train", Path()) for text in texts]
    same, again, other = (data_fingerprint(source) for source in sources)
    assert same == again != other


def test_the_fingerprint_sees_data_that_depends_on_the_process(tmp_path: Path) -> None:
    unseeded = "(np.random.default_rng().permutation(X), Y)"
    codes = [returning("compiled(net())", unseeded)] * 2
    assert fingerprint(tmp_path, codes[0]) != fingerprint(tmp_path, codes[1])


@pytest.mark.parametrize(
    ("generator", "num_digests"), [("default_rng(6)", 1), ("default_rng()", 2)]
)
def test_trainers_with_other_data_are_told_apart_when_they_meet(
    generator: str, num_digests: int, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    code = returning("compiled(net())", f"(np.random.{generator}.permutation(X), Y)")
    (tmp_path / "code" / "job.py").write_text(HEAD + code)
    digests = set()
    for slot in range(2):
        keras.utils.clear_session()  # layers are named as in a new process
        work = workload_build(tmp_path, spec_of(), ReportWriter(tmp_path, 0, slot))
        digests.add(work.state.layout_digest())
    assert len(digests) == num_digests


CONSTANTS = ("ops.convert_to_tensor", "np.asarray", "keras.Variable")


def test_trainers_with_other_constants_are_told_apart_when_they_meet(tmp_path: Path) -> None:
    """Two that draw all constants by a seed agree; one that draws any without a seed does not."""
    (tmp_path / "code").mkdir()
    digests = []
    for unseeded in ("", "", *CONSTANTS):
        held = [
            f"{made_with}(np.random.default_rng({'' if made_with == unseeded else number})"
            ".normal(size=(1, 16)).astype('float32'))"
            for number, made_with in enumerate(CONSTANTS)
        ]
        code = f"""
def build(settings):
    held = ({", ".join(held)})
    project = layers.Lambda(lambda x: sum(ops.cos(ops.matmul(x[:, :1], each)) for each in held))
    return compiled(net(project)), (X, Y), None
"""
        (tmp_path / "code" / "job.py").write_text(HEAD + code)
        keras.utils.clear_session()
        work = workload_build(tmp_path, spec_of(), ReportWriter(tmp_path, 0, len(digests)))
        work.trace()
        digests.append(work.state.layout_digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 1 + len(CONSTANTS)


TABLES = ("StringLookup", "IntegerLookup", "TextVectorization", "Own")


def test_trainers_with_other_lookup_tables_are_told_apart_when_they_meet(tmp_path: Path) -> None:
    """The entries are the same ones in another order, as of a file of words on each node."""
    (tmp_path / "code").mkdir()
    digests = []
    for other in ("", "", *TABLES):
        step = {name: -1 if name == other else 1 for name in TABLES}
        code = f"""
import tensorflow as tf

class Own(layers.Layer):
    def __init__(self, keys):
        super().__init__()
        entries = tf.lookup.KeyValueTensorInitializer(keys, tf.range(len(keys)))
        self.of_number = tf.lookup.StaticHashTable(entries, 0)

    def call(self, inputs):
        return self.of_number.lookup(inputs)

def build(settings):
    words, numbers = ["a", "b", "c"], [1, 2, 3]
    inputs = keras.Input((1,), dtype="string")
    texts = layers.TextVectorization(
        vocabulary=words[::{step["TextVectorization"]}], output_sequence_length=1
    )(inputs)
    places = layers.StringLookup(vocabulary=words[::{step["StringLookup"]}])(inputs)
    again = layers.IntegerLookup(vocabulary=numbers[::{step["IntegerLookup"]}])(places)
    own = Own(tf.constant(numbers[::{step["Own"]}], "int64"))(places)
    found = [ops.cast(each, "float32") for each in (texts, places, again, own)]
    outputs = layers.Dense(1, activation="sigmoid")(layers.Concatenate()(found))
    return compiled(keras.Model(inputs, outputs)), (np.resize(words, (24, 1)), Y), None
"""
        (tmp_path / "code" / "job.py").write_text(HEAD + code)
        keras.utils.clear_session()
        work = workload_build(tmp_path, spec_of(), ReportWriter(tmp_path, 0, len(digests)))
        digests.append(work.state.layout_digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 1 + len(TABLES)


def described(*values: Any) -> str:
    @tf.function
    def scaled(x: Any) -> Any:
        return [x * tf.constant(value) for value in values]

    graph = scaled.get_concrete_function(tf.TensorSpec([], values[0].dtype)).graph
    return constants_fingerprint(graph, [])


def test_constants_are_told_apart_by_their_order_but_not_by_their_last_bits() -> None:
    value = np.random.default_rng(1).normal(size=(4, 9)).astype("float32")
    assert described(value) == described(np.nextafter(value, np.float32(9)))
    assert described(value) != described(value[::-1].copy())
    assert described(value) != described(-value)
    assert described(value, value[0]) == described(value, value[1]), "few elements are shapes"
    infinite = np.full(20, np.inf, "float32")
    assert described(infinite) != described(np.zeros(20, "float32"))

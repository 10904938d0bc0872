"""Job files with a fault each, and the headlines that they end with."""

from __future__ import annotations

from tests.agents.trainer.misfit_jobs import MISFITS
from tests.agents.trainer.trial_jobs import returning

#: A family of errors -> the code, the headline, and the text of the line that is at fault (whose
#: number stands in the headline as {line}), unless no line of the job's was running.
FAULTS: dict[str, tuple[str, ...]] = {
    **MISFITS,
    "a metric that keeps tensors in a list": (
        returning(
            'compiled(net(), metrics=[Listed(name="listed")])',
            before="""
            class Listed(keras.metrics.Metric):
                values = []
                def update_state(self, y_true, y_pred, sample_weight=None):
                    self.values.append(ops.mean(y_pred))
                def result(self):
                    return ops.mean(ops.stack(self.values))
            """,
        ),
        "A tensor of a step is used after the step: a list or an attribute keeps it. Keep a number "
        "in add_weight() of the layer or add_variable() of the metric, and return other tensors",
        "ops.stack(self.values)",
    ),
    "an optimizer of Keras 2": (
        returning("compiled(net(), keras.optimizers.legacy.SGD())"),
        "An import failed: keras.optimizers.legacy is not in Keras 3; use the optimizer of the "
        "same name in keras.optimizers",
        "keras.optimizers.legacy",
    ),
    "a summary for TensorBoard": (
        returning(
            "compiled(net(Noting()))",
            before="""
            import tensorflow as tf
            class Noting(layers.Layer):
                def call(self, x):
                    tf.summary.scalar("mean", ops.mean(x), step=0)
                    return x
            """,
        ),
        "tf.summary.scalar needs TensorBoard, which trainers do not have; leave it out, and give "
        "compile() a metric for numbers to follow: they stand in the job's curves",
        'tf.summary.scalar("mean"',
    ),
    "a file beside the job": (
        """
        def build(settings):
            rows = np.loadtxt("data/rows.csv")
        """,
        "build(settings) in job.py raised FileNotFoundError: data/rows.csv not found. (job.py, "
        "line {line}); files of the .zip lie beside the job's file: "
        "Path(__file__).with_name('table.csv')",
        "np.loadtxt",
    ),
    "a download": (
        """
        def build(settings):
            raise Exception("URL fetch failure on https://a.org/b.npz: None -- not known")
        """,
        "The node cannot download https://a.org/b.npz (not known); put the file into the uploaded "
        ".zip, or let the operator put it on every node",
        "URL fetch",
    ),
    "types": (
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.d = layers.Dense(1)
            def call(self, x):
                import tensorflow as tf
                return self.d(x) + tf.reduce_sum(tf.cast(x, tf.float64))
        def build(settings):
            model = Mine()
            model.compile("sgd","mse")
            return model, (X, Y), None
        """,
        "Types do not match: AddV2 gets float32 and float64; convert one of them with "
        "keras.ops.cast",
    ),
    "a sum": (
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.d = layers.Dense(3)
            def call(self, x):
                return self.d(x) + x
        def build(settings):
            model = Mine()
            model.compile("sgd","mse")
            return model, (X, Y), None
        """,
        "Two tensors in the model do not fit together: they have the shapes (5, 3) and (5, 4)",
    ),
    "a fixed number of examples": (
        returning(
            "compiled(keras.Model(images, layers.Dense(1)(ops.reshape(images, (9, 4)))))",
            before="images = keras.Input(batch_shape=(9, 4))",
        ),
        "A reshape in the model does not fit: its shape (9, 4) holds 36 numbers, its input 20; "
        "give -1 for the number of examples, which is that of a slice of the batch",
    ),
    "a missing module": (
        """
        import pandas_is_not_here
        def build(settings):
            pass
        """,
        "There is no module 'pandas_is_not_here' on the node; put it into the uploaded .zip "
        "beside the job's file, or do without it",
    ),
    "a module of Keras 2": (
        """
        from keras.utils.np_utils import to_categorical
        """,
        "Keras 3 and TensorFlow 2 have no module 'keras.utils.np_utils'; import what it held from "
        "another place in them, or do without it",
        "np_utils",
    ),
    "a missing name": (
        """
        from math import cosinus
        def build(settings):
            pass
        """,
        "An import failed: cannot import name 'cosinus' from 'math'",
    ),
    "syntax": (
        """
        def build(settings)
            pass
        """,
        "job.py, line {line}, is not valid Python: expected ':'",
        "def build(settings)",
    ),
    "nothing returned": (
        """
        def build(settings):
            model = net()
        """,
        "build(settings) returned nothing; end it with `return` and (compiled keras.Model, "
        "training data, validation data or None)",
    ),
    "only the model returned": (
        """
        def build(settings):
            return compiled(net())
        """,
        "build(settings) returned a Functional alone; end it with `return` and (compiled "
        "keras.Model, training data, validation data or None)",
    ),
    "an error of the user's own": (
        """
        def load():
            raise ValueError("the file has no rows")
        def build(settings):
            return load()
        """,
        "build(settings) in job.py raised ValueError: the file has no rows (job.py, line {line})",
        "raise ValueError",
    ),
    "an error in an own layer": (
        returning(
            "compiled(net(Mine()))",
            before="""
            class Mine(layers.Layer):
                def call(self, x):
                    raise ValueError("I want more")
            """,
        ),
        "build(settings) in job.py raised ValueError: I want more (job.py, line {line})",
        'raise ValueError("I want more")',
    ),
    "a setting as an attribute": (
        returning("compiled(net(layers.Dense(settings.units)))"),
        "A dict has no attribute 'units'; settings are a dict: read settings['units'], or "
        "settings.get('units', default)",
        "settings.units",
    ),
    "a missing setting": (
        """
        def build(settings):
            return settings["width"]
        """,
        "build(settings) in job.py raised KeyError: 'width' (job.py, line {line})",
        'settings["width"]',
    ),
    "an error without a message": (
        """
        def build(settings):
            assert settings.get("x")
        """,
        "build(settings) in job.py raised AssertionError (job.py, line {line})",
        "assert settings",
    ),
    "an unknown loss": (
        returning('compiled(net(), loss="meen")'),
        "Keras knows no loss named 'meen'",
    ),
    "an unknown activation": (
        returning('compiled(net(activation="rellu"))'),
        "Keras knows no activation named 'rellu'",
    ),
    "the value of a tensor": (
        returning(
            "compiled(net(Mine()))",
            before="""
            class Mine(layers.Layer):
                def call(self, x):
                    return x if ops.mean(x) > 0 else -x
            """,
        ),
        "The code asks for the value of a tensor, which has none yet where a step is traced, as "
        "fit traces it: in place of if, for, float(), .numpy() and NumPy use keras.ops, such as "
        "ops.where, ops.cond and ops.fori_loop",
        "ops.mean(x) > 0",
    ),
    "a gradient by weights within a loss": (
        """
        import tensorflow as tf

        class Steep(keras.Model):
            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                with tf.GradientTape() as tape:
                    loss = ops.mean(ops.square(y - self(x)))
                slopes = tape.gradient(loss, self.trainable_variables)
                return loss + sum(ops.sum(ops.square(slope)) for slope in slopes)

        def build(settings):
            inputs = keras.Input((4,))
            return compiled(Steep(inputs, layers.Dense(1)(inputs)), loss=None), (X, Y), None
        """,
        "The code takes a gradient by the model's weights, and that of a slice is another one than "
        "that of the batch, so no loss may contain it: take gradients by tensors (tape.watch(x)), "
        "and leave those by weights to the training step",
        "slopes = tape.gradient",
    ),
    "threads of TensorFlow": (
        """
        import tensorflow as tf

        tf.ones(1)  # TensorFlow has begun in trainers, too
        tf.config.threading.set_intra_op_parallelism_threads(2)
        """,
        "TensorFlow's threads and devices are set before a job's code runs; leave calls of "
        "tf.config that set them out",
        "tf.config.threading.set_intra_op_parallelism_threads(2)",
    ),
    "a loss added to a model": (
        """
        def build(settings):
            model = compiled(net())
            model.add_loss(0.0)
        """,
        "Sequential models and those of keras.Model(inputs, outputs) have no add_loss() in Keras "
        "3; call self.add_loss() in the call() of a layer of your own, or write compute_loss() of "
        "a model",
        "model.add_loss(0.0)",
    ),
    "an own add_loss that is not written yet": (
        """
        def add_loss(model):
            raise NotImplementedError("my penalty is not written yet")

        def build(settings):
            add_loss(net())
        """,
        "build(settings) in job.py raised NotImplementedError: my penalty is not written yet "
        "(job.py, line {line})",
        "raise NotImplementedError",
    ),
    "a loss of half precision added by a layer": (
        """
        class Small(layers.Layer):
            def call(self, inputs):
                self.add_loss(ops.mean(inputs))
                return inputs

        def build(settings):
            model = keras.Sequential([Small(dtype="mixed_bfloat16"), layers.Dense(1)])
            return compiled(model), (X, Y), None
        """,
        "A list holds numbers of the types bfloat16 and float32, as the terms of a loss do if a "
        "layer of half precision adds one; convert them with keras.ops.cast, as by "
        "self.add_loss(ops.cast(term, 'float32'))",
    ),
    "no loss in inference": (
        """
        class Small(layers.Layer):
            def call(self, inputs, training=False):
                if training:
                    self.add_loss(ops.mean(inputs))
                return inputs

        def build(settings):
            model = keras.Sequential([layers.Dense(1), Small()])
            model.compile("sgd")
            return model, (X, Y), (X, Y)
        """,
        "The model has no loss: give compile() one, or let a layer call self.add_loss(). With "
        "validation data it needs one in inference, too, where training is false",
    ),
    "data without labels": (
        returning("compiled(net())", "(X,)"),
        "A value is None where a tensor is needed: the data have no labels, and a loss or metric "
        "reads them; a return is missing in call(), in a loss, a metric, a regularizer or a "
        "schedule; or add_weight() of a metric has no initializer, such as 'zeros'",
    ),
    "a metric without a first value": (
        returning(
            "compiled(net(), metrics=[Counted()])",
            before="""
            class Counted(keras.metrics.Metric):
                def __init__(self):
                    super().__init__()
                    self.total = self.add_weight()
            """,
        ),
        "A value is None where a tensor is needed: the data have no labels, and a loss or metric "
        "reads them; a return is missing in call(), in a loss, a metric, a regularizer or a "
        "schedule; or add_weight() of a metric has no initializer, such as 'zeros'",
        "self.add_weight()",
    ),
    "examples set against each other": (
        """
        def build(settings):
            return compiled(net(), loss=lambda y, p: ops.mean(p[::2] - p[1::2])), (X, Y), None
        """,
        "The loss sets 3 and 2 examples against each other; a slice of the batch has any number "
        "of examples, so let the loss treat each one by itself",
    ),
    "pairs of examples": (
        """
        def build(settings):
            return compiled(net(), loss=lambda y, p: ops.reshape(p, (-1, 2))[:, 0]), (X, Y), None
        """,
        "Building the model for 5 of a batch's examples, a virtual node's slice, raised "
        "ValueError: Dimension size must be evenly divisible by 2 but is 5 for '{{{{node "
        "compile_loss/lambda/Reshape}}}} = Reshape[T=DT_FLOAT, Tshape=DT_INT32](Placeholder_2, "
        "compile_loss/lambda/Reshape/shape)' with input shapes: [5,1], [2] and with input tensors "
        "computed as partial shapes: input[1] = [?,2]. (job.py, line {line})",
        "ops.reshape(p, (-1, 2))",
    ),
    "text for numbers": (
        returning("compiled(net())", '(np.full((24, 4), "a"), Y)'),
        "The model gets text where it computes with numbers; let a layer such as StringLookup, "
        "Hashing or TextVectorization make numbers of it first",
    ),
    "text for numbers, without an input layer": (
        """
        def build(settings):
            return compiled(keras.Sequential([layers.Dense(1)])), (np.full((24, 4), "a"), Y), None
        """,
        "The model gets text where it computes with numbers; let a layer such as StringLookup, "
        "Hashing or TextVectorization make numbers of it first",
    ),
    "numbers for text": (
        """
        def build(settings):
            known = layers.StringLookup(vocabulary=["a"], output_mode="multi_hot")
            return compiled(keras.Sequential([known, layers.Dense(1)])), (X, Y), None
        """,
        "The model gets numbers where it takes text, as an input with dtype='string' and a "
        "StringLookup do; give it strings, or an IntegerLookup for whole numbers",
    ),
    "text without a vocabulary": (
        """
        def build(settings):
            model = keras.Sequential([
                keras.Input((4,), dtype="string"), layers.StringLookup(), layers.Dense(1),
            ])
            return compiled(model), (np.full((24, 4), "a"), Y), None
        """,
        "A layer such as StringLookup or TextVectorization has no vocabulary: call its adapt() in "
        "build, or give it one (vocabulary=...)",
    ),
    "a function of the backend of Keras 2": (
        """
        def build(settings):
            return keras.backend.mean(X)
        """,
        "Keras 3 has no keras.backend.mean; what keras.backend could do is in keras.ops",
        "keras.backend.mean",
    ),
    "an end of the process": (
        """
        import sys
        def build(settings):
            sys.exit(1)
        """,
        "build(settings) in job.py raised SystemExit: 1 (job.py, line {line})",
        "sys.exit(1)",
    ),
}

LABEL_OUT_OF_RANGE = """
import keras
import numpy as np

def build(settings):
    x = np.zeros((60, 4), "float32")
    labels = np.arange(60) % 3
    labels[-1] = 12
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model, (x, labels), None
"""

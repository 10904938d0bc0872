"""Code of models that a validation accepts, and of models that it refuses."""

from __future__ import annotations

from tests.agents.trainer.trial_jobs import returning

ACCEPTED = {
    "dropout, batch normalisation and a step counter": returning(
        "compiled(net(StepCounter(), layers.BatchNormalization(), layers.Dropout(0.5)))",
        before="""
        class StepCounter(layers.Layer):
            def build(self, shape):
                self.steps = self.add_weight(shape=(), dtype="int32", trainable=False, name="n",
                                             initializer="zeros")

            def call(self, inputs, training=False):
                if training:
                    self.steps.assign_add(1)
                return inputs
        """,
    ),
    "several inputs and outputs as dicts": """
        def build(settings):
            a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
            joined = layers.Concatenate()([a, b])
            outputs = {"p": layers.Dense(1)(joined), "q": layers.Dense(2)(joined)}
            model = keras.Model({"a": a, "b": b}, outputs)
            model.compile(
                "adam",
                {"p": "mse", "q": keras.losses.MeanAbsoluteError(reduction="sum")},
                loss_weights={"p": 0.3, "q": 2.0},
                metrics={"p": ["mae"]},
                weighted_metrics={"q": ["mse"]},
            )
            weights = {"p": np.arange(24.0), "q": np.ones(24)}
            return model, ({"a": X, "b": X}, {"p": Y, "q": X[:, :2]}, weights), None
    """,
    "several outputs as a tuple with one array of weights": """
        def build(settings):
            inputs = keras.Input((4,))
            model = keras.Model(inputs, (layers.Dense(1)(inputs), layers.Dense(2)(inputs)))
            model.compile("sgd", ["mse", "mae"], metrics=[["mae"], []])
            return model, (X, (Y, X[:, :2]), np.linspace(0, 2, 24)), None
    """,
    "weights of one output of three, and labels with other axes": """
        def build(settings):
            inputs = keras.Input((4,))
            wide, image = layers.Dense(12)(inputs), layers.Dense(24)(inputs)
            outputs = {
                "p": layers.Dense(1)(inputs),
                "q": layers.Reshape((3, 4))(wide),
                "r": layers.Reshape((2, 3, 4))(image),
            }
            model = keras.Model(inputs, outputs)
            model.compile("sgd", "mse", weighted_metrics={"q": ["mae"]})
            labels = {"p": Y, "q": np.ones((24, 3, 4)), "r": np.ones((24, 2, 3, 4))}
            data = X, labels, {"p": np.ones(24), "q": None, "r": None}
            return model, data, data
    """,
    "labels of one output of two": """
        def build(settings):
            inputs = keras.Input((4,))
            hidden = layers.Dense(3)(inputs)
            model = keras.Model(inputs, [layers.Dense(1)(hidden), hidden])
            model.compile("sgd", ["mse", None])
            return model, (X, [Y, None]), (X, [Y, None])
    """,
    "add_loss and regularisers, with warnings as errors": """
        import warnings

        warnings.simplefilter("error")

        @keras.saving.register_keras_serializable("test")
        class Penalised(layers.Layer):
            def call(self, inputs):
                self.add_loss(0.1 * ops.mean(ops.square(inputs)))
                return inputs

        def build(settings):
            dense = layers.Dense(
                5, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.01)
            )
            return compiled(net(dense, Penalised())), (X, Y), None
    """,
    "a loss from add_loss alone": """
        class Copier(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(4)

            def call(self, inputs):
                outputs = self.dense(inputs)
                self.add_loss(ops.mean(ops.square(outputs - inputs)))
                return outputs

        def build(settings):
            return compiled(Copier(), loss=None), X, None
    """,
    "a loss in training alone, without validation": """
        class Noised(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(4)
                self.noise = keras.random.SeedGenerator(3)

            def call(self, inputs, training=False):
                if not training:
                    return self.dense(inputs)
                noise = keras.random.normal(ops.shape(inputs), seed=self.noise)
                outputs = self.dense(inputs + noise)
                self.add_loss(ops.mean(ops.square(outputs - noise)))
                return outputs

        def build(settings):
            return compiled(Noised(), loss=None), X, None
    """,
    "class weights, AUC and weighted metrics": """
        def build(settings):
            model = compiled(
                net(), metrics=["accuracy", keras.metrics.AUC(num_thresholds=11)],
                weighted_metrics=["accuracy"],
            )
            return model, (X, Y), (X, Y), {"class_weight": {1: 3.0}}
    """,
    "clipping, decay, averages and a schedule": returning(
        """compiled(net(), keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(0.01, 100),
            weight_decay=0.1, global_clipnorm=1.0, use_ema=True, ema_overwrite_frequency=3))"""
    ),
    "clipvalue and accumulation": returning(
        "compiled(net(), keras.optimizers.SGD(0.1, clipvalue=0.5, gradient_accumulation_steps=2))"
    ),
    "mixed precision with a loss scale": """
        def build(settings):
            keras.config.set_dtype_policy("mixed_float16")
            try:
                head = layers.Dense(1, activation="sigmoid", dtype="float32")
                model = keras.Sequential([keras.Input((4,)), layers.Dense(8), head])
                return compiled(model, "adam", metrics=["mae"]), (X, Y), None
            finally:
                keras.config.set_dtype_policy("float32")
    """,
    "a loss in half precision": returning(
        "compiled(net(), loss=keras.losses.MeanSquaredError(dtype='bfloat16'))"
    ),
    "frozen layers and constraints": returning(
        "compiled(net(layers.Dense(3, trainable=False), layers.Dense(3, kernel_constraint="
        "keras.constraints.UnitNorm())))"
    ),
    "a compute_loss of one's own": returning(
        "compiled(Own(*ends()), loss=None, metrics=['mae'])",
        before="""
        class Own(keras.Model):
            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return ops.mean(ops.square(y - y_pred))

        def ends():
            inputs = keras.Input((4,))
            return inputs, layers.Dense(1)(inputs)
        """,
    ),
    "noise from Keras's own generator, in a model that is built by its first data": returning(
        "compiled(keras.Sequential([Noise(), layers.Dense(1)]), loss='mse')",
        before="""
        @keras.saving.register_keras_serializable("test")
        class Noise(layers.Layer):
            def call(self, inputs):
                return inputs + keras.random.normal(ops.shape(inputs))
        """,
    ),
    "a mask on an output without a loss": """
        def build(settings):
            inputs = keras.Input((6,))
            words = layers.Embedding(9, 3, mask_zero=True)(inputs)
            outputs = {"words": words, "p": layers.Dense(1)(layers.GlobalAveragePooling1D()(words))}
            model = compiled(keras.Model(inputs, outputs), loss={"p": "mse"})
            return model, (random.integers(0, 9, size=(24, 6)), {"p": Y}), None
    """,
}

#: By the code of the refusal.
REFUSED_MODELS = {
    "custom_train_step": returning(
        "compiled(Own(*ends()))",
        before="""
        class Own(keras.Model):
            def train_step(self, data):
                return {"loss": 0.0}

        def ends():
            inputs = keras.Input((4,))
            return inputs, layers.Dense(1)(inputs)
        """,
    ),
    "run_eagerly": returning("compiled(net(), run_eagerly=True)"),
    "distribution_scope": """
        import tensorflow as tf

        def build(settings):
            with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
                model = compiled(net())
            return model, (X, Y), None
    """,
    "not_compiled": returning("net()"),
    "nothing_to_train": returning(
        "compiled(keras.Sequential([keras.Input((4,)), layers.ReLU()]), loss='mse')", "(X, X)"
    ),
    "complex_variable": returning(
        "compiled(net(Wave()))",
        before="""
        class Wave(layers.Layer):
            def build(self, shape):
                self.phase = self.add_weight(shape=(4,), dtype="complex64", initializer="ones")

            def call(self, inputs):
                return ops.real(ops.cast(inputs, "complex64") * self.phase)
        """,
    ),
    "loss_reduction": returning(
        "compiled(net(), loss=keras.losses.BinaryCrossentropy(reduction=None))"
    ),
    "stateful_layer": """
        def build(settings):
            model = keras.Sequential(
                [keras.Input((4, 1), batch_size=5), layers.LSTM(2, stateful=True), layers.Dense(1)]
            )
            return compiled(model), (X[..., None], Y), None
    """,
    "calibrated_policy": returning(
        "compiled(net(layers.Dense(3, dtype=keras.dtype_policies.get('gptq/4/-1_from_float32'))))"
    ),
    "weight_assigned": returning(
        "compiled(net(Centred()))",
        before="""
        class Centred(layers.Layer):
            def build(self, shape):
                self.shift = self.add_weight(shape=(4,), initializer="zeros")

            def call(self, inputs, training=False):
                if training:
                    self.shift.assign(ops.mean(inputs, 0))
                return inputs - self.shift
        """,
    ),
    "synchronized_normalization": returning(
        "compiled(net(layers.BatchNormalization(synchronized=True)))"
    ),
    "process_random": returning(
        "compiled(net(Noise()))",
        before="""
        import tensorflow as tf

        class Noise(layers.Layer):
            def call(self, inputs, training=False):
                return inputs + tf.random.normal(tf.shape(inputs)) if training else inputs
        """,
    ),
    "python_function": returning(
        "compiled(net(Python()))",
        before="""
        import tensorflow as tf

        class Python(layers.Layer):
            def call(self, inputs):
                return tf.ensure_shape(tf.py_function(lambda v: v, [inputs], tf.float32), (None, 4))
        """,
    ),
    "metric_not_additive": returning(
        "compiled(net(), metrics=[Largest()])",
        before="""
        class Largest(keras.metrics.Metric):
            def __init__(self):
                super().__init__(name="largest")
                self.value = self.add_weight(name="value", initializer="zeros")

            def update_state(self, y_true, y_pred, sample_weight=None):
                self.value.assign(ops.maximum(self.value, ops.max(y_pred)))

            def result(self):
                return self.value
        """,
    ),
    "metric_not_a_number": returning(
        "compiled(net(out=3), loss='mse', metrics=[keras.metrics.F1Score()])", "(X, Y * [1, 0, 1])"
    ),
    "loss_not_additive": returning(
        "compiled(net(layers.Dense(2), layers.Lambda(unit)))",
        before="""
        import tensorflow as tf

        @tf.custom_gradient
        def unit(inputs):
            return inputs, lambda gradient: gradient / tf.norm(gradient)
        """,
    ),
    "untracked_state": returning(
        "compiled(net(Counter()))",
        before="""
        import tensorflow as tf

        class Counter(layers.Layer):
            def __init__(self):
                super().__init__()
                self.steps = tf.Variable(0.0)

            def call(self, inputs):
                self.steps.assign_add(1.0)
                return inputs / self.steps
        """,
    ),
    "enclosed_state": returning(
        "compiled(net(Repeated()))",
        before="""
        class Repeated(layers.Layer):
            def __init__(self):
                super().__init__()
                self.dropout = layers.Dropout(0.5)

            def call(self, inputs, training=False):
                step = lambda h, _: (self.dropout(h, training=training), h)
                return ops.scan(step, inputs, length=3)[0]
        """,
    ),
    "state_not_combinable": returning(
        "compiled(net(RowCounter()))",
        before="""
        class RowCounter(layers.Layer):
            def build(self, shape):
                self.rows = self.add_weight(shape=(), dtype="int32", trainable=False, name="n",
                                            initializer="zeros")

            def call(self, inputs, training=False):
                if training:
                    self.rows.assign_add(ops.shape(inputs)[0])
                return inputs
        """,
    ),
}

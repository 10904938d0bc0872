"""Explains the frequent errors of Keras and TensorFlow in one sentence each.

Each family of errors consists of a pattern for the text and a sentence with the pattern's groups as
fields, or a function that writes the sentence.
The patterns fit the pinned versions; the text of an error that matches none is reported unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

from agents.trainer.contract.shape_sentences import (
    NOT_ACCEPTED,
    DataShapes,
    Match,
    axis_sentence,
    index_range_sentence,
    label_range_sentence,
    labels_shape_sentence,
    listed,
    missing_input_sentence,
    num_inputs_sentence,
    rank_sentence,
    reshape_sentence,
    runtime_sizes_sentence,
    sizes_sentence,
    sparse_rank_sentence,
    structures_sentence,
    whole_shape_sentence,
)

_DETECTED = "Detected at node "
_KEY_IN_CALL = re.compile(
    r"\AException encountered when calling [^\n]*\n\n(?P<key>[^\n]+)\n\nArguments received by "
    r".*?• \w+=\{(?P<inputs>[^}\n]*)\}",
    re.DOTALL,
)
_WRAPPERS = (
    re.compile(
        r"\AException encountered when calling [^\n]*\n\n(.*?)\n\nArguments received by ", re.DOTALL
    ),
    re.compile(r"\ACould not automatically infer .*?Error encountered:\n\n(.*)", re.DOTALL),
    re.compile(rf"\AGraph execution error:\n\n{_DETECTED}(.*)", re.DOTALL),
)
_WRAPPED_LIMIT = 10


def known_sentence(text: str, shapes: DataShapes = ()) -> str | None:
    """Return the sentence for an error's plain text; None if its family is not known.

    Args:
        shapes: shapes of the data, to recognise a layer whose input is the data themselves.
    """
    inner = unwrapped(text)
    for pattern, sentence in _FAMILIES:
        found = pattern.search(inner)
        if found is not None:
            with suppress(ValueError, IndexError):  # the text matches, but has unexpected values
                if isinstance(sentence, str):
                    return sentence.format(**found.groupdict())
                return sentence(found, shapes)
    return None


def unwrapped(text: str) -> str:
    """Remove the texts that Keras wraps around an error's text, layer by layer."""
    for _ in range(_WRAPPED_LIMIT):
        found = next((m for pattern in _WRAPPERS if (m := pattern.match(text))), None)
        if found is None:
            return text
        text = found[1]
    return text


def reason_line(text: str) -> str:
    """Return the most telling line of an error's text: its first, or TensorFlow's last."""
    inner = unwrapped(text)
    lines = [line.strip() for line in inner.splitlines() if line.strip()]
    if inner is not text and _DETECTED in text:
        lines = [line for line in lines[::-1] if not line.startswith(("[[{{node", "File "))]
    return lines[0] if lines else ""


def missing_key_sentence(text: str) -> str | None:
    """Name the missing input if a user's model looks up an input in a dict."""
    found = _KEY_IN_CALL.search(text)
    if found is None:
        return None
    names = re.findall(r"'(\w+)': ", found["inputs"])
    key = found["key"].strip("'")
    if not names or key in names:
        return None
    return f"{NOT_ACCEPTED}: its input {key!r} is missing, the data have {listed(names)}"


def missing_output_sentence(key: str) -> str:
    """Name the output for which labels in a dict have nothing."""
    return (
        f"The labels have no {key!r}, which is an output of the model; with metrics give an entry "
        "for each output, None for one without a loss"
    )


def import_sentence(error: ImportError) -> str:
    """Name the failed import and the fix."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name.startswith(("keras.", "tensorflow.")):
            return (
                f"Keras 3 and TensorFlow 2 have no module {error.name!r}; import what it held from "
                "another place in them, or do without it"
            )
        return (
            f"There is no module {error.name!r} on the node; put it into the uploaded .zip beside "
            "the job's file, or do without it"
        )
    if "keras.optimizers.legacy" in str(error):  # Keras advises an installation of Keras 2
        return (
            "An import failed: keras.optimizers.legacy is not in Keras 3; use the optimizer of the "
            "same name in keras.optimizers"
        )
    # Without the place of the module, a path or "unknown location".
    said = re.sub(r" \((/[^()]*|unknown location)\)$", "", error.msg or str(error))
    return f"An import failed: {said}"


def syntax_sentence(error: SyntaxError, name: str) -> str:
    """Name the place and the cause of a syntax error."""
    return f"{name}, line {error.lineno}, is not valid Python: {error.msg}"


_SHAPE = r"(?:\([^()]*\)|\[[^\[\]]*\])"
_INPUT = (
    r"Input \d+(?: with name '[^']*')? of layer ['\"](?P<layer>[^'\"]+)['\"] is incompatible with "
    r"the layer: expected "
)
_RANGE = r"(?P<number>-?\d+) (?:which is outside the valid range of|is not in) \[0, (?P<end>\d+)\)"
_TYPES = (
    "Types do not match: {operation} gets {first} and {second}; convert one of them with "
    "keras.ops.cast"
)
_FAMILIES: tuple[tuple[re.Pattern[str], str | Callable[[Match, DataShapes], str]], ...] = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (
            _INPUT + r"axis (?P<axis>-?\d+) of input shape to have value (?P<wanted>\d+), but "
            rf"received input with shape (?P<shape>{_SHAPE})",
            axis_sentence,
        ),
        (
            _INPUT + r"(?P<bound>(?:min_|max_)?ndim)=(?P<wanted>\d+), found ndim=\d+\. Full shape "
            rf"received: (?P<shape>{_SHAPE})",
            rank_sentence,
        ),
        (
            _INPUT + rf"shape=(?P<wanted>{_SHAPE}), found shape=(?P<shape>{_SHAPE})",
            whole_shape_sentence,
        ),
        (
            r"expects (?P<wanted>\d+)(?: named)? input\(s\)(?: with keys (?P<names>\[[^\]]*\]))?, "
            r"but it received (?P<got>\d+) input tensors",
            num_inputs_sentence,
        ),
        (
            r'Missing data for input "([^"]+)"\. You passed a data dictionary with keys '
            r"(\[[^\]]*\])",
            missing_input_sentence,
        ),
        (
            r"Arguments `target` and `output` must have the same [^.]*\. Received: "
            rf"target\.shape=(?P<labels>{_SHAPE}), output\.shape=(?P<outputs>{_SHAPE})",
            labels_shape_sentence,
        ),
        (
            r"`logits` and `labels` must have the same shape, received "
            rf"\((?P<outputs>{_SHAPE}) vs (?P<labels>{_SHAPE})\)",
            labels_shape_sentence,
        ),
        (
            r"logits and labels must be broadcastable: "
            rf"logits_size=(?P<outputs>{_SHAPE}) labels_size=(?P<labels>{_SHAPE})",
            labels_shape_sentence,
        ),
        (
            r"Argument `output` must have rank \(ndim\) `target\.ndim - 1`\. Received: "
            rf"target\.shape=(?P<labels>{_SHAPE})",
            sparse_rank_sentence,
        ),
        (
            r"Dimensions must be equal, but are \d+ and \d+ for '\{\{node (?P<node>[^}]+)\}\} = "
            r"(?P<operation_text>(?P<operation>\w+).*?)with input shapes: "
            rf"(?P<first>{_SHAPE}), (?P<second>{_SHAPE})",
            sizes_sentence,
        ),
        (
            r"(?:(?P<matrix>Matrix size-incompatible: In\[0\]: )|Incompatible shapes: )"
            rf"(?P<first>{_SHAPE})(?:, In\[1\]: | vs\. )(?P<second>{_SHAPE})",
            runtime_sizes_sentence,
        ),
        (
            r"Cannot reshape a tensor with (?P<given>\d+) elements to shape "
            rf"(?P<wanted>{_SHAPE}) \((?P<size>\d+) elements\)",
            reshape_sentence,
        ),
        (rf"Received a label value of {_RANGE}", label_range_sentence),
        (rf"indices\[?[\d,]*\]? = {_RANGE}", index_range_sentence),
        (
            r"y_true and y_pred have different structures\.\ny_true: (?P<labels>.*)\n"
            r"y_pred: (?P<outputs>.*)",
            structures_sentence,
        ),
        (
            r"Expected float\d+, but got (?P<text>\S{1,100}) of type 'str'",
            "The text {text!r} stands where a step takes numbers; labels in a dict need the names "
            "of the model's outputs as keys",
        ),
        (
            r"Input '\w+' of '(?P<operation>\w+)' Op has type (?P<second>\w+) that does not match "
            r"type (?P<first>\w+) of argument",
            _TYPES,
        ),
        (
            r"cannot compute (?P<operation>\w+) as input #\d+\(zero-based\) was expected to be an? "
            r"(?P<first>\w+) tensor but is an? (?P<second>\w+) tensor",
            _TYPES,
        ),
        (
            r"Cannot convert a list containing a tensor of dtype <dtype: '(?P<first>\w+)'> to "
            r"<dtype: '(?P<second>\w+)'>",
            "A list holds numbers of the types {first} and {second}, as the terms of a loss do if "
            "a layer of half precision adds one; convert them with keras.ops.cast, as by "
            "self.add_loss(ops.cast(term, {second!r}))",
        ),
        (
            r"No loss to compute\. Provide a `loss` argument",
            "The model has no loss: give compile() one, or let a layer call self.add_loss(). With "
            "validation data it needs one in inference, too, where training is false",
        ),
        (
            r"URL fetch failure on (?P<url>\S+): \w+ -- (?P<why>[^\n]+)",
            "The node cannot download {url} ({why}); put the file into the uploaded .zip, or let "
            "the operator put it on every node",
        ),
        (
            r"> is out of scope and cannot be used here",
            "A tensor of a step is used after the step: a list or an attribute keeps it. Keep a "
            "number in add_weight() of the layer or add_variable() of the metric, and return other "
            "tensors",
        ),
        (  # TensorFlow advises eager execution, which a job cannot have
            r"symbolic `?tf\.Tensor|not 'SymbolicTensor'"
            r"|'SymbolicTensor' object (?:cannot be|has no attribute 'numpy')",
            "The code asks for the value of a tensor, which has none yet where a step is traced, "
            "as fit traces it: in place of if, for, float(), .numpy() and NumPy use keras.ops, "
            "such as ops.where, ops.cond and ops.fori_loop",
        ),
        (
            r"None values not supported\.|Attempt to convert a value \(None\)|Got 'None' \(of type "
            r"<class 'NoneType'>\) as input for layer|'NoneType' object has no attribute '(?:dtype|"
            r"shape)'",
            "A value is None where a tensor is needed: the data have no labels, and a loss or "
            "metric reads them; a return is missing in call(), in a loss, a metric, a regularizer "
            "or a schedule; or add_weight() of a metric has no initializer, such as 'zeros'",
        ),
        (
            r"'SymbolicTensor' object has no attribute 'handle'",
            "The code takes a gradient by the model's weights, and that of a slice is another one "
            "than that of the batch, so no loss may contain it: take gradients by tensors "
            "(tape.watch(x)), and leave those by weights to the training step",
        ),
        (
            r"(?:parallelism|devices) cannot be modified after (?:being )?initializ",
            "TensorFlow's threads and devices are set before a job's code runs; leave calls of "
            "tf.config that set them out",
        ),
        (
            r"module 'keras\.backend' has no attribute '(?P<name>\w+)'",
            "Keras 3 has no keras.backend.{name}; what keras.backend could do is in keras.ops",
        ),
        (
            r"Cast string to \w+ is not supported|dtype='string' is not a valid dtype",
            "The model gets text where it computes with numbers; let a layer such as StringLookup, "
            "Hashing or TextVectorization make numbers of it first",
        ),
        (
            r"Cast \w+ to string is not supported",
            "The model gets numbers where it takes text, as an input with dtype='string' and a "
            "StringLookup do; give it strings, or an IntegerLookup for whole numbers",
        ),
        (
            r"Table not initialized",
            "A layer such as StringLookup or TextVectorization has no vocabulary: call its adapt() "
            "in build, or give it one (vocabulary=...)",
        ),
        # In a layer, its own text stands twice: Keras makes a new error of the same class.
        (
            r"TensorBoard is not installed, missing implementation for (?P<call>tf\.summary\.\w+)",
            "{call} needs TensorBoard, which trainers do not have; leave it out, and give "
            "compile() a metric for numbers to follow: they stand in the job's curves",
        ),
        (
            r"'(?P<model>\w+)' object has no attribute '_?optimizer'",
            "{model} reads its optimizer and has none: compile the model in build; for the model "
            "of another job, let this job's code define and register the classes of its optimizer, "
            "losses and metrics (@keras.saving.register_keras_serializable())",
        ),
        (
            r"\A'dict' object has no attribute '(?P<name>\w{1,60})'\Z",
            "A dict has no attribute {name!r}; settings are a dict: read settings[{name!r}], or "
            "settings.get({name!r}, default)",
        ),
        (
            r"Could not interpret (?P<kind>\w+)(?: function)? identifier: "
            r"\s*(?P<name>[^\n]{0,99}[^\s])",
            "Keras knows no {kind} named {name!r}",
        ),
    )
)

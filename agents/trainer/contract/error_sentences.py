"""Explains the frequent errors of Keras and TensorFlow in one sentence each.

Each family of errors consists of a pattern for the text and a sentence with the pattern's groups as
fields, or a function that writes the sentence.
The patterns fit the pinned versions; the text of an error that matches none is reported unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress

Match = re.Match[str]
Shape = tuple[int | None, ...]
#: Shapes of one example in the data, without the batch's dimension.
DataShapes = Collection[Shape]

_NOT_ACCEPTED = "The model does not accept the data"
_LABELS = "The labels do not fit the model's output"
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
#: The product of a loss with its sample weights, which are an input of the function.
_WEIGHTING = re.compile(r"Mul\[[^\]]*\]\(compile_loss/[^,]+, (Placeholder|[^,]*/Cast)")
_NODE = re.compile(r"\{\{node ([^}\s]+)\}\}")


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
    return f"{_NOT_ACCEPTED}: its input {key!r} is missing, the data have {_listed(names)}"


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


def _axis(found: Match, shapes: DataShapes) -> str:
    layer, axis, wanted, shape = found["layer"], int(found["axis"]), found["wanted"], found["shape"]
    got, holder = _example(shape), _holder(_example(shape), shapes)
    if axis == -1 and len(got) == 1:
        return (
            f"{_NOT_ACCEPTED}: {layer} expects {_count(int(wanted), 'feature')}, {holder} {got[0]}"
        )
    which = "a last dimension" if axis == -1 else f"a dimension {axis}"
    return (
        f"{_NOT_ACCEPTED}: {layer} expects {which} of {wanted}, {holder} {_shape(shape)[axis]} "
        f"(shape {_text(got)})"
    )


def _rank(found: Match, shapes: DataShapes) -> str:
    bounds = {"ndim": "", "min_ndim": "at least ", "max_ndim": "at most "}
    wanted, got = int(found["wanted"]) - 1, _example(found["shape"])
    return (
        f"{_NOT_ACCEPTED}: {found['layer']} expects examples with {bounds[found['bound']]}{wanted} "
        f"dimension{'s' * (wanted != 1)}, {_holder(got, shapes)} {len(got)} (shape {_text(got)})"
    )


def _whole_shape(found: Match, shapes: DataShapes) -> str:
    got = _example(found["shape"])
    return (
        f"{_NOT_ACCEPTED}: {found['layer']} expects the shape {_text(_example(found['wanted']))}, "
        f"{_holder(got, shapes)} {_text(got)}"
    )


def _holder(got: Shape, shapes: DataShapes) -> str:
    return "the data have" if got in shapes else "its input has"


def _num_inputs(found: Match, _shapes: DataShapes) -> str:
    wanted, got = int(found["wanted"]), int(found["got"])
    names = re.findall(r"'([^']*)'", found["names"] or "")
    named = f" ({', '.join(names)})" if names else ""
    return (
        f"{_NOT_ACCEPTED}: it has {_count(wanted, 'input')}{named}, the data have {got}; give the "
        "inputs as one tuple, ((a, b), y), or as a dict by these names"
    )


def _missing_input(found: Match, _shapes: DataShapes) -> str:
    names = _listed(re.findall(r"'([^']*)'", found[2]))
    return f"{_NOT_ACCEPTED}: its input {found[1]!r} is missing, the data have {names}"


def _labels_shape(found: Match, _shapes: DataShapes) -> str:
    labels, outputs = _example(found["labels"]), _example(found["outputs"])
    sentence = f"{_LABELS}: the labels have the shape {_text(labels)}, the output {_text(outputs)}"
    if len(labels) < len(outputs) or (labels[-1:] == (1,) and len(labels) == len(outputs)):
        return f"{sentence}; for class numbers use a sparse loss, or convert them to one-hot rows"
    return sentence


def _sparse_rank(found: Match, _shapes: DataShapes) -> str:
    labels = _text(_example(found["labels"]))
    return (
        f"{_LABELS}: a sparse loss expects one class number an example, the labels have the shape "
        f"{labels}; for one-hot rows use categorical_crossentropy"
    )


def _sizes(found: Match, shapes: DataShapes) -> str:
    operation, first, second = found["operation"], found["first"], found["second"]
    if _WEIGHTING.match(found["operation_text"]) and len(_shape(second)) == 1:
        sizes = _example(first)
        return (
            "The sample weights do not fit the loss: there is one for each example, and an "
            f"example's loss has the shape {_text(sizes)}; give weights with as many dimensions, "
            f"as by weights.reshape({', '.join(['-1'] + ['1'] * len(sizes))})"
        )
    if "compile_loss" in found["node"]:
        return _labels_sentence(second, first)
    if operation.startswith(("MatMul", "BatchMatMul", "Einsum")):
        return _product_sentence(first, second, shapes)
    return _elementwise_sentence(first, second)


def _runtime_sizes(found: Match, shapes: DataShapes) -> str:
    first, second = found["first"], found["second"]
    node = _NODE.search(found.string)
    if found["matrix"]:
        return _product_sentence(first, second, shapes)
    if node is not None and "compile_loss" in node[1]:
        return _labels_sentence(second, first)
    return _elementwise_sentence(first, second)


def _labels_sentence(outputs: str, labels: str) -> str:
    return (
        f"{_LABELS}: the labels have the shape {_text(_example(labels))}, the output "
        f"{_text(_example(outputs))}"
    )


def _product_sentence(first: str, second: str, shapes: DataShapes) -> str:
    got = _example(first)
    what = f"a matrix product expects {_shape(second)[0]} features"
    if got in shapes and len(got) == 1:
        return f"{_NOT_ACCEPTED}: {what}, the data have {got[0]}"
    return (
        "A matrix product in the model does not fit: its factors have the shapes "
        f"{_text(_shape(first))} and {_text(_shape(second))}"
    )


def _elementwise_sentence(first: str, second: str) -> str:
    return (
        "Two tensors in the model do not fit together: they have the shapes "
        f"{_text(_shape(first))} and {_text(_shape(second))}"
    )


def _reshape(found: Match, _shapes: DataShapes) -> str:
    return (
        f"A reshape in the model does not fit: its shape {_text(_shape(found['wanted']))} holds "
        f"{found['size']} numbers, its input {found['given']}; give -1 for the number of examples, "
        "which is that of a slice of the batch"
    )


def _label_range(found: Match, _shapes: DataShapes) -> str:
    number, end = int(found["number"]), int(found["end"])
    return (
        f"A label is out of range: there is a label {number}, the model has {end} classes "
        f"(0 to {end - 1})"
    )


def _index_range(found: Match, shapes: DataShapes) -> str:
    node = _NODE.search(found.string)
    path = "" if node is None else node[1]
    if "compile_loss" in path:
        return _label_range(found, shapes)
    layer = path.split("/")[-2] if "/" in path else "a look-up"
    return (
        f"A number in the data is out of range: {re.sub(r'_1$', '', layer)} takes 0 to "
        f"{int(found['end']) - 1}, the data have {found['number']}"
    )


def _structures(found: Match, _shapes: DataShapes) -> str:
    labels, outputs = (found[name].count("*") for name in ("labels", "outputs"))
    return (
        f"The labels do not fit the model's outputs: the model has {_count(outputs, 'output')}, "
        f"the data have labels for {labels}"
    )


def _shape(text: str) -> Shape:
    """Parse "(None, 4)" or "[5,4]"."""
    parts = [part.strip() for part in text.strip("()[] ").split(",")]
    return tuple(int(part) if part.isdecimal() else None for part in parts if part)


def _example(text: str) -> Shape:
    """Parse a shape and drop the batch dimension."""
    return _shape(text)[1:]


def _text(shape: Shape) -> str:
    """Render the shape of an example; a scalar has none."""
    if not shape:
        return "of a single number"
    return str(tuple("?" if size is None else size for size in shape)).replace("'", "")


def _listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in names) or "no inputs"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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
            _axis,
        ),
        (
            _INPUT + r"(?P<bound>(?:min_|max_)?ndim)=(?P<wanted>\d+), found ndim=\d+\. Full shape "
            rf"received: (?P<shape>{_SHAPE})",
            _rank,
        ),
        (_INPUT + rf"shape=(?P<wanted>{_SHAPE}), found shape=(?P<shape>{_SHAPE})", _whole_shape),
        (
            r"expects (?P<wanted>\d+)(?: named)? input\(s\)(?: with keys (?P<names>\[[^\]]*\]))?, "
            r"but it received (?P<got>\d+) input tensors",
            _num_inputs,
        ),
        (
            r'Missing data for input "([^"]+)"\. You passed a data dictionary with keys '
            r"(\[[^\]]*\])",
            _missing_input,
        ),
        (
            r"Arguments `target` and `output` must have the same [^.]*\. Received: "
            rf"target\.shape=(?P<labels>{_SHAPE}), output\.shape=(?P<outputs>{_SHAPE})",
            _labels_shape,
        ),
        (
            r"`logits` and `labels` must have the same shape, received "
            rf"\((?P<outputs>{_SHAPE}) vs (?P<labels>{_SHAPE})\)",
            _labels_shape,
        ),
        (
            r"logits and labels must be broadcastable: "
            rf"logits_size=(?P<outputs>{_SHAPE}) labels_size=(?P<labels>{_SHAPE})",
            _labels_shape,
        ),
        (
            r"Argument `output` must have rank \(ndim\) `target\.ndim - 1`\. Received: "
            rf"target\.shape=(?P<labels>{_SHAPE})",
            _sparse_rank,
        ),
        (
            r"Dimensions must be equal, but are \d+ and \d+ for '\{\{node (?P<node>[^}]+)\}\} = "
            r"(?P<operation_text>(?P<operation>\w+).*?)with input shapes: "
            rf"(?P<first>{_SHAPE}), (?P<second>{_SHAPE})",
            _sizes,
        ),
        (
            r"(?:(?P<matrix>Matrix size-incompatible: In\[0\]: )|Incompatible shapes: )"
            rf"(?P<first>{_SHAPE})(?:, In\[1\]: | vs\. )(?P<second>{_SHAPE})",
            _runtime_sizes,
        ),
        (
            r"Cannot reshape a tensor with (?P<given>\d+) elements to shape "
            rf"(?P<wanted>{_SHAPE}) \((?P<size>\d+) elements\)",
            _reshape,
        ),
        (rf"Received a label value of {_RANGE}", _label_range),
        (rf"indices\[?[\d,]*\]? = {_RANGE}", _index_range),
        (
            r"y_true and y_pred have different structures\.\ny_true: (?P<labels>.*)\n"
            r"y_pred: (?P<outputs>.*)",
            _structures,
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

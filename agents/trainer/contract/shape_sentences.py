"""Sentences about shapes, structures and ranges of data that do not fit a model.

Each function takes the match of an error's text, with named groups, and the shapes of the data.
"""

from __future__ import annotations

import re
from collections.abc import Collection

Match = re.Match[str]
Shape = tuple[int | None, ...]
#: Shapes of one example in the data, without the batch's dimension.
DataShapes = Collection[Shape]

NOT_ACCEPTED = "The model does not accept the data"
_LABELS = "The labels do not fit the model's output"
#: The product of a loss with its sample weights, which are an input of the function.
_WEIGHTING = re.compile(r"Mul\[[^\]]*\]\(compile_loss/[^,]+, (Placeholder|[^,]*/Cast)")
_NODE = re.compile(r"\{\{node ([^}\s]+)\}\}")


def axis_sentence(found: Match, shapes: DataShapes) -> str:
    layer, axis, wanted, shape = found["layer"], int(found["axis"]), found["wanted"], found["shape"]
    got, holder = _example(shape), _holder(_example(shape), shapes)
    if axis == -1 and len(got) == 1:
        return (
            f"{NOT_ACCEPTED}: {layer} expects {_count(int(wanted), 'feature')}, {holder} {got[0]}"
        )
    which = "a last dimension" if axis == -1 else f"a dimension {axis}"
    return (
        f"{NOT_ACCEPTED}: {layer} expects {which} of {wanted}, {holder} {_shape(shape)[axis]} "
        f"(shape {_text(got)})"
    )


def rank_sentence(found: Match, shapes: DataShapes) -> str:
    bounds = {"ndim": "", "min_ndim": "at least ", "max_ndim": "at most "}
    wanted, got = int(found["wanted"]) - 1, _example(found["shape"])
    return (
        f"{NOT_ACCEPTED}: {found['layer']} expects examples with {bounds[found['bound']]}{wanted} "
        f"dimension{'s' * (wanted != 1)}, {_holder(got, shapes)} {len(got)} (shape {_text(got)})"
    )


def whole_shape_sentence(found: Match, shapes: DataShapes) -> str:
    got = _example(found["shape"])
    return (
        f"{NOT_ACCEPTED}: {found['layer']} expects the shape {_text(_example(found['wanted']))}, "
        f"{_holder(got, shapes)} {_text(got)}"
    )


def _holder(got: Shape, shapes: DataShapes) -> str:
    return "the data have" if got in shapes else "its input has"


def num_inputs_sentence(found: Match, _shapes: DataShapes) -> str:
    wanted, got = int(found["wanted"]), int(found["got"])
    names = re.findall(r"'([^']*)'", found["names"] or "")
    named = f" ({', '.join(names)})" if names else ""
    return (
        f"{NOT_ACCEPTED}: it has {_count(wanted, 'input')}{named}, the data have {got}; give the "
        "inputs as one tuple, ((a, b), y), or as a dict by these names"
    )


def missing_input_sentence(found: Match, _shapes: DataShapes) -> str:
    names = listed(re.findall(r"'([^']*)'", found[2]))
    return f"{NOT_ACCEPTED}: its input {found[1]!r} is missing, the data have {names}"


def labels_shape_sentence(found: Match, _shapes: DataShapes) -> str:
    labels, outputs = _example(found["labels"]), _example(found["outputs"])
    sentence = f"{_LABELS}: the labels have the shape {_text(labels)}, the output {_text(outputs)}"
    if len(labels) < len(outputs) or (labels[-1:] == (1,) and len(labels) == len(outputs)):
        return f"{sentence}; for class numbers use a sparse loss, or convert them to one-hot rows"
    return sentence


def sparse_rank_sentence(found: Match, _shapes: DataShapes) -> str:
    labels = _text(_example(found["labels"]))
    return (
        f"{_LABELS}: a sparse loss expects one class number an example, the labels have the shape "
        f"{labels}; for one-hot rows use categorical_crossentropy"
    )


def sizes_sentence(found: Match, shapes: DataShapes) -> str:
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


def runtime_sizes_sentence(found: Match, shapes: DataShapes) -> str:
    first, second = found["first"], found["second"]
    node = _NODE.search(found.string)
    if found["matrix"]:
        return _product_sentence(first, second, shapes)
    if node is not None and "compile_loss" in node[1]:
        return _labels_sentence(second, first)
    return _elementwise_sentence(first, second)


def _labels_sentence(outputs: str, labels: str) -> str:
    if _example(labels) == _example(outputs):
        return (
            f"The loss sets {_shape(labels)[0]} and {_shape(outputs)[0]} examples against each "
            "other; a slice of the batch has any number of examples, so let the loss treat each "
            "one by itself"
        )
    return (
        f"{_LABELS}: the labels have the shape {_text(_example(labels))}, the output "
        f"{_text(_example(outputs))}"
    )


def _product_sentence(first: str, second: str, shapes: DataShapes) -> str:
    got = _example(first)
    what = f"a matrix product expects {_shape(second)[0]} features"
    if got in shapes and len(got) == 1:
        return f"{NOT_ACCEPTED}: {what}, the data have {got[0]}"
    return (
        "A matrix product in the model does not fit: its factors have the shapes "
        f"{_text(_shape(first))} and {_text(_shape(second))}"
    )


def _elementwise_sentence(first: str, second: str) -> str:
    return (
        "Two tensors in the model do not fit together: they have the shapes "
        f"{_text(_shape(first))} and {_text(_shape(second))}"
    )


def reshape_sentence(found: Match, _shapes: DataShapes) -> str:
    return (
        f"A reshape in the model does not fit: its shape {_text(_shape(found['wanted']))} holds "
        f"{found['size']} numbers, its input {found['given']}; give -1 for the number of examples, "
        "which is that of a slice of the batch"
    )


def label_range_sentence(found: Match, _shapes: DataShapes) -> str:
    number, end = int(found["number"]), int(found["end"])
    return (
        f"A label is out of range: there is a label {number}, the model has {end} classes "
        f"(0 to {end - 1})"
    )


def index_range_sentence(found: Match, shapes: DataShapes) -> str:
    node = _NODE.search(found.string)
    path = "" if node is None else node[1]
    if "compile_loss" in path:
        return label_range_sentence(found, shapes)
    layer = path.split("/")[-2] if "/" in path else "a look-up"
    return (
        f"A number in the data is out of range: {re.sub(r'_1$', '', layer)} takes 0 to "
        f"{int(found['end']) - 1}, the data have {found['number']}"
    )


def structures_sentence(found: Match, _shapes: DataShapes) -> str:
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


def listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in names) or "no inputs"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"

"""The dense part of an exported model: a graph of PyTorch's operators as JSON, and its tensors as safetensors.

``dense.json`` is what ``torch.export`` writes of a program into its archive; the archive itself is not used, because it
holds a pickle. Loading a graph resolves the names of its operators and evaluates its sizes, so both are held against
what a model's graph consists of before PyTorch sees them: operators of ``aten`` and arithmetic of sizes, and nothing
that could name another function.
"""

from __future__ import annotations

import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from ziggurat.core.untrusted import Damage, parse_json
from ziggurat.serving.artefact.lean_graph import without_checks

if TYPE_CHECKING:
    from torch.export import ExportedProgram

PROGRAM_FILE, TENSORS_FILE = "dense.json", "dense.safetensors"

_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims)\.[A-Za-z_]\w*\.\w+"
    r"|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|neg|eq|ne|lt|le|gt|ge|and_|or_)"
    r"|torch\.ops\.higher_order\.(wrap_with_autocast|wrap_with_set_grad_enabled)"
    r"|torch\.sym_(int|float|max|min|not|sum)|math\.(ceil|floor|trunc)"
)
_SIZE = re.compile(
    r"(?:(?:Mul|Add|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|Integer|Rational|Eq|Ne|Lt|Le|Gt|Ge|Equality"
    r"|Unequality|StrictLessThan|LessThan|StrictGreaterThan|GreaterThan)\(|\)|,|\s|-?\d+"
    r"|Symbol\('[a-z]+\d+'(?:, (?:positive|nonnegative|integer)=True)*\)|[a-z]+\d+|True|False|[-+*/<>=])*"
)
_EXPRESSION = "expr_str"
_PARAMETER, _BUFFER, _CONSTANT = "parameter/", "buffer/", "constant/"


def program_files(module: nn.Module, arguments: tuple[Any, ...], sizes: Any) -> tuple[bytes, dict[str, Tensor]]:
    """Returns the graph of a module as JSON, and its tensors.

    Args:
        module: a module in evaluation mode.
        arguments: arguments of its ``forward`` for several rows.
        sizes: ``dynamic_shapes`` of :func:`torch.export.export`.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about itself
        program = torch.export.export(module, arguments, dynamic_shapes=sizes)
        archive = io.BytesIO()
        torch.export.save(program, archive)
    with zipfile.ZipFile(archive) as parts:
        name = next(name for name in parts.namelist() if name.endswith("models/model.json"))
        graph = json.loads(parts.read(name))
    _without_traces(graph)
    signature, state = program.graph_signature, {**program.constants, **program.state_dict}
    tensors = {f"{_PARAMETER}{name}": state[name] for name in signature.inputs_to_parameters.values()}
    unsaved = set(signature.non_persistent_buffers)  # by the module; here they are constants
    tensors |= {f"{_BUFFER}{name}": state[name] for name in {*signature.inputs_to_buffers.values()} - unsaved}
    lifted = {*signature.inputs_to_lifted_tensor_constants.values()}
    tensors |= {f"{_CONSTANT}{name}": state[name] for name in lifted | unsaved}
    owned: dict[str, Tensor] = {}
    for name, each in tensors.items():
        assert isinstance(each, Tensor), name
        owned[name] = each.detach().contiguous().clone()
    return json.dumps(graph, separators=(",", ":")).encode(), owned


def unknown_operators(data: bytes) -> list[str]:
    """Returns the operators of a graph that :func:`load_program` refuses."""
    return sorted({name for name in _operators(json.loads(data)) if not _OPERATOR.fullmatch(name)})


def load_program(data: bytes, tensors: Mapping[str, Tensor], where: str, damage: Damage) -> fx.GraphModule:
    """Returns the module of a graph that :func:`program_files` made.

    Args:
        data: the graph.
        tensors: its tensors.
        where: the file, for messages.
        damage: the errors to raise.

    Raises:
        ZigguratError: of class ``damage.error``: it is no such graph, or names something that graphs do not consist of.
    """
    program = read_program(data, tensors, where, damage)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return without_checks(program.module(check_guards=False))
    except Exception as error:
        raise damage.of(where, f"cannot be loaded: {type(error).__name__}: {_line(error)}") from error


def read_program(data: bytes, tensors: Mapping[str, Tensor], where: str, damage: Damage) -> ExportedProgram:
    """Returns the program that :func:`load_program` makes a module of; its arguments and errors are the same."""
    from torch._export.serde import schema
    from torch._export.serde.serialize import (
        ExportedProgramDeserializer,
        _bytes_to_dataclass,  # pyright: ignore[reportPrivateUsage] - torch.export.load reads a pickle beside it
    )

    graph = parse_json(data, where, damage)
    _check(graph, where, damage)
    parameters, buffers, constants = (
        {name.removeprefix(kind): each for name, each in tensors.items() if name.startswith(kind)}
        for kind in (_PARAMETER, _BUFFER, _CONSTANT)
    )
    # They require gradients as in a training: with those, a matrix product folds its batches, without them it may not.
    states = buffers | {name: nn.Parameter(each) for name, each in parameters.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            stored = _bytes_to_dataclass(schema.ExportedProgram, data)
            return ExportedProgramDeserializer(None).deserialize(stored, states, constants, None)
    except Exception as error:
        raise damage.of(where, f"cannot be loaded: {type(error).__name__}: {_line(error)}") from error


def _operators(value: Any) -> Iterator[str]:
    """Yields the operator of each node."""
    if isinstance(value, dict):
        if "inputs" in value and "target" in value:
            yield str(value["target"])
        for each in value.values():
            yield from _operators(each)
    elif isinstance(value, list):
        for each in value:
            yield from _operators(each)


def _expressions(value: Any) -> Iterator[Any]:
    """Yields each expression of sizes."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == _EXPRESSION:
                yield each
            yield from _expressions(each)
    elif isinstance(value, list):
        for each in value:
            yield from _expressions(each)


def _check(graph: Any, where: str, damage: Damage) -> None:
    """Refuses operators and expressions that graphs of models do not consist of."""
    for name in _operators(graph):
        if not _OPERATOR.fullmatch(name):
            raise damage.of(where, f"names the operator {name[:80]!r}, which no exported model has")
    for text in _expressions(graph):
        if not (isinstance(text, str) and _SIZE.fullmatch(text)):
            raise damage.of(where, f"holds {str(text)[:80]!r} in place of a size")


def _without_traces(value: Any) -> None:
    """Empties the traces, which hold paths of the machine that exported."""
    if isinstance(value, dict):
        for name in ("stack_trace", "torch_fn", "source_fn_stack", "nn_module_stack"):
            if name in value:
                del value[name]
        for each in value.values():
            _without_traces(each)
    elif isinstance(value, list):
        for each in value:
            _without_traces(each)


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:200]

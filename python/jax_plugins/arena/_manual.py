"""Writes the code of one device into a program, in the place of a custom call.

With Shardy it stands in a manual computation; with XLA's older partitioner, between the custom calls that XLA has for
passing from whole arrays to those of one device and back.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from jax_plugins.arena import _shardings
from jax_plugins.arena._shardings import Axis, Inexpressible, Mesh
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy, stablehlo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax_plugins.arena._partitioner_calls import Split

#: Begins the names of functions that were brought in.
PREFIX = "pjrt_arena_partition"


class Writer:
    """Changes one program."""

    def __init__(self, module: Any, version: str, *, shardy: bool) -> None:
        self._module = module
        self._version = version
        self._shardy = shardy
        self._partitions = ir.IntegerAttr(module.operation.attributes["mhlo.num_partitions"]).value
        self._numbers = itertools.count()
        self._channels = itertools.count(_highest_channel(module) + 1)
        self._meshes = list(_meshes(module))
        self._names = [ir.StringAttr(op.attributes["sym_name"]).value for op in module.body]

    def replace(self, op: Any, split: Split) -> None:
        """Puts what `split` says into the call's place.

        Raises:
          Inexpressible: it cannot be written; the program is as it was.
        """
        operands, results = list(op.operands), list(op.results)
        seen = split.seen if len(split.seen) == len(results) else []
        arguments = [
            self._local(value.type, sharding) for value, sharding in zip(operands, split.arguments, strict=True)
        ]
        # A call without results may have one for its effects, which nothing uses.
        given = [self._local(value.type, sharding) for value, sharding in zip(results, split.results, strict=False)]
        wrap = self._in_manual_computation if self._shardy else self._between_custom_calls
        write = wrap(operands, results, split, seen)
        if split.program is None:
            body = _itself(op, given if split.results else [value.type for value in results])
        else:
            body = self._brought_in(split.program, arguments, given)
        with ir.InsertionPoint(op), op.operation.location:
            values = write(arguments, given, body)
        for old, new in zip(results, values, strict=False):
            old.replace_all_uses_with(new)
        op.operation.erase()

    def _local(self, kind: Any, sharding: Any) -> Any:
        """The type of what one device has of an array."""
        whole = ir.RankedTensorType(kind)
        counts = _shardings.tiles(sharding, whole.rank, self._partitions).counts
        for size, count in zip(whole.shape, counts, strict=True):
            if size % count:
                raise Inexpressible(
                    f"a dimension of {size} elements is cut into {count} pieces, which are not all alike"
                )
        return ir.RankedTensorType.get(
            [size // count for size, count in zip(whole.shape, counts, strict=True)], whole.element_type
        )

    # ---- Shardy ----

    def _in_manual_computation(
        self, operands: Any, results: Any, split: Split, seen: list[Any]
    ) -> Callable[..., list[Any]]:
        shardings = [*split.arguments, *split.results]
        ranks = [ir.RankedTensorType(value.type).rank for value in (*operands, *results[: len(split.results)])]
        mesh, told = self._in_axes(shardings, ranks)
        every = "{" + ", ".join(_quoted(name) for name, _ in mesh.axes) + "}"
        texts = [_manual_sharding(mesh, cuts) for cuts in told]
        inside, outside = texts[: len(operands)], texts[len(operands) :]

        def write(arguments: list[Any], given: list[Any], body: Callable[..., list[Any]]) -> list[Any]:
            per_value = [
                ir.Attribute.parse(f"#sdy.sharding_per_value<[{', '.join(some)}]>") for some in (inside, outside)
            ]
            kinds = [value.type for value in results[: len(split.results)]]
            manual = sdy.ManualComputationOp(
                kinds, operands, *per_value, ir.Attribute.parse(f"#sdy<manual_axes{every}>")
            )
            block = ir.Block.create_at_start(manual.body, arguments, [ir.Location.unknown()] * len(arguments))
            with ir.InsertionPoint(block):
                values = body(list(block.arguments))
                sdy.ReturnOp(values if split.results else [])
            return [
                self._constrained(value, sharding)
                for value, sharding in zip(manual.results, seen or manual.results, strict=True)
            ]

        return write

    def _constrained(self, value: Any, sharding: Any) -> Any:
        """The value as the rest of the program sees it; as it is, where that cannot be told."""
        try:
            mesh, (cuts,) = self._in_axes([sharding], [ir.RankedTensorType(value.type).rank])
        except (Inexpressible, AttributeError):
            return value
        return sdy.ShardingConstraintOp(value, ir.Attribute.parse(f"#sdy.sharding{_sharding(mesh, cuts)}")).result

    def _in_axes(self, shardings: Sequence[Any], ranks: Sequence[int]) -> tuple[Mesh, list[list[list[Axis]]]]:
        """The shardings in the axes of one mesh of the program."""
        numbers = [
            _shardings.tiles(sharding, rank, self._partitions) for sharding, rank in zip(shardings, ranks, strict=True)
        ]
        for mesh in self._meshes:
            told = [_shardings.axes(found, mesh) for found in numbers]
            if (cuts := [dims for dims in told if dims is not None]) and len(cuts) == len(told):
                return mesh, cuts
        names = ", ".join(f"{mesh.name} {dict(mesh.axes)}" for mesh in self._meshes) or "none"
        raise Inexpressible(
            f"no mesh of the program ({names}) has axes for the shardings {', '.join(map(str, shardings))}"
        )

    # ---- XLA's older partitioner ----

    def _between_custom_calls(
        self, operands: Any, results: Any, split: Split, seen: list[Any]
    ) -> Callable[..., list[Any]]:
        def write(arguments: list[Any], given: list[Any], body: Callable[..., list[Any]]) -> list[Any]:
            manual = "{manual}"
            local = []
            for value, kind, sharding in zip(operands, arguments, split.arguments, strict=True):
                annotated = _annotation("Sharding", value, value.type, str(sharding))
                local.append(_annotation("SPMDFullToShardShape", annotated, kind, manual))
            values = body(local)
            whole: list[Any] = []
            for value, result, sharding in zip(values, results, split.results, strict=False):
                annotated = _annotation("Sharding", value, value.type, manual)
                full = _annotation("SPMDShardToFullShape", annotated, result.type, str(sharding))
                whole.append(_annotation("Sharding", full, result.type, str(seen[len(whole)])) if seen else full)
            return whole

        return write

    # ---- The code of one device ----

    def _brought_in(self, program: bytes, arguments: list[Any], given: list[Any]) -> Callable[..., list[Any]]:
        """Adds the functions of another program to this one; what comes back calls its main."""
        portable = _jax.mlir.serialize_portable_artifact(program, self._version)
        body = stablehlo.deserialize_portable_artifact(self._module.context, portable)
        prefix = self._free_prefix()
        functions = []
        main = None
        for op in list(body.body):
            name = ir.StringAttr(op.attributes["sym_name"]).value
            if op.operation.name == "sdy.mesh" and self._has(op):
                continue
            ir.SymbolTable.replace_all_symbol_uses(name, f"{prefix}_{name}", body.operation)
            op.attributes["sym_name"] = ir.StringAttr.get(f"{prefix}_{name}")
            if op.operation.name == "func.func":
                op.attributes["sym_visibility"] = ir.StringAttr.get("private")
                for shown in ("arg_attrs", "res_attrs"):
                    if shown in op.attributes:
                        del op.attributes[shown]
                main = op if name == "main" else main
            functions.append(op)
        if main is None:
            raise Inexpressible("its partitioner gave a program without a function main")
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        if list(kind.inputs) != arguments or list(kind.results) != given:
            raise Inexpressible(
                f"its partitioner gave a program of type {kind} for arguments {arguments} and results {given}"
            )
        self._renumber(body)
        for op in functions:
            op.operation.detach_from_parent()
            self._module.body.append(op)
        callee = ir.FlatSymbolRefAttr.get(f"{prefix}_main")
        return lambda values: list(func.CallOp(given, callee, values).results)

    def _has(self, mesh: Any) -> bool:
        """Whether the program declares this mesh under this name."""
        both = ("sym_name", "mesh")
        declared = (op for op in self._module.body if op.operation.name == "sdy.mesh")
        return any(all(op.attributes[key] == mesh.attributes[key] for key in both) for op in declared)

    def _free_prefix(self) -> str:
        """What no name of the program begins with."""
        prefixes = (f"{PREFIX}_{number}" for number in self._numbers)
        return next(prefix for prefix in prefixes if not any(name.startswith(prefix) for name in self._names))

    def _renumber(self, body: Any) -> None:
        """Gives collectives channels that the program does not use yet."""
        fresh: dict[int, int] = {}

        def visit(op: Any) -> Any:
            if "channel_handle" in op.attributes:
                old = stablehlo.ChannelHandle(op.attributes["channel_handle"])
                if old.handle > 0:
                    handle = fresh.get(old.handle) or fresh.setdefault(old.handle, next(self._channels))
                    op.attributes["channel_handle"] = stablehlo.ChannelHandle.get(handle, old.channel_type)
            return ir.WalkResult.ADVANCE

        body.operation.walk(visit)


def _itself(op: Any, kinds: list[Any]) -> Callable[..., list[Any]]:
    """The call as it is, of other shapes."""

    def write(values: list[Any]) -> list[Any]:
        copy = ir.Operation.create(
            "stablehlo.custom_call",
            results=kinds,
            operands=values,
            attributes={
                name: op.attributes[name]
                for name in _names(op)
                if not name.startswith("sdy.") and name != "mhlo.sharding"
            },
            regions=0,
        )
        return list(copy.results)

    return write


def _names(op: Any) -> list[str]:
    return [attribute if isinstance(attribute, str) else attribute.name for attribute in op.attributes]


def _annotation(target: str, value: Any, kind: Any, sharding: str) -> Any:
    call = stablehlo.CustomCallOp([kind], [value], call_target_name=ir.StringAttr.get(target))
    call.attributes["mhlo.sharding"] = ir.StringAttr.get(sharding)
    return call.results[0]


def _meshes(module: Any) -> Any:
    """The meshes of a program that are over all of its partitions."""
    for op in module.body:
        if op.operation.name == "sdy.mesh":
            mesh = sdy.MeshAttr(op.attributes["mesh"])
            axes = tuple((axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, mesh.axes))
            count = 1
            for _, size in axes:
                count *= size
            devices = tuple(mesh.device_ids) or tuple(range(count))
            if len(devices) == count:
                yield Mesh(ir.StringAttr(op.attributes["sym_name"]).value, axes, devices)


def _highest_channel(module: Any) -> int:
    highest = 0

    def visit(op: Any) -> Any:
        nonlocal highest
        if "channel_handle" in op.attributes:
            highest = max(highest, stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return highest


def _manual_sharding(mesh: Mesh, cuts: list[list[Axis]]) -> str:
    """A sharding that says of each axis whether it cuts or copies."""
    used = {axis for dimension in cuts for axis in dimension}
    sizes = dict(mesh.axes)
    if parts := [axis for axis in used if axis.size != sizes[axis.name]]:
        raise Inexpressible(
            f"the sharding cuts axis {parts[0].name} of {mesh.name}, which a manual computation has to take whole"
        )
    copied = [name for name, _ in mesh.axes if name not in {axis.name for axis in used}]
    return _sharding(mesh, cuts, copied)


def _sharding(mesh: Mesh, cuts: list[list[Axis]], copied: Sequence[str] = ()) -> str:
    sizes = dict(mesh.axes)

    def told(axis: Axis) -> str:
        part = "" if axis.size == sizes[axis.name] else f":({axis.before}){axis.size}"
        return _quoted(axis.name) + part

    dimensions = ", ".join("{" + ", ".join(map(told, axes)) + "}" for axes in cuts)
    replicated = ", replicated={" + ", ".join(map(_quoted, copied)) + "}" if copied else ""
    return f"<@{_symbol(mesh.name)}, [{dimensions}]{replicated}>"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _symbol(name: str) -> str:
    return name if name.isidentifier() else _quoted(name)

"""Custom calls with a partitioner, by who splits them: functions that a framework registered, a rule, or each device
for itself."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from jax_plugins.arena import _shardings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: What jaxlib's XLA gets for the code of a call that runs nowhere.
OPAQUE = "pjrt_arena_code_of_one_device"

_T = TypeVar("_T")


class Refused(Exception):
    """The program cannot be compiled: an absl code, and a sentence that names the custom call."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


# ---- The partitioner's functions, as jaxlib registers them ----------------------------------------------------------


class _String(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    @classmethod
    def of(cls, data: bytes, kept: list[Any]) -> _String:
        kept.append(ctypes.create_string_buffer(data, len(data)))
        return cls(ctypes.addressof(kept[-1]), len(data))

    def read(self) -> bytes:
        return ctypes.string_at(self.data, self.size) if self.size else b""


class _Value(ctypes.Structure):
    _fields_ = [("shape", _String), ("has_sharding", ctypes.c_bool), ("sharding", _String)]


class _Header(ctypes.Structure):
    _fields_ = [
        ("api_version", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("cleanup", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("has_error", ctypes.c_bool),
        ("code", ctypes.c_int),
        ("message", _String),
    ]


class _Partition(ctypes.Structure):
    _fields_ = [
        ("header", _Header),
        ("num_args", ctypes.c_size_t),
        ("args", ctypes.POINTER(_Value)),
        ("result", _Value),
        ("backend_config", _String),
        ("program", _String),
        ("args_sharding", ctypes.POINTER(_String)),
        ("result_sharding", _String),
    ]


class _Infer(ctypes.Structure):
    _fields_ = [
        ("header", _Header),
        ("num_args", ctypes.c_size_t),
        ("args", ctypes.POINTER(_Value)),
        ("result_shape", _String),
        ("backend_config", _String),
        ("has_result_sharding", ctypes.c_bool),
        ("result_sharding", _String),
    ]


class _Propagate(ctypes.Structure):
    _fields_ = [
        ("header", _Header),
        ("backend_config", _String),
        ("result_shape", _String),
        ("result_sharding", _String),
    ]


def _function(args: type[ctypes.Structure]) -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(args))


class _Callbacks(ctypes.Structure):
    """``JAX_CustomCallPartitioner_Callbacks``."""

    _fields_ = [
        ("version", ctypes.c_int64),
        ("private_data", ctypes.c_void_p),
        ("dtor", ctypes.c_void_p),
        ("partition", _function(_Partition)),
        ("infer_sharding", _function(_Infer)),
        ("propagate_user_sharding", _function(_Propagate)),
        ("can_side_effecting_have_replicated_sharding", ctypes.c_bool),
    ]


class Partitioner:
    """A framework's partitioner of one custom call."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._callbacks = _Callbacks.from_address(address)

    def partition(
        self, args: Any, shardings: Any, result: Any, result_sharding: Any, config: bytes
    ) -> tuple[bytes, list[Any], Any]:
        kept: list[Any] = []
        call = _Partition(
            num_args=len(args), args=_values(args, shardings, kept), backend_config=_String.of(config, kept)
        )
        call.result = _value(result, result_sharding, kept)
        return self._ask(
            self._callbacks.partition,
            call,
            lambda: (
                call.program.read(),
                [_read_sharding(call.args_sharding[index]) for index in range(len(args))],
                _read_sharding(call.result_sharding),
            ),
        )

    def infer(self, args: Any, shardings: Any, result: Any, config: bytes) -> Any:
        kept: list[Any] = []
        call = _Infer(num_args=len(args), args=_values(args, shardings, kept), backend_config=_String.of(config, kept))
        call.result_shape = _String.of(result.to_serialized_proto(), kept)
        return self._ask(
            self._callbacks.infer_sharding,
            call,
            lambda: _read_sharding(call.result_sharding) if call.has_result_sharding else None,
        )

    def propagate(self, sharding: Any, result: Any, config: bytes) -> Any:
        kept: list[Any] = []
        call = _Propagate(backend_config=_String.of(config, kept))
        call.result_shape = _String.of(result.to_serialized_proto(), kept)
        call.result_sharding = _String.of(sharding.to_proto().SerializeToString(), kept)
        return self._ask(self._callbacks.propagate_user_sharding, call, lambda: _read_sharding(call.result_sharding))

    def _ask(self, function: Any, call: Any, read: Callable[[], _T]) -> _T:
        function(self._address, ctypes.byref(call))
        try:
            if call.header.has_error:
                raise Refused(call.header.code, call.header.message.read().decode(errors="replace"))
            return read()
        finally:
            if call.header.cleanup:
                call.header.cleanup(call.header.data)


def _value(shape: Any, sharding: Any, kept: list[Any]) -> _Value:
    value = _Value(shape=_String.of(shape.to_serialized_proto(), kept), has_sharding=sharding is not None)
    if sharding is not None:
        value.sharding = _String.of(sharding.to_proto().SerializeToString(), kept)
    return value


def _values(shapes: Any, shardings: Any, kept: list[Any]) -> Any:
    values = [_value(shape, sharding, kept) for shape, sharding in zip(shapes, shardings, strict=True)]
    kept.append((_Value * len(values))(*values))
    return ctypes.cast(kept[-1], ctypes.POINTER(_Value))


def _read_sharding(text: _String) -> Any:
    from jaxlib import xla_client

    proto = xla_client.OpSharding()
    proto.ParseFromString(text.read())
    return xla_client.HloSharding.from_proto(proto)


# ---- The calls of one program ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Split:
    """How one call is split."""

    #: The sharding that each argument has to have, and that each result gets.
    arguments: list[Any]
    results: list[Any]
    #: The sharding of each result as the rest of the program sees it, where it was asked for.
    seen: list[Any]
    #: The code of one device, as MLIR; None where it is the call itself.
    program: bytes | None


class Call:
    """A custom call with a partitioner, as it stands in a program."""

    #: Whether the program means the same when each device runs the whole call.
    optional = False
    #: Whether there is no result. jaxlib's XLA sees a number then.
    silent = False

    def __init__(self, op: Any, name: str) -> None:
        self.name = name
        self.config = _config(op)
        self.split: Split | None = None
        #: Whether it stays as it is, because it is one device's already, or all of it every device's.
        self.left = False

    def propagate(self, sharding: Any, result: Any) -> Any:
        """The call's own sharding, as one who uses its result has `sharding`."""
        del result
        return sharding

    def infer(self, args: Any, shardings: Any, result: Any) -> Any:
        """The result's sharding, or None."""
        raise NotImplementedError

    def partition(self, args: Any, shardings: Any, result: Any, result_sharding: Any) -> tuple[bytes, list[Any], Any]:
        """The code of one device, and the shardings of its arguments and its result; the first answer is kept."""
        raise NotImplementedError


class UserCall(Call):
    """One that a framework registered functions for."""

    def __init__(self, op: Any, name: str, partitioner: Partitioner) -> None:
        super().__init__(op, name)
        self._partitioner = partitioner

    def propagate(self, sharding: Any, result: Any) -> Any:
        return self._partitioner.propagate(sharding, result, self.config)

    def infer(self, args: Any, shardings: Any, result: Any) -> Any:
        return self._partitioner.infer(args, shardings, result, self.config)

    def partition(self, args: Any, shardings: Any, result: Any, result_sharding: Any) -> tuple[bytes, list[Any], Any]:
        program, wanted, given = self._partitioner.partition(args, shardings, result, result_sharding, self.config)
        self.split = self.split or Split(wanted, _elements(result, given), _elements(result, result_sharding), program)
        return program, wanted, given


class _RuledCall(Call):
    """One whose code for one device is the call itself, with what the device has of the arguments."""

    def infer(self, args: Any, shardings: Any, result: Any) -> Any:
        if manual := _first_manual(shardings):
            return packed(result, [manual for _ in shapes_of(result)])
        return packed(result, self._split(args, shardings, shapes_of(result))[1])

    def partition(self, args: Any, shardings: Any, result: Any, result_sharding: Any) -> tuple[bytes, list[Any], Any]:
        if _first_manual([*shardings, *_elements(result, result_sharding)]):
            self.left = True
            return _opaque(list(args), shapes_of(result)), list(shardings), result_sharding
        results = shapes_of(result)
        wanted, given = self._split(args, shardings, results)
        if self.optional and all(sharding.is_replicated() for sharding in wanted):
            self.left = True
        elif self.split is None:
            seen = [] if self.silent else _elements(result, result_sharding)
            self.split = Split(wanted, [] if self.silent else given, seen, None)
        return _opaque(_tiles(args, wanted), _tiles(results, given)), wanted, packed(result, given)

    def _split(self, args: Any, shardings: Any, results: list[Any]) -> tuple[list[Any], list[Any]]:
        """The shardings of arguments and results."""
        raise NotImplementedError


class BatchCall(_RuledCall):
    """One whose leading dimensions, ``num_batch_dims`` of them, are independent of each other."""

    optional = True

    def __init__(self, op: Any, name: str, dimensions: int) -> None:
        super().__init__(op, name)
        self._dimensions = dimensions

    def _split(self, args: Any, shardings: Any, results: list[Any]) -> tuple[list[Any], list[Any]]:
        """The leading dimensions of all are cut like those of the argument that is cut into most pieces."""
        candidates = [
            _shardings.of_leading(sharding, len(shape.dimensions()), self._dimensions)
            for shape, sharding in zip(args, shardings, strict=True)
        ]
        batch = max(candidates, key=_shardings.pieces, default=None)
        wanted, given = (
            [_shardings.over_leading(batch, len(shape.dimensions())) for shape in shapes] for shapes in (args, results)
        )
        return wanted, given


class CallbackCall(_RuledCall):
    """A host callback that each device makes with what it has of the arguments."""

    silent = True

    def _split(self, args: Any, shardings: Any, results: list[Any]) -> tuple[list[Any], list[Any]]:
        wanted = [sharding if sharding is not None and sharding.is_tiled() else replicated() for sharding in shardings]
        return wanted, [replicated() for _ in results]


def _config(op: Any) -> bytes:
    if "backend_config" not in op.attributes:
        return b""
    config = op.attributes["backend_config"]
    return config.value_bytes if hasattr(config, "value_bytes") else b""


def _first_manual(shardings: Sequence[Any]) -> Any:
    return next((sharding for sharding in shardings if sharding is not None and _shardings.is_manual(sharding)), None)


def replicated() -> Any:
    from jaxlib import xla_client

    return xla_client.HloSharding.replicate()


def shapes_of(shape: Any) -> list[Any]:
    return list(shape.tuple_shapes()) if shape.is_tuple() else [shape]


def _elements(shape: Any, sharding: Any) -> list[Any]:
    """A sharding for each result."""
    if sharding is None:
        return []
    return list(sharding.tuple_elements()) if shape.is_tuple() else [sharding]


def packed(shape: Any, shardings: list[Any]) -> Any:
    from jaxlib import xla_client

    return xla_client.HloSharding.tuple_sharding(shape, shardings) if shape.is_tuple() else shardings[0]


def _tiles(shapes: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    return [sharding.tile(shape) for shape, sharding in zip(shapes, shardings, strict=True)]


def _opaque(arguments: list[Any], results: list[Any]) -> bytes:
    """A program of these shapes."""
    from jax.interpreters import mlir

    with mlir.make_ir_context():

        def types(shapes: list[Any]) -> list[str]:
            element = [mlir.dtype_to_ir_type(shape.numpy_dtype()) for shape in shapes]
            dims = ["".join(f"{size}x" for size in shape.dimensions()) for shape in shapes]
            return [f"tensor<{sizes}{kind}>" for sizes, kind in zip(dims, element, strict=True)]

        taken, given = types(arguments), types(results)
        named = ", ".join(f"%a{index}: {kind}" for index, kind in enumerate(taken))
        operands = ", ".join(f"%a{index}" for index in range(len(taken)))
        values = ", ".join(f"%r#{index}" for index in range(len(given)))
        module = mlir.ir.Module.parse(
            f"func.func @main({named}) -> ({', '.join(given)}) {{\n"
            f"  %r:{len(given)} = stablehlo.custom_call @{OPAQUE}({operands})"
            f" : ({', '.join(taken)}) -> ({', '.join(given)})\n"
            f"  return {values} : {', '.join(given)}\n}}"
        )
        bytecode: bytes = mlir.module_to_bytecode(module)
        return bytecode

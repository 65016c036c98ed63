"""Custom calls that their owner splits over devices: `jax.experimental.custom_partitioning` and what rests on it.

XLA asks a custom call's partitioner twice: for the shardings, and for the code of one device. An engine without the
extension for partitioners cannot be told of them, but jaxlib has another copy of XLA in the same process:

    program  --parse-->  each such call renamed  --jaxlib's XLA-->  _infer, _propagate, _partition  --> partitioner
                         (nothing of it runs)                        what was asked and answered is kept, call by call
    program  --parse-->  sdy.manual_computation around the code of one device, in the place of each call --> the engine

The shardings that the partitioner wants are written out, so that the engine has nothing to choose where the calls are;
where two uses of one function got different shardings, the first ones hold for both, and the engine reshards.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import logging
import threading
from typing import TYPE_CHECKING, Any

from jax_plugins.arena import _shardings
from jax_plugins.arena._shardings import Inexpressible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax_plugins.arena._library import Library

_log = logging.getLogger(__name__)

#: The name under which jaxlib's XLA meets the calls. Its configuration says which run and which call of the program it is.
PROBE = "pjrt_arena_partitioned_call"
#: What jaxlib's XLA gets for the code of a call that runs nowhere.
OPAQUE = "pjrt_arena_code_of_one_device"

INSPECT_SHARDING = "InspectSharding"
PARTITIONED_CALLBACK = "xla_ffi_partitioned_python_cpu_callback"

#: absl's codes.
_INVALID_ARGUMENT, _UNIMPLEMENTED, _INTERNAL = 3, 12, 13


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


class _Partitioner:
    """A framework's partitioner of one custom call."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._callbacks = _Callbacks.from_address(address)

    def partition(self, args: Any, shardings: Any, result: Any, result_sharding: Any, config: bytes) -> tuple[bytes, list[Any], Any]:
        kept: list[Any] = []
        call = _Partition(num_args=len(args), args=_values(args, shardings, kept), backend_config=_String.of(config, kept))
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

    def _ask(self, function: Any, call: Any, read: Callable[[], Any]) -> Any:
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
    #: Whether jaxlib's XLA sees one number as the result, because there is none.
    silent = False

    def __init__(self, op: Any, name: str) -> None:
        self.name = name
        config = op.attributes["backend_config"] if "backend_config" in op.attributes else None
        self.config = config.value_bytes if hasattr(config, "value_bytes") else b""
        self.split: Split | None = None

    def propagate(self, sharding: Any, result: Any) -> Any:
        del result
        return sharding

    def infer(self, args: Any, shardings: Any, result: Any) -> Any:
        raise NotImplementedError

    def partition(self, args: Any, shardings: Any, result: Any, result_sharding: Any) -> tuple[bytes, list[Any], Any]:
        raise NotImplementedError


class UserCall(Call):
    """One that a framework registered functions for."""

    def __init__(self, op: Any, name: str, partitioner: _Partitioner) -> None:
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


class BatchCall(Call):
    """One whose leading dimensions, ``num_batch_dims`` of them, are independent of each other."""

    optional = True

    def __init__(self, op: Any, name: str, dimensions: int) -> None:
        super().__init__(op, name)
        self._dimensions = dimensions

    def infer(self, args: Any, shardings: Any, result: Any) -> Any:
        batch = self._batch(args, shardings)
        return _packed(result, [_shardings.over_leading(batch, len(shape.dimensions())) for shape in _shapes(result)])

    def partition(self, args: Any, shardings: Any, result: Any, result_sharding: Any) -> tuple[bytes, list[Any], Any]:
        batch = self._batch(args, shardings)
        wanted = [_shardings.over_leading(batch, len(shape.dimensions())) for shape in args]
        given = [_shardings.over_leading(batch, len(shape.dimensions())) for shape in _shapes(result)]
        if self.split is None:
            self.split = Split(wanted, given, _elements(result, result_sharding), None)
        tiled = (_tiles(args, wanted), _tiles(_shapes(result), given))
        return _opaque(*tiled), wanted, _packed(result, given)

    def _batch(self, args: Any, shardings: Any) -> Any:
        """The sharding of the leading dimensions: that of the argument that is cut into most pieces."""
        candidates = [
            _shardings.of_leading(sharding, len(shape.dimensions()), self._dimensions)
            for shape, sharding in zip(args, shardings, strict=True)
        ]
        return max(candidates, key=_shardings.pieces, default=None)


class CallbackCall(Call):
    """A host callback that each device makes with what it has of the arguments."""

    silent = True
    optional = True

    def infer(self, args: Any, shardings: Any, result: Any) -> Any:
        del args, shardings, result
        return _replicated()

    def partition(self, args: Any, shardings: Any, result: Any, result_sharding: Any) -> tuple[bytes, list[Any], Any]:
        del result_sharding
        wanted = [_replicated() if sharding is None else sharding for sharding in shardings]
        self.split = self.split or Split(wanted, [], [], None)
        return _opaque(_tiles(args, wanted), [result]), wanted, _replicated()


def _replicated() -> Any:
    from jaxlib import xla_client

    return xla_client.HloSharding.replicate()


def _shapes(shape: Any) -> list[Any]:
    return list(shape.tuple_shapes()) if shape.is_tuple() else [shape]


def _elements(shape: Any, sharding: Any) -> list[Any]:
    """A sharding for each result."""
    if sharding is None:
        return []
    return list(sharding.tuple_elements()) if shape.is_tuple() else [sharding]


def _packed(shape: Any, shardings: list[Any]) -> Any:
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
        return mlir.module_to_bytecode(module)


# ---- What jaxlib's XLA calls ----------------------------------------------------------------------------------------


class _Run:
    """One program on its way through jaxlib's XLA."""

    def __init__(self, calls: list[Call], *, to_the_end: bool) -> None:
        self.calls = calls
        #: What went wrong first, and with which call.
        self.failure: tuple[Call, Exception] | None = None
        self._to_the_end = to_the_end

    def over(self) -> bool:
        """Whether all is known."""
        return not self._to_the_end and all(call.split is not None for call in self.calls)

    def fail(self, call: Call, error: Exception) -> None:
        self.failure = self.failure or (call, error)


_runs: dict[int, _Run] = {}
_numbers = itertools.count()
_lock = threading.Lock()


def _find(config: Any) -> tuple[_Run, Call]:
    run, call = (config if isinstance(config, str) else bytes(config).decode()).split(":")
    return _runs[int(run)], _runs[int(run)].calls[int(call)]


def _propagate(sharding: Any, shape: Any, config: Any) -> Any:
    run, call = _find(config)
    try:
        return call.propagate(sharding, shape)
    except Exception as error:  # XLA would end the process
        run.fail(call, error)
        return sharding


def _infer(shapes: Any, shardings: Any, result: Any, config: Any) -> Any:
    run, call = _find(config)
    try:
        if (inferred := call.infer(shapes, shardings, result)) is not None:
            return inferred
    except Exception as error:  # XLA would end the process
        run.fail(call, error)
    return _packed(result, [_replicated() for _ in _shapes(result)])


def _partition(shapes: Any, shardings: Any, result: Any, result_sharding: Any, config: Any) -> Any:
    run, call = _find(config)
    try:
        answer = call.partition(shapes, shardings, result, result_sharding)
    except Exception as error:
        run.fail(call, error)
        raise
    if run.over():
        raise RuntimeError("the rest of the compilation is not wanted")
    return answer


@functools.cache
def _register() -> None:
    from jaxlib import xla_client

    xla_client.register_custom_call_partitioner(
        PROBE, _propagate, _partition, _infer, can_side_effecting_have_replicated_sharding=True
    )


@functools.cache
def _client(devices: int) -> Any:
    """A client of jaxlib's own XLA that only compiles."""
    from jaxlib import xla_client

    return xla_client.make_cpu_client(asynchronous=False, num_devices=devices)


# ---- A program ------------------------------------------------------------------------------------------------------


class _Resolver:
    def __init__(self, library: Library) -> None:
        self._library = library

    def __call__(self, program: bytes, options: bytes) -> bytes | None:
        """The program with all calls resolved that have a partitioner; None to leave it as it is.

        Raises:
          Refused: a partitioner says no, or what it says cannot be written.
        """
        from jax.interpreters import mlir
        from jaxlib.mlir.dialects import stablehlo

        with mlir.make_ir_context() as context, mlir.ir.Location.unknown():
            module = stablehlo.deserialize_portable_artifact(context, program)
            found = list(self._calls(module))
            if not found:
                return None
            calls = [call for _, call in found if call is not None]
            try:
                self._probe(stablehlo.deserialize_portable_artifact(context, program), calls, options, len(calls) < len(found))
            except Refused:
                if not all(call.optional for call in calls):
                    raise
                _log.debug("custom calls are left to the engine", exc_info=True)
                return None
            from jax_plugins.arena import _manual

            writer = _manual.Writer(module, _version(program), _uses_shardy(options))
            for op, call in found:
                if call is None:
                    op.operation.erase()
                elif call.split is not None:
                    try:
                        writer.replace(op, call.split)
                    except Inexpressible as reason:
                        if not call.optional:
                            raise Refused(_UNIMPLEMENTED, f"custom call {call.name}: {reason}") from None
                        _log.debug("custom call %s is left to the engine: %s", call.name, reason)
            module.operation.verify()
            return stablehlo.serialize_portable_artifact(module, _version(program), allow_other_dialects=True)

    def _calls(self, module: Any) -> Any:
        """Each custom call with a partitioner and what is known of it, in the order of the program; None for one that only asks."""
        from jaxlib.mlir import ir

        ops: list[Any] = []

        def visit(op: Any) -> Any:
            if op.name == "stablehlo.custom_call":
                ops.append(op.opview)
            # Inside of a manual computation each device has its code already, but may still ask.
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for op in ops:
            name = ir.StringAttr(op.attributes["call_target_name"]).value
            if name == INSPECT_SHARDING:
                yield op, None
            elif not _is_manual(op) and not _has_tokens(op) and (call := self._call(op, name)) is not None:
                yield op, call

    def _call(self, op: Any, name: str) -> Call | None:
        from jaxlib.mlir import ir

        if name == PARTITIONED_CALLBACK:
            return CallbackCall(op, name) if not op.results or _only_empty(op) else None
        kind, address = self._library.partitioner(name)
        if kind == "callbacks":
            return UserCall(op, name, _Partitioner(address))
        if kind == "batch" and "mhlo.frontend_attributes" in op.attributes:
            attributes = ir.DictAttr(op.attributes["mhlo.frontend_attributes"])
            if "num_batch_dims" in attributes:
                dimensions = ir.StringAttr(attributes["num_batch_dims"]).value
                if dimensions.isdecimal() and int(dimensions) > 0 and len(op.operands) > 0:
                    return BatchCall(op, name, int(dimensions))
        return None

    def _probe(self, module: Any, calls: list[Call], options: bytes, asks: bool) -> None:
        """Has jaxlib's XLA choose shardings and ask for code; to the end, where the program itself `asks` for shardings."""
        from jaxlib import xla_client
        from jaxlib.mlir import ir

        run = _Run(calls, to_the_end=asks)
        with _lock:
            number = next(_numbers)
            _runs[number] = run
        try:
            _register()
            index = 0
            for op, call in list(self._calls(module)):
                if call is not None:
                    _rename(op, call, f"{number}:{index}")
                    index += 1
            compile_options = xla_client.CompileOptions.ParseFromString(options)
            build = compile_options.executable_build_options
            devices = build.num_replicas * build.num_partitions
            client = _client(devices)
            compile_options.device_assignment = xla_client.DeviceAssignment.create(
                _device_grid(build.num_replicas, build.num_partitions)
            )
            error = None
            try:
                client.compile_and_load(module, xla_client.DeviceList(tuple(client.devices()[:devices])), compile_options)
            except Exception as raised:  # also whatever jaxlib's XLA has not, which the engine may have
                error = raised
        finally:
            with _lock:
                del _runs[number]
        if run.failure is not None:
            call, reason = run.failure
            code = reason.code if isinstance(reason, Refused) else _INTERNAL
            raise Refused(code, f"the partitioner of custom call {call.name}: {reason}") from reason
        unknown = [call for call in calls if call.split is None and not call.optional]
        if error is not None and unknown:
            raise Refused(_UNIMPLEMENTED, f"jaxlib's XLA does not say how custom call {unknown[0].name} is sharded: {error}")
        if error is not None:
            _log.debug("jaxlib's XLA did not compile the program: %s", error)


def _device_grid(replicas: int, partitions: int) -> Any:
    import numpy as np

    return np.arange(replicas * partitions).reshape(replicas, partitions)


def _is_manual(op: Any) -> bool:
    """Whether it stands in the code of one device."""
    above = op.operation.parent
    while above is not None:
        if above.name == "sdy.manual_computation":
            return True
        above = above.operation.parent
    return False


def _has_tokens(op: Any) -> bool:
    return any("token" in str(value.type) for value in (*op.operands, *op.results))


def _only_empty(op: Any) -> bool:
    return all(str(value.type) == "tuple<>" for value in op.results)


def _rename(op: Any, call: Call, config: str) -> None:
    """Makes the call one that jaxlib's XLA asks `_partition` for."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    kinds = [ir.RankedTensorType.get([], ir.F32Type.get())] if call.silent else [value.type for value in op.results]
    with ir.InsertionPoint(op):
        probe = stablehlo.CustomCallOp(
            kinds,
            list(op.operands),
            call_target_name=ir.StringAttr.get(PROBE),
            has_side_effect=ir.BoolAttr.get(call.silent),
            api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
            backend_config=ir.StringAttr.get(config),
        )
    for name in ("sdy.sharding_rule", "sdy.sharding", "mhlo.sharding"):
        if name in op.attributes and not call.silent:
            probe.attributes[name] = op.attributes[name]
    if not call.silent:
        for old, new in zip(op.results, probe.results, strict=True):
            old.replace_all_uses_with(new)
    op.operation.erase()


def _version(program: bytes) -> str:
    """The version of StableHLO that the program was written for: `ML.R`, a number of one byte, `StableHLO_vX.Y.Z`."""
    return program[5 : program.index(b"\0", 5)].decode().removeprefix("StableHLO_v")


def _uses_shardy(options: bytes) -> bool:
    from jaxlib import xla_client

    return xla_client.CompileOptions.ParseFromString(options).executable_build_options.use_shardy_partitioner


# ---- The library's side ---------------------------------------------------------------------------------------------

#: `Give` and `Resolve` in src/api/partitioners.rs.
_GIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
RESOLVE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
)

#: Functions that the library has; they must not die before the process does.
_kept: list[Any] = []


def install(library: Library) -> None:
    """Has programs with such calls resolved before the engine compiles them; once in a process."""
    if _kept:
        return
    resolver = _Resolver(library)

    def resolve(program: int, size: int, options: int, options_size: int, give: int, reply: int) -> None:
        code, answer = 0, b""
        try:
            resolved = resolver(ctypes.string_at(program, size), ctypes.string_at(options, options_size))
            if resolved is not None:
                code, answer = -1, resolved
        except Refused as refused:
            code, answer = refused.code, str(refused).encode()
        except BaseException as error:  # nothing may leave a callback
            _log.debug("a program with partitioned custom calls", exc_info=True)
            code, answer = _INTERNAL, f"custom calls of this program: {type(error).__name__}: {error}".encode()
        _GIVE(give)(reply, code, ctypes.cast(ctypes.c_char_p(answer), ctypes.c_void_p), len(answer))

    _kept.append(RESOLVE(resolve))
    library.install_partitioners(_kept[-1])

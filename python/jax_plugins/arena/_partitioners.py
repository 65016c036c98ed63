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

import functools
import itertools
import logging
from typing import TYPE_CHECKING, Any

from jax_plugins.arena._partitioner_calls import (
    BatchCall,
    Call,
    CallbackCall,
    Partitioner,
    Refused,
    UserCall,
    packed,
    replicated,
    shapes_of,
)
from jax_plugins.arena._shardings import Inexpressible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pjrt_arena._library import Library

_log = logging.getLogger(__name__)

#: The name under which jaxlib's XLA meets the calls. Its configuration says the run and the call of the program.
PROBE = "pjrt_arena_partitioned_call"

INSPECT_SHARDING = "InspectSharding"
#: What jaxlib says when the function that asked for a sharding raises.
_INSPECTION_FAILED = "Error calling inspect_sharding"
PARTITIONED_CALLBACK = "xla_ffi_partitioned_python_cpu_callback"

_IN_MANUAL_AXES = "stands in a computation that is manual in some axes; it is split where all axes are automatic"

#: What the library does with a program, as numbers that are no absl codes: it compiles the one it has; ours; ours, or
#: its own where the engine refuses ours.
SAME, OTHER, PREFERRED = 0, -1, -2

#: absl's codes.
_UNIMPLEMENTED, _INTERNAL = 12, 13


# ---- What jaxlib's XLA calls ----------------------------------------------------------------------------------------


class _Run:
    """One program on its way through jaxlib's XLA."""

    def __init__(self, calls: list[Call], *, to_the_end: bool) -> None:
        self.calls = calls
        #: What went wrong first, and with which call.
        self.failure: tuple[Call, Exception] | None = None
        self._to_the_end = to_the_end

    def fail(self, call: Call, error: Exception) -> None:
        self.failure = self.failure or (call, error)

    def over(self) -> bool:
        """Whether all is known."""
        return not self._to_the_end and all(call.split is not None or call.left for call in self.calls)


_runs: dict[int, _Run] = {}
_numbers = itertools.count()


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
    return packed(result, [replicated() for _ in shapes_of(result)])


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

    def __call__(self, program: bytes, options: bytes) -> tuple[int, bytes]:
        """What the library is to do, `SAME`, `OTHER` or `PREFERRED`, and the program with all calls resolved that have
        a partitioner.

        Raises:
          Refused: a partitioner says no, or what it says cannot be written.
        """
        from jax.interpreters import mlir

        with mlir.make_ir_context(), mlir.ir.Location.unknown():
            try:
                module = _parsed(program)
            except Exception as error:
                _log.debug("a program that cannot be read goes to the engine as it came: %s", error)
                return SAME, b""
            found = list(self._calls(module))
            if not found:
                return SAME, b""
            optional = all(call is not None and call.optional for _, call in found)
            try:
                resolved = self._resolved(program, module, found, options)
            except Exception as error:
                if not optional:
                    raise
                _log.debug("custom calls are left to the engine, which runs each on all of its argument: %s", error)
                return SAME, b""
            return PREFERRED if optional else OTHER, resolved

    def _resolved(self, program: bytes, module: Any, found: list[tuple[Any, Call | None]], options: bytes) -> bytes:
        from jax_plugins.arena import _manual
        from jaxlib import xla_client
        from jaxlib.mlir.dialects import stablehlo

        given = xla_client.CompileOptions.ParseFromString(options)
        shardy = given.executable_build_options.use_shardy_partitioner
        calls = [call for _, call in found if call is not None]
        # The older partitioner may find a call to be one device's wherever it is used.
        run = _Run(calls, to_the_end=len(calls) < len(found) or not shardy)
        self._probe(program, run, given)
        writer = _manual.Writer(module, _version(program), shardy=shardy)
        for op, call in found:
            if call is None:
                op.operation.erase()
            elif call.split is not None and not call.left:
                try:
                    writer.replace(op, call.split)
                except Inexpressible as reason:
                    if not call.optional:
                        raise Refused(_UNIMPLEMENTED, f"custom call {call.name}: {reason}") from None
                    _log.debug("custom call %s is left to the engine: %s", call.name, reason)
        module.operation.verify()
        portable: bytes = stablehlo.serialize_portable_artifact(module, _version(program), allow_other_dialects=True)
        return portable

    def _calls(self, module: Any) -> Iterator[tuple[Any, Call | None]]:
        """Each custom call with a partitioner and what is known of it, in the order of the program; None for one that
        only asks."""
        from jaxlib.mlir import ir

        ops = _operations(module, "stablehlo.custom_call")
        manual = _functions_of_one_device(module)
        for op in ops:
            name = ir.StringAttr(op.attributes["call_target_name"]).value
            if name == INSPECT_SHARDING:
                yield op, None
            elif (call := self._call(op, name)) is not None:
                if not _is_manual(op, manual):
                    yield op, call
                elif isinstance(call, UserCall):
                    raise Refused(_UNIMPLEMENTED, f"custom call {name} {_IN_MANUAL_AXES}")

    def _call(self, op: Any, name: str) -> Call | None:
        from jaxlib.mlir import ir

        if any("token" in str(value.type) for value in (*op.operands, *op.results)):
            return None
        if name == PARTITIONED_CALLBACK:
            return CallbackCall(op, name) if all(str(value.type) == "tuple<>" for value in op.results) else None
        kind, address = self._library.partitioner(name)
        if kind == "callbacks":
            return UserCall(op, name, Partitioner(address))
        if kind == "batch" and "mhlo.frontend_attributes" in op.attributes:
            attributes = ir.DictAttr(op.attributes["mhlo.frontend_attributes"])
            if "num_batch_dims" in attributes:
                dimensions = ir.StringAttr(attributes["num_batch_dims"]).value
                if dimensions.isdecimal() and int(dimensions) > 0 and len(op.operands) > 0:
                    return BatchCall(op, name, int(dimensions))
        return None

    def _probe(self, program: bytes, run: _Run, options: Any) -> None:
        """Has jaxlib's XLA choose shardings and ask for code."""
        from jax.interpreters import mlir
        from jaxlib import xla_client

        _register()
        module = _parsed(program)
        number = next(_numbers)
        probed = [op for op, call in self._calls(module) if call is not None]
        for index, (op, call) in enumerate(zip(probed, run.calls, strict=True)):
            _rename(op, call, f"{number}:{index}")
        build = options.executable_build_options
        devices = build.num_replicas * build.num_partitions
        options.device_assignment = xla_client.DeviceAssignment.create(
            _device_grid(build.num_replicas, build.num_partitions)
        )
        client = _client(devices)
        over = None
        _runs[number] = run
        try:
            client.compile_and_load(mlir.module_to_bytecode(module), client.devices()[:devices], options)
        except Exception as error:  # also whatever jaxlib's XLA has not, which the engine may have
            over = error
        finally:
            del _runs[number]
        if run.failure is not None:
            call, reason = run.failure
            code = reason.code if isinstance(reason, Refused) else _INTERNAL
            raise Refused(code, f"the partitioner of custom call {call.name}: {reason}") from reason
        unknown = [call for call in run.calls if call.split is None and not call.left and not call.optional]
        if over is not None and unknown:
            # Without an error, nothing uses the call.
            raise Refused(
                _UNIMPLEMENTED, f"jaxlib's XLA does not say how custom call {unknown[0].name} is sharded: {over}"
            )
        if over is not None and _INSPECTION_FAILED in str(over):
            raise Refused(_INTERNAL, f"custom call {INSPECT_SHARDING}: {over}")
        if over is not None:
            _log.debug("jaxlib's XLA ended the compilation: %s", over)


def _parsed(program: bytes) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo.deserialize_portable_artifact(ir.Context.current, program)


def _operations(module: Any, name: str) -> list[Any]:
    """All of this name, in the order of the program."""
    from jaxlib.mlir import ir

    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == name:
            found.append(op.opview)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _functions_of_one_device(module: Any) -> set[str]:
    """The functions that are called from the code of one device."""
    from jaxlib.mlir import ir

    calls = [(op, ir.FlatSymbolRefAttr(op.attributes["callee"]).value) for op in _operations(module, "func.call")]
    found: set[str] = set()
    while more := {callee for op, callee in calls if callee not in found and _is_manual(op, found)}:
        found |= more
    return found


def _is_manual(op: Any, functions: set[str]) -> bool:
    """Whether it stands in the code of one device: in a manual computation, or in one of these functions."""
    from jaxlib.mlir import ir

    above = op.operation.parent
    while above is not None:
        if above.name == "sdy.manual_computation":
            return True
        if above.name == "func.func" and ir.StringAttr(above.attributes["sym_name"]).value in functions:
            return True
        above = above.operation.parent
    return "mhlo.sharding" in op.attributes and "manual" in str(op.attributes["mhlo.sharding"])


def _device_grid(replicas: int, partitions: int) -> Any:
    import numpy as np

    return np.arange(replicas * partitions).reshape(replicas, partitions)


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


# ---- The library's side ---------------------------------------------------------------------------------------------


@functools.cache
def install(library: Library) -> None:
    """Has programs with such calls resolved before the engine compiles them."""
    from jax_plugins.arena import _hooks

    resolver = _Resolver(library)

    def resolve(program: bytes, options: bytes) -> tuple[int, bytes]:
        try:
            return resolver(program, options)
        except Refused as refused:
            return refused.code, str(refused).encode()
        except BaseException as error:  # nothing may leave a callback
            _log.debug("a program with partitioned custom calls", exc_info=True)
            return _INTERNAL, f"custom calls of this program: {type(error).__name__}: {error}".encode()

    library.install_hook("partitioners", _hooks.hook(resolve, inputs=2))

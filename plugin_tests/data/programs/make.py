"""Writes the programs of the conformance tests exactly as JAX's client sends them to a plugin.

Each program goes through jaxlib's own C API client; the slot PJRT_Client_Compile of the engine's table is
replaced by a recorder that keeps the bytes (portable artifact and compile options) and then calls the engine.

    python make.py PATH_OF_xla_cpu_pjrt.so        (jax 0.10.2; writes *.mlir and *.opts beside this file)
"""

import ctypes
import os
import pathlib
import sys

ENGINE = sys.argv[1]
HERE = pathlib.Path(__file__).parent
os.environ["JAX_PLATFORMS"] = "engine"
os.environ["JAX_ENABLE_X64"] = "1"

# PJRT_Api: struct_size, extension_start, version (24 bytes), then one pointer for each function; Compile is number 20.
COMPILE_SLOT = 8 + 8 + 24 + 20 * 8


class Program(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("code_size", ctypes.c_size_t),
        ("format", ctypes.c_void_p),
        ("format_size", ctypes.c_size_t),
    ]


class CompileArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("client", ctypes.c_void_p),
        ("program", ctypes.POINTER(Program)),
        ("options", ctypes.c_void_p),
        ("options_size", ctypes.c_size_t),
        ("executable", ctypes.c_void_p),
    ]


COMPILE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(CompileArgs))
library = ctypes.CDLL(ENGINE)
library.GetPjrtApi.restype = ctypes.c_void_p
slot = ctypes.c_void_p.from_address(library.GetPjrtApi() + COMPILE_SLOT)
original = COMPILE(slot.value)
recorded = []


@COMPILE
def record(args):
    program = args.contents.program.contents
    assert ctypes.string_at(program.format, program.format_size) == b"mlir"
    recorded.append(
        (
            ctypes.string_at(program.code, program.code_size),
            ctypes.string_at(args.contents.options, args.contents.options_size),
        )
    )
    return original(args)


slot.value = ctypes.cast(record, ctypes.c_void_p).value

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax._src import compiler, xla_bridge  # noqa: E402
from jax._src.interpreters import mlir as jax_mlir  # noqa: E402
from jax._src.lib import xla_client  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402

jax.config.update("jax_hlo_source_file_canonicalization_regex", r".*/")  # no path of this machine in the files
xla_bridge.register_plugin("engine", library_path=ENGINE, priority=500)
backend = xla_bridge.get_backend()


def save(name):
    code, options = recorded[-1]
    (HERE / f"{name}.mlir").write_bytes(code)
    (HERE / f"{name}.opts").write_bytes(options)


def compile_text(name, text):
    """Compiles StableHLO text for one device."""
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1, device_assignment=[[0]])
    with jax_mlir.make_ir_context() as context:
        module = ir.Module.parse(
            f"module @{name} attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32}} {{{text}}}",
            context,
        )
        backend.compile_and_load(module, xla_client.DeviceList(tuple(backend.devices()[:1])), options)
    save(name)


F = "tensor<1024xf32>"
ALIAS = "{tf.aliasing_output = %d : i32}"


def main(args, results, body, values):
    """The text of @main; `results` are types, `values` the returned names."""
    signature = ", ".join(results)
    ret = f"return {', '.join(values)} : {signature}" if results else "return"
    return f"func.func public @main({args}) -> ({signature}) {{ {body} {ret} }}"


def add_one(t, literal="1.0"):
    return main(
        f"%x: {t}", [t], f"%c = stablehlo.constant dense<{literal}> : {t} %y = stablehlo.add %x, %c : {t}", ["%y"]
    )


ADD = f"%s = stablehlo.add %a, %b : {F}"
texts = {
    "add_one": add_one(F),
    "add_one_1m": add_one("tensor<262144xf32>"),
    "add_one_4m": add_one("tensor<1048576xf32>"),
    "add_one_u8_4m": add_one("tensor<4194304xui8>", "1"),
    "add_one_bf16": add_one("tensor<1024xbf16>"),
    "add_one_c64": add_one("tensor<64xcomplex<f32>>", "(1.0,2.0)"),
    "add_one_s4": add_one("tensor<16xi4>", "1"),
    "add_one_scalar": add_one("tensor<f32>"),
    "add_one_empty": add_one("tensor<0xf32>"),
    "not_pred": main("%x: tensor<64xi1>", ["tensor<64xi1>"], "%y = stablehlo.not %x : tensor<64xi1>", ["%y"]),
    "add": main(f"%a: {F}, %b: {F}", [F], ADD, ["%s"]),
    "matmul": main(
        "%a: tensor<32x48xf32>, %b: tensor<48x64xf32>",
        ["tensor<32x64xf32>"],
        "%y = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] "
        ": (tensor<32x48xf32>, tensor<48x64xf32>) -> tensor<32x64xf32>",
        ["%y"],
    ),
    "two_results": main(f"%a: {F}, %b: {F}", [F, F], ADD + f" %p = stablehlo.multiply %a, %b : {F}", ["%s", "%p"]),
    "constant": main("", ["tensor<256xi32>"], "%y = stablehlo.iota dim = 0 : tensor<256xi32>", ["%y"]),
    "passthrough": main(f"%a: {F}, %b: {F}", [F, F, F], "", ["%b", "%a", "%a"]),
    "no_results": main(f"%a: {F}", [], "", []),
    "donate": main(
        f"%x: {F} {ALIAS % 0}", [F], f"%c = stablehlo.constant dense<1.0> : {F} %y = stablehlo.add %x, %c : {F}", ["%y"]
    ),
    "donate_first": main(f"%a: {F} {ALIAS % 0}, %b: {F}", [F], ADD, ["%s"]),
    "donate_second": main(f"%a: {F}, %b: {F} {ALIAS % 0}", [F], ADD, ["%s"]),
    "donate_both": main(
        f"%a: {F} {ALIAS % 0}, %b: {F} {ALIAS % 1}",
        [F, F],
        ADD + f" %d = stablehlo.subtract %a, %b : {F}",
        ["%s", "%d"],
    ),
    "buffer_donor": main(
        f"%x: {F} {{jax.buffer_donor = true}}",
        [F, F],
        f"%c = stablehlo.constant dense<1.0> : {F} %y = stablehlo.add %x, %c : {F} %z = stablehlo.add %y, %c : {F}",
        ["%y", "%z"],
    ),
    "many_results": main(
        "%x: tensor<16xf32>",
        ["tensor<16xf32>"] * 300,
        " ".join(
            f"%c{i} = stablehlo.constant dense<{float(i)}> : tensor<16xf32> %y{i} = stablehlo.add %x, %c{i} : tensor<16xf32>"
            for i in range(300)
        ),
        [f"%y{i}" for i in range(300)],
    ),
    "temp_heavy": main(
        "%x: tensor<256x256xf32>",
        ["tensor<256x256xf32>"],
        " ".join(
            f"%{i + 1} = stablehlo.dot_general %{i}, %x, contracting_dims = [1] x [0] "
            ": (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>".replace("%0", "%x")
            for i in range(3)
        ),
        ["%3"],
    ),
}


def gate(args, results, extra=""):
    """A program that waits in the tests' own FFI handler. The matmul makes it too heavy to be run inline by the caller."""
    dot = (
        "%w = stablehlo.constant dense<1.0> : tensor<32x32xf32> %v = stablehlo.reshape %a : (tensor<1024xf32>) -> tensor<32x32xf32> "
        "%u = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0] : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32> "
        f"%r = stablehlo.reshape %u : (tensor<32x32xf32>) -> {F} "
    )
    call = (
        f"%g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t) {{api_version = 4 : i32, has_side_effect = true, backend_config = {{}}}} "
        f": ({F}, tensor<i32>) -> {F} %one = stablehlo.constant dense<1.0> : {F} %y = stablehlo.add %g, %one : {F} "
    )
    return main(args, results, dot + call + extra, ["%y", "%r"])


texts["gate"] = gate(f"%a: {F}, %t: tensor<i32>", [F, F])
texts["gate_donate"] = gate(f"%a: {F} {ALIAS % 0}, %t: tensor<i32>", [F, F])
# Light enough to be run by the calling thread, inside PJRT_LoadedExecutable_Execute.
texts["gate_inline"] = main(
    f"%a: {F}, %t: tensor<i32>",
    [F],
    "%y = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t) {api_version = 4 : i32, has_side_effect = true, backend_config = {}} "
    f": ({F}, tensor<i32>) -> {F}",
    ["%y"],
)

LARGE = "tensor<1048576xf32>"
texts["gate_large"] = main(
    f"%a: {LARGE}, %t: tensor<i32>",
    [LARGE],
    "%g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t) {api_version = 4 : i32, has_side_effect = true, backend_config = {}} "
    f": ({LARGE}, tensor<i32>) -> {LARGE} %c = stablehlo.constant dense<1.0> : {LARGE} %y = stablehlo.add %g, %c : {LARGE}",
    ["%y"],
)

# The engine must know the handler's name to compile the gates: any handler does here, since nothing runs.
FFI_REGISTER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class CallFrame(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension", ctypes.POINTER(ctypes.c_size_t * 4))]


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(CallFrame))
def handler(frame):
    extension = frame.contents.extension
    if extension:
        # Metadata extension (base of 24 bytes, then the metadata): answer FFI API 0.2 (version's ints lie 24 bytes in).
        metadata = extension.contents[3]
        version = (ctypes.c_int * 2).from_address(metadata + 8 + 16)
        version[0], version[1] = 0, 2


class Register(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("handler", ctypes.c_void_p),
        ("platform", ctypes.c_char_p),
        ("platform_size", ctypes.c_size_t),
        ("traits", ctypes.c_int),
    ]


extension = ctypes.c_void_p.from_address(library.GetPjrtApi() + 8).value
while ctypes.c_int.from_address(extension + 8).value != 5:
    extension = ctypes.c_void_p.from_address(extension + 16).value
register = FFI_REGISTER(ctypes.c_void_p.from_address(extension + 24 + 16).value)
target = Register(
    ctypes.sizeof(Register), b"pjrt_arena_test_gate", 20, ctypes.cast(handler, ctypes.c_void_p).value, b"cpu", 3, 0
)
assert not register(ctypes.byref(target))

for name, text in texts.items():
    compile_text(name, text)

# Programs from jit: control flow, and four devices with a collective.
jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda i, c: jnp.sin(c) + 1, x)).lower(
    jax.ShapeDtypeStruct((1024,), np.float32)
).compile()
save("iterate")

mesh = jax.make_mesh((4,), ("d",))
split = NamedSharding(mesh, PartitionSpec("d"))
whole = NamedSharding(mesh, PartitionSpec())
jax.jit(lambda x: (x + 1, jnp.sum(x)), in_shardings=split, out_shardings=(split, whole)).lower(
    jax.ShapeDtypeStruct((4096,), np.float32)
).compile()
save("sharded")

"""Peaks: what they count, that they repeat, that they go down again; and `pjrt_arena.testing`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import peak_recipe
import pytest
from harness import ROOT, clean_environment, run_jax
from pjrt_arena import memory
from pjrt_arena.testing import assert_no_leaks, assert_peak_below, parse_size

pytestmark = pytest.mark.arena

TPU = {"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_LIMIT": "256MiB", "PJRT_ARENA_DEVICES": "2"}
MIB = 1 << 20


def run_pytest(path: Path, *arguments: str, **settings: str) -> tuple[int, str]:
    """Runs a file of tests as a user does: the exit status, and what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-p", "pjrt_arena.pytest_plugin", "-p", "no:cacheprovider"]
    command += ["--noconftest", "--rootdir", str(path.parent), *arguments, str(path)]
    run = subprocess.run(
        command, env=clean_environment(**settings), cwd=path.parent, capture_output=True, text=True, check=False
    )
    return run.returncode, run.stdout + run.stderr


def recipes() -> dict[str, int]:
    """The tests of the recipe, and the limit of each in bytes."""
    found = {name: test for name, test in vars(peak_recipe).items() if name.startswith("test_")}
    return {name: parse_size(test.pytestmark[0].args[0]) for name, test in found.items()}


def test_the_recipe_holds():
    status, said = run_pytest(ROOT / "python_smoke" / "peak_recipe.py", **TPU)
    assert status == 0 and f"{len(recipes())} passed" in said, said


def test_peaks_repeat_to_the_byte_and_the_limits_are_near():
    code = """
    import gc, json, jax, peak_recipe
    from pjrt_arena import memory
    jax.devices()
    peaks = {}
    for name in NAMES:
        for _ in range(3):
            gc.collect()
            with memory.track() as seen:
                getattr(peak_recipe, name)()
            peaks.setdefault(name, []).append([device.peak_bytes_in_use for device in seen.devices])
    print(json.dumps(peaks))
    """
    code = code.replace("NAMES", repr(list(recipes())))
    one, other = (json.loads(run_jax(code, **TPU).stdout.splitlines()[-1]) for _ in range(2))
    assert one == other and len(one) >= 10
    for name, limit in recipes().items():
        first, second, third = one[name]
        # JAX's first call of a program takes another way, which keeps a scalar longer or shorter.
        assert second == third and abs(first[0] - second[0]) < 1024, (name, one[name])
        assert limit - 2 * MIB < max(second) <= limit, (name, second)


def test_checkpoints_lower_the_measured_peak():
    """Both in one process: what the larger one reserved is given back by `reset_peak`."""
    code = """
    import json, jax, jax.numpy as jnp, peak_recipe
    from pjrt_arena import memory
    weights, x = jnp.full((8, 256, 256), 0.01), jnp.ones((1024, 256))
    told = []
    for remat in (False, True, False):
        step = peak_recipe.model(remat)
        needs = step.lower(weights, x).compile().memory_analysis().temp_size_in_bytes
        memory.reset_peak()
        start = memory.stats()[0]
        with memory.track("step") as seen:
            weights = jax.block_until_ready(step(weights, x))
        end = memory.stats()[0]
        assert seen.devices[0].holders[0].origin == "programs' scratch", str(seen)
        told.append([needs, start.bytes_reserved, end.peak_bytes_reserved, start.bytes_in_use,
                     seen.peak_bytes_in_use, end.peak_bytes_in_use,
                     jax.devices()[0].memory_stats()["peak_bytes_in_use"], seen.devices[0].holders[0].bytes])
    memory.reset_peak(device="cpu:0")
    assert memory.stats()[0].bytes_reserved == memory.stats()[0].peak_bytes_reserved == 0
    print(json.dumps(told))
    """
    told = json.loads(run_jax(code, **(TPU | {"PJRT_ARENA_DEVICES": "1"})).stdout.splitlines()[-1])
    for needs, reserved_before, peak_reserved, in_use, *peaks, scratch in told:
        assert reserved_before == 0 and peak_reserved >= needs > 8 * MIB
        # The weights are donated: at the peak there are the arrays, and the scratch.
        assert peaks == [in_use + scratch] * 3 and needs <= scratch < needs + MIB, told
    assert told[0] == told[2] and told[1][0] < 0.6 * told[0][0]


def test_reset_peak_waits_for_the_program_whose_scratch_is_kept():
    code = """
    import jax, jax.numpy as jnp
    from pjrt_arena import memory
    slow = jax.jit(lambda x: jnp.sort(jax.lax.fori_loop(0, 300, lambda _, x: jnp.sort(jnp.sin(x)), x)))
    x = jnp.ones(1 << 16)
    assert slow.lower(x).compile().memory_analysis().temp_size_in_bytes > 0
    for _ in range(3):
        result = slow(x)
        memory.reset_peak()
        assert result.is_ready()
        assert memory.stats()[0].bytes_reserved == memory.stats()[0].peak_bytes_reserved == 0
    """
    run_jax(code, **(TPU | {"PJRT_ARENA_DEVICES": "1"}))


def fails(block) -> str:
    """The text of the assertion that fails."""
    with pytest.raises(AssertionError) as raised:
        block()
    return str(raised.value)


def test_a_peak_above_the_limit_names_its_holders():
    @assert_peak_below(1 << 40)
    def small():
        return jnp.ones(1 << 18).block_until_ready()

    assert small().shape == small().shape == (1 << 18,)
    (before,) = (one.bytes_in_use for one in memory.stats() if one.device == "cpu:0")

    def too_much():
        with memory.record(python=True), assert_peak_below(before + MIB, device="cpu:0"):
            jnp.full(1 << 20, 3.0).block_until_ready()

    said = fails(too_much)
    assert said.startswith("cpu:0 needed ") and "more than the " in said and " were in use before" in said
    assert f"f32[1048576] at {Path(__file__).name}:" in said and "called from" in said, said
    with pytest.raises(ValueError, match="no device"), assert_peak_below("1GiB", device="tpu:7"):
        pass
    # The block's own exception comes first.
    with pytest.raises(KeyError), assert_peak_below(0):
        raise KeyError(jnp.ones(3))


def test_sizes():
    sizes = {"64MiB": 64 * MIB, "1.5 gb": 1_500_000_000, "4096": 4096, 17: 17, "2KiB": 2048, "0": 0, "3kB": 3000}
    assert {size: parse_size(size) for size in sizes} == sizes
    for wrong in ("", "MiB", "3 parsecs", -1, True, 1.5, "-2MiB", None):
        with pytest.raises(ValueError, match="it must be a number of bytes"):
            parse_size(wrong)


def test_leaked_arrays_are_named():
    kept = []

    def make():
        return jnp.full(1234, 5.0)

    def leaks():
        with assert_no_leaks():
            kept.append(make())

    said = fails(leaks)
    assert said.startswith("1 array(s) of 4.82 KiB were made and are still there:\n"), said
    assert f"f32[1234] at {Path(__file__).name}:" in said and "(test_leaked_arrays_are_named.<locals>.make)" in said
    # What was there before is no leak; nor is what is replaced.
    with assert_no_leaks():
        kept.clear()
        (make() + 1).block_until_ready()
    assert not memory._library.load().records_python()
    assert jax.devices()[0].platform == "cpu"


USERS = """
import pytest, jax, jax.numpy as jnp
kept = []

@pytest.mark.peak_memory("8MiB")
def test_fits():
    jnp.ones(1 << 20).block_until_ready()

@pytest.mark.peak_memory("3MiB")
def test_is_too_large():
    jnp.ones(1 << 20).block_until_ready()

def make():
    return jnp.full(1000, 7.0)

def test_leaks(no_leaked_arrays):
    kept.append(make())

def test_does_not_leak(no_leaked_arrays):
    x = jax.random.normal(jax.random.key(3), (4,)) + make()[:4]
    assert x.shape == (4,)

def test_fails(no_leaked_arrays):
    x = make()
    assert x is None

def test_uses_none_of_it():
    pass
"""


def test_the_plugin_of_pytest(tmp_path):
    (tmp_path / "test_users.py").write_text(USERS)
    status, said = run_pytest(tmp_path / "test_users.py", "-rA", "--strict-markers", PJRT_ARENA_DEVICES="1")
    results = {line.split("::")[1].split()[0]: line.split()[0] for line in said.splitlines() if "::test_" in line}
    passed = ("test_fits", "test_does_not_leak", "test_uses_none_of_it")
    assert results == dict.fromkeys(passed, "PASSED") | {
        "test_is_too_large": "FAILED",
        "test_leaks": "ERROR",
        "test_fails": "FAILED",
    }, said
    assert status == 1 and "1 error" in said
    assert "cpu:0 needed 4.00 MiB" in said and "more than the 3.00 MiB" in said
    assert "1 array(s) of 3.91 KiB were made and are still there" in said and "test_users.py:14 (make)" in said


def test_it_says_where_jax_does_not_run_on_the_arena():
    code = """
    from pjrt_arena import ArenaError
    from pjrt_arena.testing import assert_peak_below
    try:
        with assert_peak_below("1GiB"):
            pass
        raise AssertionError
    except ArenaError as error:
        print(error)
    """
    said = run_jax(code, JAX_PLATFORMS="cpu").stdout
    assert "JAX runs on cpu, not on the arena; set JAX_PLATFORMS=arena,cpu before JAX starts." in said

"""`pjrt_arena.configure`, before and after the start, and `memory.on_oom`."""

import gc
import sys
import threading

import jax
import jax.numpy as jnp
import pytest
from harness import arena_device, run_jax
from pjrt_arena import memory

pytestmark = pytest.mark.arena


def fails(device=None):
    """Asks for more than the device has; the error's text."""
    exhausted = pytest.raises((RuntimeError, ValueError), match="RESOURCE_EXHAUSTED")
    with exhausted as caught, jax.default_device(device or arena_device()):
        jnp.zeros(1 << 42, jnp.uint8).block_until_ready()
    return str(caught.value)


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    memory.on_oom(None)


def test_it_is_called_before_the_error_is_raised_with_what_is_known(tmp_path):
    seen = []

    def told(error):
        # The library holds no lock: whatever asks it is answered.
        memory.snapshot(tmp_path / "oom.json")
        seen.append((error, threading.get_ident(), str(memory.summary())))

    with memory.on_oom(told):
        text = fails()
        ((error, thread, summary),) = seen
        assert (error.device, error.requested_bytes, thread) == ("cpu:0", 1 << 42, threading.get_ident())
        assert error.origin == f"jit_broadcast_in_dim output 0 u8[{1 << 42}]" and error.text in text
        assert "wanted for jit_broadcast_in_dim" in error.text and "cpu:0, strategy" in summary
        assert memory.load_snapshot(tmp_path / "oom.json").data["devices"][0]["failures"][-1]["bytes"] == 1 << 42
        fails(jax.devices("arena")[2])
        assert seen[1][0].device == "cpu:2"
    fails()
    assert len(seen) == 2, "it ends with the block"


def test_it_is_called_in_the_thread_that_asks_for_memory():
    seen, work = [], [threading.Thread(target=fails, args=(device,)) for device in jax.devices("arena")]
    memory.on_oom(lambda error: seen.append((error.device, threading.current_thread())))
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert sorted(seen, key=lambda told: told[0]) == [(f"cpu:{number}", work[number]) for number in range(4)]


def test_an_exception_of_its_own_changes_nothing(monkeypatch):
    reported, seen = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: reported.append(hook.exc_value))

    def broken(error):
        raise KeyError(error.device)

    def interrupted(error):
        raise KeyboardInterrupt

    memory.on_oom(broken)
    memory.on_oom(interrupted)
    memory.on_oom(seen.append)
    before = memory.stats()[0].bytes_in_use
    text = fails()
    assert text.startswith("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
    assert [type(error) for error in reported] == [KeyError, KeyboardInterrupt] and reported[0].args == ("cpu:0",)
    assert len(seen) == 1, "the others are called all the same"
    gc.collect()
    assert memory.stats()[0].bytes_in_use <= before
    assert float(jnp.arange(4.0).sum()) == 6


def test_what_it_asks_for_in_vain_itself_is_not_reported():
    seen = []

    def told(error):
        seen.append(error)
        fails()

    memory.on_oom(told)
    fails()
    assert len(seen) == 1
    fails()
    assert len(seen) == 2, "the next one is"


def test_it_may_drop_what_it_holds_for_the_next_attempt():
    cache = [jnp.ones(1 << 20).block_until_ready()]
    memory.on_oom(lambda _: cache.clear())
    before = memory.stats()[0].bytes_in_use
    fails()
    gc.collect()
    assert not cache and memory.stats()[0].bytes_in_use <= before - (4 << 20)


def test_functions_are_removed_one_by_one_or_all_together():
    seen = []
    first = memory.on_oom(lambda _: seen.append(1))
    memory.on_oom(lambda _: seen.append(2))
    fails()
    first.remove()
    first.remove()
    fails()
    assert seen == [1, 2, 2]
    memory.on_oom(None)
    fails()
    assert seen == [1, 2, 2]
    with pytest.raises(TypeError, match="callback=3; it must be a function, or None to remove all"):
        memory.on_oom(3)


def test_a_program_ends_while_a_function_is_there():
    run = run_jax(
        """
        import jax.numpy as jnp, pjrt_arena
        pjrt_arena.on_oom(print)
        x = jnp.ones(1000).block_until_ready()
        """
    )
    assert (run.stdout, run.stderr) == ("", "")


CONFIGURE = """
    import os
    import pytest
    import pjrt_arena
    from pathlib import Path

    with pytest.raises(TypeError, match="configure.. has no setting 'stategy'; allowed: strategy, limit, compact, "):
        pjrt_arena.configure(limit="1GiB", stategy="tpu")
    said = "PJRT_ARENA_STRATEGY=fastest is not valid; allowed: preallocate, growing, platform, tpu"
    with pytest.raises(ValueError, match=said + "; PJRT_ARENA_HISTORY=-1 is not valid"):
        pjrt_arena.configure(limit="1GiB", strategy="fastest", history=-1)
    left = {name: value for name, value in os.environ.items() if name.startswith("PJRT_ARENA_")}
    assert left.get("PJRT_ARENA_STRATEGY") == "growing" and not {"PJRT_ARENA_LIMIT", "PJRT_ARENA_HISTORY"} & set(left)
    pjrt_arena.configure(strategy="tpu", limit=64 << 20, devices=2, zero_copy=False, oom_report=Path("/tmp/x.html"))
    pjrt_arena.configure(oom_report=None, spill=None, compact="off")
    assert os.environ["PJRT_ARENA_ZERO_COPY"] == "off" and "PJRT_ARENA_OOM_REPORT" not in os.environ

    import jax
    import jax_plugins.arena
    jax_plugins.arena.initialize()  # as JAX does when it looks for backends: it loads the engine, and starts nothing
    for late in ({"engine": "cpu"}, {"log": "debug", "limit": "1GiB"}):
        with pytest.raises(pjrt_arena.ArenaError, match="cannot be set: JAX has loaded the engine .*so already"):
            pjrt_arena.configure(**late)
    assert os.environ["PJRT_ARENA_LIMIT"] == str(64 << 20)
    pjrt_arena.configure(history=100)

    assert pjrt_arena.stats() == (), "no device is there yet"
    assert len(jax.devices("arena")) == 2
    told = pjrt_arena.stats()
    assert [(one.strategy, one.bytes_limit) for one in told] == [("tpu", 64 << 20)] * 2
    with pytest.raises(pjrt_arena.ArenaError, match="the backend runs already, with cpu:0, cpu:1: call configure"):
        pjrt_arena.configure(strategy="growing")
    assert os.environ["PJRT_ARENA_STRATEGY"] == "tpu"
    with pytest.raises(TypeError, match="no setting 'nonsense'"):
        pjrt_arena.configure(nonsense=1)
"""


def test_settings_before_the_start_and_after():
    run_jax(CONFIGURE, PJRT_ARENA_STRATEGY="growing", PJRT_ARENA_DEVICES=None)


PLATFORMS = """
    import os, sys, warnings
    import pytest
    import pjrt_arena

    def warned(**settings):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pjrt_arena.configure(limit="64MiB", **settings)
        assert all(one.category is UserWarning and one.filename == "<string>" for one in caught), caught
        return [str(one.message) for one in caught]
"""


@pytest.mark.parametrize("imported", [False, True])
def test_it_names_the_arena_where_nothing_names_a_platform(imported):
    code = """
    if IMPORTED:
        import jax
    assert str(pjrt_arena.summary()).endswith("the arena; set JAX_PLATFORMS=arena,cpu before JAX starts")
    with pytest.raises(ValueError, match="fastest"):
        pjrt_arena.configure(strategy="fastest")
    assert "JAX_PLATFORMS" not in os.environ
    assert warned() == [] and os.environ["JAX_PLATFORMS"] == "arena,cpu" and ("jax" in sys.modules) == IMPORTED
    assert str(pjrt_arena.summary()).endswith("the arena")
    import jax
    assert jax.config.jax_platforms == "arena,cpu"
    assert jax.devices() == jax.devices("arena") and pjrt_arena.stats()[0].bytes_limit == 64 << 20
    """
    run_jax(PLATFORMS + code.replace("IMPORTED", str(imported)), JAX_PLATFORMS=None)


def test_a_variable_that_came_after_jax_counts():
    code = """
    import jax
    os.environ["JAX_PLATFORMS"] = "arena"
    assert warned() == [] and jax.config.jax_platforms == os.environ["JAX_PLATFORMS"] == "arena"
    """
    run_jax(PLATFORMS + code, JAX_PLATFORMS=None)


def test_it_warns_where_jax_will_not_use_the_arena():
    said = "does not name the arena, so JAX will not use it; it must be arena,cpu"
    code = f"""
    assert warned() == ["JAX_PLATFORMS=cpu {said}"]
    import jax
    assert warned() == ["jax.config.jax_platforms=cpu {said}"]
    assert os.environ["JAX_PLATFORMS"] == jax.config.jax_platforms == "cpu"
    del os.environ["JAX_PLATFORMS"]
    jax.config.update("jax_platforms", None)
    assert jax.devices()[0].platform == "cpu"
    (text,) = warned()
    assert text == "JAX runs on cpu already, not on the arena; call configure() before the first use of a device"
    """
    run_jax(PLATFORMS + code, JAX_PLATFORMS="cpu")

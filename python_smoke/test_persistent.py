"""The persistent compilation cache, and blobs of programs that cross between us and the bare engine.

JAX's key for an entry contains the platform's version, to which we add our name: the two never meet by themselves. Here
their entries are exchanged by hand, damaged and cut off. What loads must compute what was asked for; what does not load
is compiled anew.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from harness import beside_the_bare_engine, run_jax

CODE = """
    import json, os, warnings
    import jax, jax.numpy as jnp, numpy as np
    from jax._src import monitoring
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # Otherwise the folder is a part of the key.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    events = []
    monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
    said = []
    warnings.showwarning = lambda message, *_: said.append(str(message))
    device = jax.devices(os.environ["BACKEND"])[0]
    x = jax.device_put(np.arange(4096, dtype=np.float32), device)
    jax.block_until_ready(x)
    del events[:]
    step = jax.jit(lambda x, y: (x * 2 + y, y.sum()), donate_argnums=0)
    total, last = step(x, jax.device_put(np.ones(4096, np.float32), device))
    assert np.asarray(total).tolist() == (np.arange(4096) * 2 + 1).tolist() and float(last) == 4096, total
    import dataclasses
    from pjrt_arena import memory
    print(json.dumps({
        "hits": events.count("cache_hits"), "misses": events.count("cache_misses"), "said": said,
        "programs": dataclasses.asdict(memory.counters().programs),
        "results": dataclasses.asdict(memory.counters().results),
    }))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = beside_the_bare_engine(tmp_path_factory.mktemp("engine"), devices=1)

    def run(folder: Path, backend: str) -> dict:
        done = run_jax(CODE, **settings, BACKEND=backend, JAX_COMPILATION_CACHE_DIR=str(folder))
        return json.loads(done.stdout.splitlines()[-1])

    return run


def entry(folder: Path) -> Path:
    (found,) = folder.glob("jit__lambda*-cache")
    return found


@pytest.fixture(scope="module")
def caches(tmp_path_factory, run):
    """A folder filled by each backend, and what the first run of each said."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("arena", "bare")}
    first = {name: run(folder, name) for name, folder in folders.items()}
    return folders, first


def with_entry(blob: bytes, like: Path, folder: Path) -> Path:
    """A cache in which the entry that is looked up under `like`'s name has these bytes."""
    (folder / entry(like).name).write_bytes(blob)
    return folder


@pytest.mark.arena
def test_the_second_process_compiles_nothing(caches, run):
    folders, first = caches
    assert first["arena"]["misses"] >= 1 and first["arena"]["hits"] == 0
    again = run(folders["arena"], "arena")
    assert again["hits"] >= 1 and again["misses"] == 0 and again["said"] == []
    # The destinations came with the entry.
    assert again["results"]["placed"] == first["arena"]["results"]["placed"] >= 1
    assert again["results"]["donated"] == first["arena"]["results"]["donated"] == 1


@pytest.mark.arena
def test_keys_are_our_own(caches, run, tmp_path):
    folders, _ = caches
    assert entry(folders["arena"]).name != entry(folders["bare"]).name
    for name in folders:
        shutil.copytree(folders[name], tmp_path, dirs_exist_ok=True)
    for name in folders:
        both = run(tmp_path, name)
        assert both["hits"] >= 1 and both["misses"] == 0 and both["said"] == []


@pytest.mark.arena
def test_an_entry_of_the_bare_engine_loads(caches, run, tmp_path):
    """It knows no destinations: its new result lies with the engine, the other in the argument that was donated."""
    folders, _ = caches
    crossed = run(with_entry(entry(folders["bare"]).read_bytes(), folders["arena"], tmp_path), "arena")
    assert crossed["hits"] == 1 and crossed["said"] == []
    assert crossed["programs"]["not_rewritten"] == {"serialised by the bare engine": 1}
    assert crossed["results"]["placed"] == 0 and crossed["results"]["missed"] == {}


@pytest.mark.arena
def test_the_bare_engine_refuses_ours_and_compiles(caches, run, tmp_path):
    folders, _ = caches
    crossed = run(with_entry(entry(folders["arena"]).read_bytes(), folders["bare"], tmp_path), "bare")
    assert crossed["misses"] == 1 and any("persistent compilation cache" in text for text in crossed["said"])


@pytest.mark.arena
@pytest.mark.parametrize("damage", ["cut off", "empty", "noise", "another version"])
def test_a_damaged_entry_is_compiled_anew(caches, run, tmp_path, damage):
    from jax._src import compilation_cache

    folders, _ = caches
    whole = entry(folders["arena"]).read_bytes()
    executable, seconds = compilation_cache.extract_executable_and_time(compilation_cache.decompress_executable(whole))

    def packed(blob: bytes) -> bytes:
        return compilation_cache.compress_executable(compilation_cache.combine_executable_and_time(blob, seconds))

    blob = {
        "cut off": packed(executable[: len(executable) // 2]),
        "empty": packed(b""),
        "noise": packed(os.urandom(len(executable))),
        "another version": packed(executable.replace(b"pjrt-arena", b"pjrt-arena-99", 1)),
    }[damage]
    assert blob != packed(executable) == whole
    damaged = run(with_entry(blob, folders["arena"], tmp_path), "arena")
    assert damaged["misses"] == 1 and any("persistent compilation cache" in text for text in damaged["said"])
    assert damaged["results"]["placed"] >= 1


@pytest.mark.arena
def test_serialised_executables_cross(tmp_path):
    """`jax.experimental.serialize_executable`: the bare engine's loads here, ours is refused there by name."""
    out = run_jax(
        """
        import jax, numpy as np
        from jax.experimental import serialize_executable as blobs
        X = np.ones((8, 8), np.float32)
        def make(name):
            with jax.default_device(jax.devices(name)[0]):
                return blobs.serialize(jax.jit(lambda x: (x @ x, x + 1)).lower(X).compile())
        def load(made, name):
            device = jax.devices(name)[0]
            call = blobs.deserialize_and_load(*made, backend=device.client, execution_devices=[device])
            return call(jax.device_put(X, device))
        product, plus = load(make("bare"), "arena")
        assert (np.asarray(product) == 8).all() and (np.asarray(plus) == 2).all()
        assert plus.devices() == {jax.devices("arena")[0]}
        try:
            load(make("arena"), "bare")
        except Exception as error:
            print(type(error).__name__, str(error)[:300])
        """,
        **beside_the_bare_engine(tmp_path, devices=1),
    ).stdout
    assert "JaxRuntimeError" in out

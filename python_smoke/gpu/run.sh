#!/bin/sh
# Checks and measures pjrt-arena on this machine's GPU, beside JAX's own allocators; run.sh --help.
#
# Builds nothing and fetches nothing. Needs the built library (target/release/libpjrt_arena.so, or PJRT_ARENA_LIBRARY_PATH),
# and a Python with jax and JAX's CUDA plugin (PYTHON, or python3). Without a GPU: run.sh --platform cpu is a rehearsal
# on the CPU engine.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}

library=${PJRT_ARENA_LIBRARY_PATH:-$root/target/release/libpjrt_arena.so}
if [ ! -f "$library" ]; then
    echo "run.sh: $library is not a file: build it with cargo build --release, or set PJRT_ARENA_LIBRARY_PATH" >&2
    exit 2
fi
if ! "$python" -c 'import jax' 2>/dev/null; then
    echo "run.sh: $python has no jax: name a Python that has with PYTHON=..." >&2
    exit 2
fi
# The package of this tree, whatever else is installed; an absolute path, as children run anywhere.
PJRT_ARENA_LIBRARY_PATH=$(cd "$(dirname "$library")" && pwd)/$(basename "$library")
PYTHONPATH=$root/python:$root/python_smoke${PYTHONPATH:+:$PYTHONPATH}
export PJRT_ARENA_LIBRARY_PATH PYTHONPATH
exec "$python" -m gpu "$@"

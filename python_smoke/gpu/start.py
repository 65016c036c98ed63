"""The first and the last of a process: the client, the first array, one trim, the end."""

from __future__ import annotations

import os
import time
from typing import Any

from gpu.sizes import Sizes


def ends(sizes: Sizes) -> dict[str, Any]:
    """Seconds of each. The end is measured by who waits for it, from this answer on: `end_seconds` of the record."""

    def timed(run) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    took = {"import": timed(lambda: __import__("jax"))}
    import jax
    import jax.numpy as jnp

    took["client"] = timed(jax.devices)
    took["first_array"] = timed(lambda: jnp.zeros(1).block_until_ready())
    took["second_array"] = timed(lambda: jnp.zeros(1).block_until_ready())
    # Another shape is another program, on a device that works.
    took["other_array"] = timed(lambda: jnp.zeros(2).block_until_ready())
    given_back = None
    if os.environ["JAX_PLATFORMS"].startswith("arena"):
        from pjrt_arena import memory

        trims: list[memory.Trim] = []
        took["trim"] = timed(lambda: trims.extend(memory.trim()))
        given_back = sum(trim.returned_bytes for trim in trims)
        took["array_after_trim"] = timed(lambda: jnp.zeros(1).block_until_ready())
    return {"seconds": took, "given_back": given_back}


def warm(sizes: Sizes) -> dict[str, Any]:
    """A tiny program. The first process of all brings some hundred megabytes of libraries from the disk."""
    import jax
    import jax.numpy as jnp

    return {"device": str(jax.devices()[0]), "sum": float(jax.jit(lambda x: (x + 1).sum())(jnp.ones(64)))}

"""The settings of a process: drawn from its seed, written and read as one word."""

from __future__ import annotations

import random

#: Settings that are no variable of the arena's.
OWN = ("threads", "x64", "fill")


def draw(seed: int) -> dict[str, str]:
    """The settings that a seed stands for."""
    rng = random.Random(f"settings {seed}")
    strategy = rng.choice(("preallocate", "growing", "platform", "tpu", "tpu"))
    settings = {
        "strategy": strategy,
        "compact": rng.choice(("on", "off", "always", "always")),
        "limit": rng.choice(("2MiB", "4MiB", "8MiB", "16MiB", "32MiB")),
        "devices": rng.choice("1234"),
        "rewrite": rng.choice(("on", "on", "on", "off")),
        "zero_copy": rng.choice(("on", "off")),
        "scratch": rng.choice(("warm", "system")),
        "history": rng.choice(("0", "100", "65536")),
        "threads": rng.choice("11234"),
        "x64": rng.choice("01"),
        # Percent of the limit that a thread's arrays together may come to.
        "fill": rng.choice(("40", "70", "90")),
    }
    if strategy == "tpu":
        settings["tpu_tiles"] = rng.choice(("off", "off", "off", "on"))
    if rng.random() < 0.1:
        settings["huge_pages"] = "on"
    spill = rng.choice(("off", "off", "host", "host", "always"))
    if spill != "off":
        settings |= {"spill": spill, "spill_limit": "1GiB", "fill": rng.choice(("90", "150", "250"))}
    return settings


def word(settings: dict[str, str]) -> str:
    """As `--settings` takes it."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def read(text: str) -> dict[str, str]:
    """What `word` wrote.

    Raises:
      ValueError: there is no `=` in a part.
    """
    return dict(part.split("=", 1) for part in text.split(",") if part)


def variables(settings: dict[str, str]) -> dict[str, str]:
    """The environment variables of these settings."""
    ours = {f"PJRT_ARENA_{name.upper()}": value for name, value in settings.items() if name not in OWN}
    return {"JAX_PLATFORMS": "arena,cpu", "JAX_ENABLE_X64": settings.get("x64", "0"), **ours}

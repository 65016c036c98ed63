"""Random programs with random settings give the bits of JAX's CPU backend: a few seeds, always the same ones.

`make fuzz` goes on with others.
"""

import json

import pytest
from harness import run_python
from jax_fuzz import drawn

pytestmark = pytest.mark.arena


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_few_seeds(seed):
    settings = drawn.word(drawn.draw(seed))
    run = run_python("-m", "jax_fuzz", "--seed", str(seed), "--settings", settings, "--steps", "60", check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    counts = json.loads(run.stdout.splitlines()[-1])
    assert counts["programs"] > 5 and counts["compared"] > 20 and not counts["failures"], counts


def test_settings_are_written_and_read():
    for seed in range(50):
        settings = drawn.draw(seed)
        assert drawn.read(drawn.word(settings)) == settings

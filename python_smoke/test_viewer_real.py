"""The snapshot of a real training run that fragmented its memory, was compacted and ran out, in a real browser."""

from __future__ import annotations

import json

import pytest
from harness import run_jax
from selenium.webdriver import ActionChains, Keys
from viewer_data import COMPACTION, OUT_OF_MEMORY, PINNED, RESERVED
from viewer_replay import FREE, by_origin, final_blocks, first, replay

pytest_plugins = ["viewer_browser"]
pytestmark = pytest.mark.arena

# Arrays of many sizes come and go between the steps, as a data loader's and a logger's do; one of them is pinned.
TRAINING = """
import jax, jax.numpy as jnp, numpy as np
from pjrt_arena import memory

def loss(weights, x, y):
    return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2)

@jax.jit
def train_step(weights, x, y):
    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, x, y))]

weights = [jnp.full((256, 512), 0.01), jnp.full((512, 64), 0.02)]
logged = []
for step in range(40):
    x, y = np.full((128 + 16 * (step % 5), 256), step, np.float32), np.ones((128 + 16 * (step % 5), 64), np.float32)
    weights = train_step(weights, jax.device_put(x), jax.device_put(y))
    logged.append(jnp.full((300 + 40 * (step % 7), 512), step))
    if step == 10:
        seen = np.asarray(logged[-1])
    if step % 3 == 2:
        del logged[:-12:2]
large = jnp.zeros((1 << 20,)) + 1                     # no hole holds it: live arrays are moved
try:
    activations = [large]
    while True:
        activations.append(jax.block_until_ready(activations[-1] * 2))
except (ValueError, RuntimeError) as error:
    assert "RESOURCE_EXHAUSTED" in str(error)
assert (seen == 10).all() and float(logged[-1][0, 0]) == 39
memory.snapshot(FOLDER + "/x.html")
memory.snapshot(FOLDER + "/x.json")
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    settings = {"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_LIMIT": "24MiB", "PJRT_ARENA_DEVICES": "1"}
    run_jax(TRAINING.replace("FOLDER", repr(str(folder))), **settings)
    return folder / "x.html", json.loads((folder / "x.json").read_text())


def arrays(page):
    """The view's blocks without what is kept for programs' scratch, which the replay leaves out."""
    return [block for block in page.blocks() if block[4] != RESERVED]


def shown(device, page):
    """The view's arrays at an earlier instant, but for who made what is there still: a program that was donated a block
    is its maker in the end, and that is no event, so the page has it for all times."""
    last = {block[0] for block in final_blocks(device)}
    return [without_maker(block) if block[0] in last else block for block in arrays(page)]


def replayed(device, position):
    """What `shown` is to be: a block that went has the maker that it had in the end, as its last event says."""
    events = zip(*device["events"].values(), strict=True)
    makers = {event[2]: [event[5], event[6]] for event in events if event[1] == FREE}
    blocks = replay(device, position)
    return [
        [*block[:5], *makers[block[0]], *block[7:]] if block[0] in makers else without_maker(block) for block in blocks
    ]


def without_maker(block):
    return [*block[:5], None, None, *block[7:]]


def test_a_real_run_is_shown_as_it_was(page, files):
    path, run = files
    device = run["devices"][0]
    events = len(device["events"]["time"])
    assert COMPACTION in device["events"]["kind"] and device["stats"]["compactions"] >= 1
    page.show(path)
    # Two snapshots are written one after the other, so the page is a few milliseconds older than the JSON.
    assert page.number("In use") == device["stats"]["in_use"]
    assert page.number("Largest hole") == device["stats"]["largest_hole"]
    assert page.blocks() == final_blocks(device)

    # Drag the slider: the map follows, and says what a replay of the events in Python says.
    slider = page.find("#slider")
    width = slider.size["width"]
    drag = ActionChains(page.browser).move_to_element_with_offset(slider, width // 2 - 9, 0).click_and_hold()
    drag.move_by_offset(-width // 2, 0).release().perform()
    page.settle()
    assert 0 < page.position < events
    assert shown(device, page) == replayed(device, page.position)
    page.keys("#slider", Keys.HOME)
    assert shown(device, page) == replayed(device, 0)
    page.seek(first(run, COMPACTION))
    assert "moved" in page.find("#moves").text
    assert shown(device, page) == replayed(device, page.position)
    page.keys("#slider", Keys.END)

    # The failed request, beside the holes that were there.
    failed = device["events"]["kind"].index(OUT_OF_MEMORY)
    label = run["origins"]["label"][device["events"]["origin"][failed]]
    assert label.startswith("jit_multiply output 0") and label in page.find("#failure").text

    # Sort, search, and find the blocks of an origin on the map.
    held = by_origin(run, final_blocks(device))
    page.click("#holders-table thead th:nth-child(1) button")
    assert [row[0] for row in page.rows()] == sorted(held)
    page.keys("#search", "train_step")
    names = [row[0] for row in page.rows()]
    assert names and all("train_step" in name for name in names)
    page.click("#holders-table tbody tr .name")
    focus = page.run("return [...arenaViewer.map.focus]")
    assert [run["origins"]["label"][origin] for origin in focus] == names[:1]

    # The array that NumPy looks at, by a click on the map.
    [pinned] = [block for block in final_blocks(device) if block[4] == PINNED]
    page.click_map(pinned[1])
    assert run["pin_reasons"][pinned[8]] in page.find("#detail").text

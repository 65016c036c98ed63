"""What the page of a memory snapshot says, at every instant, against a replay of the events in Python.

And what it makes of files that are hostile, empty or damaged.
"""

from __future__ import annotations

import json

import pytest
import viewer_data
from selenium.webdriver import Keys
from selenium.webdriver.support.ui import Select
from viewer_data import ALLOCATE, COMPACTION, FREE, MOVE, PENDING, RESERVED
from viewer_replay import final_blocks, first, holes, replay

pytest_plugins = ["viewer_browser"]
# The page is ours, whatever engine the other tests run on.
pytestmark = pytest.mark.arena

# The chart's largest holes come from a tree of gaps, the map's from a walk over the blocks.
HOLES_DIFFER = """
const { view, device } = arenaViewer.state, found = [];
for (let at = 0; at <= device.count; at++) {
  if (view.seek(at).largestHole.bytes !== device.series.hole[at]) found.push(at);
}
return found;
"""


def test_the_head_line_says_what_the_snapshot_says(page, run):
    page.open(run)
    for device in run["devices"]:
        Select(page.find("#device")).select_by_visible_text(device["name"])
        page.settle()
        stats = device["stats"]
        assert page.number("In use") == stats["in_use"]
        assert page.number("Peak") == stats["peak_in_use"]
        assert page.number("Pool") == stats["pool"]
        assert page.number("Limit") == device["limit"]
        assert page.number("Free") == stats["free"]
        assert page.number("Largest hole") == stats["largest_hole"]
        assert page.number("Pinned") == stats["pinned"]
        assert page.number("Pending") == stats["pending"]
        about = page.find("#about").text
        assert f"{device['name']} · strategy {device['strategy']}" in about
        assert f"{len(device['events']['time']):,} events kept" in about
        assert not page.find("#note").is_displayed()


def test_undo_to_the_first_event_and_redo_to_the_last_gives_the_blocks_that_are_there(page, run):
    page.open(run)
    page.seek(0)
    assert page.blocks() == []
    page.keys("#slider", Keys.END)
    for device in run["devices"]:
        Select(page.find("#device")).select_by_visible_text(device["name"])
        page.settle()
        assert page.blocks() == final_blocks(device)


def test_every_instant_is_as_a_replay_of_the_events_says(page, run):
    device = run["devices"][0]
    page.open(run)
    events = len(device["events"]["time"])
    for position in [*range(0, events, 97), first(run, COMPACTION) - 5, events]:
        blocks = replay(device, position)
        page.run("arenaViewer.state.view.seek(arguments[0])", position)
        assert page.blocks() == blocks, position
        seen = page.run("return arenaViewer.state.view.numbers")
        assert seen["inUse"] == sum(block[3] for block in blocks if block[4] != PENDING), position
        assert seen["pending"] == sum(block[3] for block in blocks if block[4] == PENDING), position
        if position:
            expected = holes(device, blocks)
            assert seen["hole"] == max(expected), position
            assert (seen["holes"], seen["free"]) == (len(expected), sum(expected)), position
    assert page.run(HOLES_DIFFER) == []


@pytest.mark.parametrize("begins", ["before a retired block is freed", "amid a compaction", "late"])
def test_lost_events_leave_the_instants_that_are_kept_as_they_were(page, run, begins):
    events = run["devices"][0]["events"]
    kinds = list(zip(events["kind"], events["before"], strict=True))
    lost = {
        "before a retired block is freed": kinds.index((FREE, PENDING)),
        "amid a compaction": events["kind"].index(MOVE) + 40,
        "late": 1500,
    }[begins]
    kept = len(events["time"]) - lost
    page.open(viewer_data.training_run(keep=kept))
    assert f"{lost:,} older ones lost" in page.find("#about").text
    for position in [*range(min(kept, 8)), *range(8, kept + 1, 90)]:
        page.run("arenaViewer.state.view.seek(arguments[0])", position)
        seen = {block[0]: block for block in page.blocks()}
        there = {block[0]: block for block in replay(run["devices"][0], position + lost)}
        assert seen.keys() == there.keys(), position
        for name, block in there.items():
            # What was asked for is not in the record of a free whose allocation is lost.
            assert [seen[name][i] for i in (1, 2, 4, 5, 6, 7)] == [block[i] for i in (1, 2, 4, 5, 6, 7)], position
    assert not page.find("#note").is_displayed()


def test_the_record_may_say_less_and_blocks_and_regions_may_change_size(page, run):
    """No column of states before; a move to a place of another size, in a region that was exchanged."""
    data = json.loads(json.dumps(run))
    for device in data["devices"]:
        del device["events"]["before"]
    page.open(data)
    assert page.blocks() == final_blocks(data["devices"][0])
    assert page.run("return arenaViewer.state.device.strays") == 0

    arena = viewer_data.Arena("cpu:0", 1 << 30, "growing")
    origins = viewer_data.Origins()
    origin = origins.result("jit_f", 0, "f32[25]")
    block = arena.blocks[arena.allocate(100, origin, 1)]
    old, size = arena.regions.copy().popitem()
    arena.record(viewer_data.REGION, address=old, bytes=2 * size)
    arena.record(viewer_data.REGION_GONE, address=old, bytes=size)
    arena.regions[old] = 2 * size
    block.update(address=old + size, bytes=512)
    arena.note(MOVE, block, other=old)
    page.open(viewer_data.snapshot(origins, [arena.device()], arena.time))
    assert page.blocks() == final_blocks(arena.device())
    assert page.number("Pool") == 2 * size
    assert page.number("Free") == 2 * size - 512
    assert page.number("Largest hole") == size
    page.seek(arena.events["kind"].index(ALLOCATE) + 1)
    assert [found[1:3] for found in page.blocks()] == [[old, 256]]
    assert (page.number("Pool"), page.number("Free")) == (size, size - 256)
    assert not page.find("#note").is_displayed()


def test_scratch_lies_at_the_bottom_while_programs_run(page):
    data = viewer_data.scratch_run()
    device = data["devices"][0]
    page.open(data)
    kinds = device["events"]["kind"]
    expected, reserved = [], 0
    for position in range(1, len(kinds) + 1):
        if kinds[position - 1] == viewer_data.SCRATCH:
            reserved = device["events"]["bytes"][position - 1]
        page.run("arenaViewer.state.view.seek(arguments[0])", position)
        seen = [block[1:3] for block in page.blocks() if block[4] == RESERVED]
        assert seen == ([[device["regions"]["address"][0], reserved]] if reserved else []), position
        expected.append(reserved)
    assert len(set(expected)) == 3
    page.seek(len(kinds))
    assert page.number("Scratch") == device["stats"]["reserved"]
    assert page.number("Free") == device["stats"]["free"]


def test_many_regions_lie_one_after_another(page):
    data = viewer_data.platform_run()
    device = data["devices"][0]
    page.open(data)
    assert page.blocks() == final_blocks(device)
    assert page.number("Largest hole") == 0
    assert f"{len(device['regions']['bytes'])} regions" in page.find("#scale").text
    assert page.run(HOLES_DIFFER) == []
    for block in final_blocks(device)[:: len(device["blocks"]["id"]) // 5]:
        if block[2] >= 1 << 16:
            page.click_map(block[1])
            assert f"block {block[0]}" in page.find("#detail").text
    page.seek(40)
    assert page.blocks() == replay(device, 40)


def test_many_blocks_share_pixels_and_are_still_found(page):
    data = viewer_data.large_run(blocks=10_000, events=20_000)
    page.open(data)
    device = data["devices"][0]
    assert page.blocks() == final_blocks(device)
    assert page.run("return arenaViewer.state.device.differences()") == 0
    # Each point of the map hits the block that is there, or one within two pixels where blocks are thinner than one.
    hits = page.run(
        """const { map } = arenaViewer, { spans } = map.view.device, found = [];
        const perPixel = map.bytesPerRow / map.canvas.clientWidth;
        for (let y = 30; y < 200; y += 22) for (let x = 3; x < map.canvas.clientWidth - 3; x += 3) {
          const hit = map.hit(x, y);
          if (hit?.span === undefined) continue;
          const at = map.locate(spans.address[hit.span]), end = at.x + spans.bytes[hit.span] / perPixel;
          found.push(at.y > y - 22 && at.y <= y ? Math.max(at.x - x, x - end) : 0);
        }
        return found;"""
    )
    assert len(hits) > 300
    assert max(hits) <= 2.01


def test_hostile_names_do_no_harm(page):
    data = viewer_data.hostile_run()
    page.open(data)
    assert page.run("return [window.harmed, document.scripts.length, document.images.length]") == [None, 2, 0]
    shown = [row[0] for row in page.rows()]
    assert len(shown) == len(data["origins"]["label"]) - 1
    assert "</script><script>window.harmed = 1</script>" in shown
    assert "__proto__" in shown
    assert all(len(name) <= 250 and "\u202e" not in name for name in shown)
    for block in final_blocks(data["devices"][0]):
        page.click_map(block[1])
        assert page.find("#detail").text
    page.run("arenaViewer.openText(arguments[0], '<img src=x onerror=window.harmed=1>.json')", json.dumps(data))
    page.settle()
    page.resize(390)
    page.settle()
    assert page.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.run("return window.harmed") is None


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (viewer_data.empty(), "has no devices"),
        (viewer_data.empty() | {"version": 2}, "is of version 2, and this viewer reads version 1"),
        (viewer_data.empty() | {"version": None}, "this viewer reads version 1"),
        (viewer_data.empty() | {"schema": "torch"}, "not a memory snapshot of pjrt-arena"),
        ("[1, 2", "is not JSON, or was cut off"),
        ("null", "not a memory snapshot of pjrt-arena"),
        ("@@SNAPSHOT@@", "There is no snapshot in this page yet"),
    ],
    ids=["empty", "newer", "no version", "another schema", "cut off", "null", "template"],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(page, run, data, sentence):
    page.open(data)
    assert sentence in page.find("#message").text
    assert not page.find("#content").is_displayed()
    # The page is still good for another file.
    page.run("arenaViewer.openText(arguments[0], 'good.json')", json.dumps(run))
    page.settle()
    assert page.number("In use") == run["devices"][0]["stats"]["in_use"]
    assert not page.find("#message").is_displayed()


def test_a_device_without_anything_and_a_damaged_table(page, run):
    bare = viewer_data.Arena("cpu:0", 1 << 30, "growing").device()
    none = {key: bare[key] for key in ("name", "strategy", "limit")}
    for device in (bare, none):
        page.open(viewer_data.snapshot(viewer_data.Origins(), [device], 0))
        assert page.number("In use") == 0
        assert "0 blocks, 0 holes" in page.find("#scale").text
        for button in ("#zoom-in", "#zoom-fit", "#theme"):
            page.click(button)
        page.click("#map canvas")
        page.keys(".map-scroller", Keys.ARROW_DOWN, "+", "-")
    damaged = json.loads(json.dumps(run))
    damaged["devices"][0]["events"]["bytes"].pop()
    page.open(damaged)
    assert "devices[0].events.bytes has" in page.find("#message").text


def test_the_page_may_ask_nothing_of_any_network(browser, tmp_path, run):
    """The page's own rule, tried: what the other tests find in the logs is not luck."""
    path = tmp_path / "page.html"
    path.write_text(viewer_data.page(run), encoding="utf-8")
    browser.get(path.as_uri())
    refused = browser.execute_async_script(
        """const done = arguments[0], refused = [];
        addEventListener('securitypolicyviolation', (event) => refused.push(event.effectiveDirective));
        fetch('http://127.0.0.1:9/').catch(() => {});
        const image = new Image();
        image.src = 'http://127.0.0.1:9/x.png';
        setTimeout(() => done(refused), 300);"""
    )
    assert sorted(refused) == ["connect-src", "img-src"]

"""The page of a memory snapshot, used as a user does: clicks, drags, keys, touches and files."""

from __future__ import annotations

import json

import pytest
import viewer_data
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.support.ui import Select, WebDriverWait
from viewer_data import COMPACTION, MOVE, OUT_OF_MEMORY, PENDING, PINNED, RESERVED
from viewer_replay import by_origin, final_blocks, first, replay

pytest_plugins = ["viewer_browser"]
# The page is ours, whatever engine the other tests run on.
pytestmark = pytest.mark.arena


def test_a_click_on_the_map_names_the_block_and_marks_its_origin(page, run):
    page.open(run)
    device = run["devices"][0]
    block = max((block for block in final_blocks(device) if block[4] == PINNED), key=lambda block: block[2])
    page.click_map(block[1])
    label = run["origins"]["label"][block[5]]
    detail = page.find("#detail").text
    assert label in detail
    assert hex(block[1]) in detail
    assert f"block {block[0]}" in detail
    assert run["pin_reasons"][block[8]] in detail
    assert f"made by execution {block[6]}" in detail
    [chosen] = page.all("#holders-table tr.chosen .name")
    assert chosen.text == label
    assert page.run("return [...arenaViewer.map.focus]") == [block[5]]

    # The next block to the right, by the keyboard, and nothing any more after Escape.
    page.keys(".map-scroller", Keys.ARROW_RIGHT)
    after = next(other for other in final_blocks(device) if other[1] > block[1])
    assert hex(after[1]) in page.find("#detail").text
    row = "const { map, state } = arenaViewer; return map.locate(state.device.spans.address[map.selected]).y"
    here = page.run(row)
    page.keys(".map-scroller", Keys.ARROW_DOWN)
    below = page.run(row)
    assert here < below < here + 50
    page.keys(".map-scroller", Keys.ARROW_UP)
    assert page.run(row) == here
    page.keys(".map-scroller", Keys.ESCAPE)
    assert page.all("#holders-table tr.chosen") == []
    assert page.run("return arenaViewer.map.focus") is None


def test_the_pointer_over_the_map_shows_blocks_and_holes(page, run):
    page.open(run)
    device = run["devices"][0]
    canvas = page.find("#map canvas")
    block = max(final_blocks(device), key=lambda block: block[2])
    ActionChains(page.browser).move_to_element_with_offset(canvas, *page.place(block[1])).perform()
    assert run["origins"]["label"][block[5]] in page.find("#tip").text
    hole = page.run("return arenaViewer.state.view.largestHole")
    assert hole["bytes"] == device["stats"]["largest_hole"]
    ActionChains(page.browser).move_to_element_with_offset(canvas, *page.place(hole["address"])).perform()
    assert "the largest hole" in page.find("#tip").text
    colours = [pixels[0] for pixels in page.pixels(block[1], hole["address"])]
    assert colours[0] != colours[1]
    assert all(colour >> 24 == 255 for colour in colours)


def test_pinned_pending_and_reserved_blocks_differ_in_more_than_colour(page, run):
    for data, states in ((run, (0, PINNED, PENDING)), (viewer_data.scratch_run(), (0, RESERVED))):
        page.open(data)
        blocks = final_blocks(data["devices"][0])
        largest = [max((b for b in blocks if b[4] == state), key=lambda b: b[2]) for state in states]
        for state, pixels in zip(states, page.pixels(*[block[1] for block in largest]), strict=True):
            assert len(set(pixels)) == (2 if state else 1), state


def test_zoom_by_button_key_and_wheel_and_colour_by_age(page, run):
    page.open(run)

    def scale():
        return page.run("return arenaViewer.map.bytesPerRow")

    fitted = scale()
    page.click("#zoom-in")
    assert scale() == fitted / 2
    page.keys(".map-scroller", "+")
    assert scale() == fitted / 4
    canvas = page.find("#map canvas")
    scroll = ScrollOrigin.from_element(canvas)
    ActionChains(page.browser).key_down(Keys.CONTROL).scroll_from_origin(scroll, 0, 160).key_up(Keys.CONTROL).perform()
    page.settle()
    assert fitted / 4 < scale() < fitted
    page.click("#zoom-fit")
    assert scale() == fitted

    box = page.run("return arguments[0].getBoundingClientRect().toJSON()", canvas)
    middle = box["x"] + box["width"] / 2, box["y"] + 80
    for kind, apart in (("touchStart", 20), ("touchMove", 25), ("touchMove", 50), ("touchEnd", 0)):
        points = [{"x": middle[0] + side * apart, "y": middle[1], "id": side + 1} for side in (-1, 1)]
        touches = points if apart else []
        page.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})
        page.settle()
    assert scale() == pytest.approx(fitted / 2.5, rel=0.01)
    page.keys(".map-scroller", "0")
    assert scale() == fitted
    picture = "return arenaViewer.map.canvas.toDataURL()"
    before = page.run(picture)
    Select(page.find("#colour")).select_by_value("age")
    page.settle()
    assert page.run(picture) != before
    assert page.find("#legend").text.splitlines()[0] == "<1 ms"


def test_the_slider_takes_map_head_line_and_table_along(page, run):
    page.open(run)
    device = run["devices"][0]
    events = len(device["events"]["time"])
    slider = page.find("#slider")
    assert page.position == events
    width = slider.size["width"]
    drag = ActionChains(page.browser).move_to_element_with_offset(slider, width // 2 - 9, 0).click_and_hold()
    drag.move_by_offset(-width // 3, 0).release().perform()
    page.settle()
    position = page.position
    assert 0.6 * events < position < 0.72 * events
    blocks = replay(device, position)
    assert page.number("In use") == sum(block[3] for block in blocks if block[4] != PENDING)
    assert page.blocks() == blocks
    assert {row[0] for row in page.rows()} == by_origin(run, blocks).keys()
    page.keys("#slider", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert page.position == position + 1
    assert slider.get_attribute("aria-valuetext").startswith(f"event {position + 1:,} of {events:,}")

    # By time the same: the slider's middle is the middle of the time.
    Select(page.find("#axis")).select_by_value("time")
    ActionChains(page.browser).move_to_element(slider).click().perform()
    page.settle()
    times = device["events"]["time"]
    assert abs(times[page.position - 1] - (times[0] + run["now"]) / 2) < 0.02 * run["now"]

    here = page.position
    page.find("#play").click()
    WebDriverWait(page.browser, 20).until(lambda _: page.position > here)
    page.click("#play")
    assert page.position < events
    page.click("#chart")
    page.click("#last")
    assert page.position == events


def test_the_peak_is_one_click_away(page, run):
    page.open(run)
    page.click("#peak")
    assert page.number("In use") == run["devices"][0]["stats"]["peak_in_use"]
    assert "at the peak" in page.find("#holders-count").text


def test_a_compaction_is_drawn_as_moves(page, run):
    page.open(run)
    device = run["devices"][0]
    position = first(run, COMPACTION)
    page.keys("#slider", Keys.HOME)
    page.click("#mark-forward")
    assert page.position == position
    moves = device["events"]["kind"].count(MOVE)
    text = page.find("#moves-text").text
    assert f"{moves} blocks moved" in text
    assert "ms" in text or "µs" in text
    assert page.run("return arenaViewer.map.moves.length") == moves
    colours = page.run(
        """const canvas = document.getElementById('ribbons'), { width, height } = canvas;
        return new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, width, height).data.buffer)).size;"""
    )
    assert colours > 10
    page.click("#moves-before")
    assert page.position == device["events"]["kind"].index(MOVE)
    page.click("#moves-after")
    assert page.position == position


def test_a_failed_request_is_drawn_to_scale(page, run):
    page.open(run)
    failure = run["devices"][0]["failures"][0]
    page.click("#failure-show")
    assert page.position == first(run, OUT_OF_MEMORY)
    assert run["origins"]["label"][failure["origin"]] in page.find("#failure-title").text
    assert page.find("#failure-text").get_attribute("textContent") == failure["text"]
    request, free, largest = (bar.size["width"] for bar in page.all("#failure-bars .fill")[:3])
    assert request / largest == pytest.approx(failure["bytes"] / failure["largest_hole"], rel=0.01)
    assert request / free == pytest.approx(failure["bytes"] / failure["free"], rel=0.01)
    page.all("#failure-bars button")[0].click()
    page.settle()
    assert "the largest hole" in page.find("#detail").text


def test_the_table_sorts_opens_and_searches(page, run):
    page.open(run)
    blocks = final_blocks(run["devices"][0])
    held = by_origin(run, blocks)

    def names():
        return [row[0] for row in page.rows()]

    assert names()[0] == max(held, key=lambda label: held[label][0])
    page.click("#holders-table thead th:nth-child(2) button")
    counts = [int(row[1]) for row in page.rows()]
    assert counts == sorted((len(ids) for _, ids in held.values()), reverse=True)
    page.click("#holders-table thead th:nth-child(1) button")
    assert names() == sorted(held)
    assert page.find("#holders-table thead th:nth-child(1)").get_attribute("aria-sort") == "ascending"
    page.click("#holders-table thead th:nth-child(1) button")
    assert names() == sorted(held, reverse=True)

    page.keys("#search", "COPY of")
    assert names() == ["copy of f32[1024,1024]"]
    copies = [block for block in blocks if run["origins"]["kind"][block[5]] == viewer_data.COPY]
    assert page.run("return [...arenaViewer.map.focus]") == [copies[0][5]]
    page.click("#holders-table .toggle")
    opened = [row[0] for row in page.rows() if row[0].startswith("0x")]
    assert opened == [hex(block[1]) for block in copies]
    page.all("#holders-table tr.block")[2].click()
    page.settle()
    assert hex(copies[2][1]) in page.find("#detail").text
    page.find("#search").clear()
    page.keys("#search", "nothing of that name")
    assert names() == []
    assert page.find("#holders-table .none").text == "No origin matches."


def check_growth(page, run, later, same):
    a, b = (by_origin(data, final_blocks(data["devices"][0])) for data in (run, later))
    expected = {}
    for label in a.keys() | b.keys():
        (in_a, ids_a), (in_b, ids_b) = a.get(label, (0, set())), b.get(label, (0, set()))
        expected[label] = [in_b - in_a, str(len(ids_a)), str(len(ids_b)), str(len(ids_a & ids_b)) if same else "–"]
    rows = page.rows("#growth-table")
    assert {row[0]: row[4:] for row in rows} == {label: row[1:] for label, row in expected.items()}
    changes = [expected[row[0]][0] for row in rows]
    assert changes == sorted(changes, reverse=True)
    assert [row[3][0] for row in rows] == ["+" if change > 0 else "−" if change < 0 else "0" for change in changes]


@pytest.mark.parametrize("name", ["later.json", "later.html"])
def test_two_snapshots_side_by_side(page, run, name):
    later = viewer_data.training_run(grown=40)
    page.open(run)
    page.find("#file").send_keys(str(page.write(name, later)))
    WebDriverWait(page.browser, 20).until(lambda _: page.find("#growth").is_displayed())
    page.settle()
    check_growth(page, run, later, same=True)
    assert page.run("return arenaViewer.map.bytesPerRow") == page.run("return arenaViewer.second.bytesPerRow")
    assert "older" not in page.find("#growth-text").text
    decoded = next(i for i, label in enumerate(later["origins"]["label"]) if label.startswith("jit_decode"))
    block = next(block for block in final_blocks(later["devices"][0]) if block[5] == decoded)
    page.click_map(block[1], "second")
    [chosen] = page.all("#growth-table tr.chosen .name")
    assert chosen.text == later["origins"]["label"][decoded]
    page.click("#close")
    assert page.find("#holders").is_displayed()
    assert not page.find("#growth").is_displayed()


def test_a_dropped_snapshot_of_another_process_is_joined_by_origin(page, run):
    later = viewer_data.training_run(grown=5) | {"process": 99, "written_unix_ns": "999999999999999999"}
    page.open(run)
    page.run(
        """const data = new DataTransfer();
        data.items.add(new File([arguments[0]], 'other.json'));
        for (const type of ['dragenter', 'dragover', 'drop']) {
          document.body.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        json.dumps(later),
    )
    WebDriverWait(page.browser, 20).until(lambda _: page.find("#growth").is_displayed())
    page.settle()
    check_growth(page, run, later, same=False)
    assert "different runs" in page.find("#growth-text").text
    assert "which is older" in page.find("#growth-text").text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_sticks_out_at_any_width(page, run, theme):
    page.open(run, theme=theme)
    dark = theme == "dark"
    assert page.run("return document.documentElement.dataset.theme") == theme
    for width in (390, 620, 900, 1280, 2200):
        page.resize(width)
        page.seek(first(run, COMPACTION))
        assert page.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"), width
        out = page.run(
            """return [...document.querySelectorAll('main *, header *')].filter((node) => {
              const box = node.getBoundingClientRect();
              return box.width > 0 && !node.closest('.table') && (box.right > innerWidth + 0.5 || box.left < -0.5);
            }).map((node) => node.outerHTML.slice(0, 80))"""
        )
        assert out == [], width
    page.click("#theme")
    assert page.run("return document.documentElement.dataset.theme") == ("light" if dark else "dark")


def test_every_control_has_a_name_and_is_reached_by_the_keyboard(page, run):
    page.open(run)
    nameless = page.run(
        """return [...document.querySelectorAll('button, select, input, [tabindex]')].filter((node) =>
          node.offsetParent && !(node.getAttribute('aria-label') || node.textContent.trim() || node.labels?.length)
        ).map((node) => node.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    page.run("document.activeElement.blur()")
    reached = set()
    for _ in range(40):
        ActionChains(page.browser).send_keys(Keys.TAB).perform()
        reached.add(page.run("return document.activeElement.id || document.activeElement.className"))
    expected = "device open theme play peak axis slider colour zoom-in map-scroller search"
    assert set(expected.split()) <= reached
    assert page.find("#holders-table table").aria_role == "table"

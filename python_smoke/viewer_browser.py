"""A real browser for the tests of a snapshot's page: fixtures, and the page as an object.

Debian's chromium and chromium-driver, or any others on the PATH. Each test ends with a look at the browser's logs: no
error on the console, and nothing was asked of any network. `window.arenaViewer` is the page's own handle for the
console; tests read from it what lies where.
"""

from __future__ import annotations

import json
import shutil

import pytest
import viewer_data
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")

# What is shown is drawn in the next frame, and tables follow a drag at intervals.
SETTLED = """
const done = arguments[arguments.length - 1];
const wait = (calm) => requestAnimationFrame(() => (calm > 2 ? done() : wait(arenaViewer.busy() ? 0 : calm + 1)));
wait(0);
"""
BLOCKS = """
const { view } = arenaViewer.state, { spans, slots } = view.device, found = [];
for (let i = 0; i < view.count; i++) {
  const span = view.spans[i], slot = spans.slot[span];
  found.push([slots.id[slot], spans.address[span], spans.bytes[span], slots.requested[slot], spans.state[span],
    slots.origin[slot], slots.step[slot], slots.born[slot], spans.pin[span]]);
}
return found;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    missing = [name for name, found in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if found is None]
    if missing:
        pytest.skip(
            f"no {' and no '.join(missing)} on the PATH (Debian: apt-get install chromium chromium-driver): "
            "the page of a snapshot is not tested"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in [
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-dev-shm-usage",
    ]:
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


class Page:
    def __init__(self, browser, folder):
        self.browser, self.folder, self.opened = browser, folder, []

    def write(self, name, data):
        path = self.folder / name
        path.write_text(viewer_data.page(data) if name.endswith(".html") else json.dumps(data), encoding="utf-8")
        return path

    def open(self, data, **how):
        return self.show(self.write(f"page{len(self.opened)}.html", data), **how)

    def show(self, path, *, width=1280, height=900, theme="light"):
        self.resize(width, height)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.opened.append(path.as_uri())
        self.browser.get(path.as_uri())
        self.settle()
        return self

    def resize(self, width, height=900):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def settle(self):
        self.browser.execute_async_script(SETTLED)

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def find(self, css):
        return self.browser.find_element(By.CSS_SELECTOR, css)

    def all(self, css):
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def click(self, css):
        self.find(css).click()
        self.settle()

    def keys(self, css, *keys):
        self.find(css).send_keys(*keys)
        self.settle()

    def seek(self, position):
        self.run("arenaViewer.seek(arguments[0])", position)
        self.settle()

    def blocks(self):
        """Those of the view, each in the order of the snapshot's columns."""
        return self.run(BLOCKS)

    @property
    def position(self):
        return self.run("return arenaViewer.state.position")

    def number(self, name):
        """One of the head line's, in bytes: its tooltip begins with them."""
        title = self.run(
            "return [...document.querySelectorAll('#numbers div')]"
            ".find((tile) => tile.firstChild.textContent === arguments[0]).title",
            name,
        )
        return int(title.split(" bytes")[0].replace(",", ""))

    def rows(self, table="#holders-table"):
        """Texts of the rows, cells in order."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map((row) =>"
            " [...row.querySelectorAll('.name, td')].map((cell) => cell.textContent))",
            table,
        )

    def place(self, address, selector="map"):
        """Where an address is on the map, as an offset from the middle of its canvas, once scrolled to."""
        return self.run(
            """const map = arenaViewer[arguments[1]];
            map.scroller.scrollIntoView({ block: 'center' });
            map.reveal(arguments[0]);
            const { x, y } = map.locate(arguments[0]), box = map.canvas.getBoundingClientRect();
            return [Math.round(x + 2 - box.width / 2), Math.round(y + 9 - map.scroller.scrollTop - box.height / 2)];""",
            address,
            selector,
        )

    def pixels(self, *addresses):
        """Of the map, for each address: those of 16 columns and two rows, clear of a block's edge and of its name."""
        return self.run(
            """const { map } = arenaViewer, { canvas, context, scroller } = map;
            const { data, width } = context.getImageData(0, 0, canvas.width, canvas.height);
            const all = new Uint32Array(data.buffer);
            return [...arguments].map((address) => {
              const { x, y } = map.locate(address), at = Math.round(y - scroller.scrollTop) * width + Math.round(x + 2);
              return [...all.slice(at, at + 16), ...all.slice(at + width, at + width + 16)];
            });""",
            *addresses,
        )

    def click_map(self, address, selector="map"):
        x, y = self.place(address, selector)
        self.settle()
        canvas = self.run("return arenaViewer[arguments[0]].canvas", selector)
        ActionChains(self.browser).move_to_element_with_offset(canvas, x, y).click().perform()
        self.settle()

    def check_logs(self):
        assert [entry for entry in self.browser.get_log("browser") if entry["level"] != "INFO"] == []
        requested = set()
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                requested.add(message["params"].get("request", message["params"])["url"])
        assert {url for url in requested if not url.startswith("data:")} == set(self.opened)


@pytest.fixture
def page(browser, tmp_path):
    made = Page(browser, tmp_path)
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    yield made
    made.check_logs()


@pytest.fixture(scope="module")
def run():
    return viewer_data.training_run()

"""pytest's part of `pjrt_arena.testing`: the marker ``peak_memory`` and the fixture ``no_leaked_arrays``.

    @pytest.mark.peak_memory("64MiB")           fails where the test needs more than that at once
    def test_step(): ...

    def test_loader(no_leaked_arrays): ...      fails where arrays of the test are still there after it

pytest finds it where the package is installed; elsewhere ``-p pjrt_arena.pytest_plugin`` names it. Tests that use
neither are not touched, and JAX is not imported for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

import pytest

_FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Tells pytest of the marker."""
    config.addinivalue_line(
        "markers",
        "peak_memory(limit, device=None): fail where the test needs more memory of a device of pjrt-arena at once",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test with the marker within `assert_peak_below`."""
    marker = item.get_closest_marker("peak_memory")
    if marker is None:
        return (yield)
    from pjrt_arena.testing import assert_peak_below

    __tracebackhide__ = True
    with assert_peak_below(*marker.args, **marker.kwargs):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remembers for `no_leaked_arrays` that a test has failed."""
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


class _TestFailed(Exception):
    """The test itself has failed: its traceback keeps arrays."""


@pytest.fixture
def no_leaked_arrays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails where arrays that the test made, or fixtures that come after this one, are still there after it.

    A test that has failed itself is not looked at: its traceback keeps its arrays.
    """
    from pjrt_arena.testing import assert_no_leaks

    with contextlib.suppress(_TestFailed), assert_no_leaks():
        yield
        if request.node.stash.get(_FAILED, False):
            raise _TestFailed

"""Tracks: the peak of a block, who made it, and what becomes of exceptions and of devices that come meanwhile."""

import gc
import threading

import pytest
from pjrt_arena import _reports, memory

NO_PROGRAMS = {"rewritten": 0, "not_rewritten": {}, "executions": 0, "address_changes": 0}
NO_RESULTS = {"placed": 0, "donated": 0, "missed": {}, "skipped": {}}


class Fake:
    """A library whose answers are known."""

    def counters(self):
        return {"programs": NO_PROGRAMS, "results": NO_RESULTS, "devices": [], "scratch": None}

    def track_begin(self):
        return 7

    def track_end(self, track):
        assert track == 7
        holders = [{"origin": "jit_f output 0 f32[]", "bytes": 3 << 20, "blocks": 1, "oldest_seconds": None}]
        device = {"start_bytes": 1 << 20, "end_bytes": 2 << 20, "peak_bytes": 3 << 20, "peak_used_bytes": 3 << 20}
        known = device | {"device": "cpu:0", "peak_holders": holders, "peak_holders_unknown": None}
        return [known, device | {"device": "cpu:1", "peak_holders": None, "peak_holders_unknown": "no history"}]


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr("pjrt_arena._library.load", Fake)


def test_track_text(fake):
    with memory.track("load") as track:
        with pytest.raises(RuntimeError, match="'load' has not ended"):
            track.peak_bytes_in_use  # noqa: B018
        assert str(track) == "load: not ended"
    assert (track.bytes_in_use_before, track.peak_bytes_in_use, track.bytes_in_use_after) == (2 << 20, 6 << 20, 4 << 20)
    assert str(track).splitlines() == [
        "load: 2.00 MiB in use at the start, 6.00 MiB at the peak, 4.00 MiB at the end",
        "  cpu:0: 1.00 MiB in use at the start, 3.00 MiB at the peak, 2.00 MiB at the end",
        "  cpu:1: 1.00 MiB in use at the start, 3.00 MiB at the peak, 2.00 MiB at the end",
        "  held at the peak by                                            bytes   share   blocks",
        "  jit_f output 0 f32[]                                        3.00 MiB   100 %        1",
        "  no history",
    ]


def test_what_fails_at_the_end_of_a_track_leaves_the_blocks_exception(fake, monkeypatch):
    def broken(track):
        raise ZeroDivisionError(str(track.peak_bytes_in_use))

    with pytest.raises(KeyError, match="mine") as caught, memory.track("load", report=broken):
        raise KeyError("mine")
    assert caught.value.__notes__ == [f"memory.track('load') failed, too: ZeroDivisionError: {6 << 20}"]
    with pytest.raises(ZeroDivisionError), memory.track("load", report=broken):
        pass
    monkeypatch.setattr(Fake, "track_end", lambda *_: {"error": "no track has the number 7"})
    with pytest.raises(KeyboardInterrupt) as caught, memory.track():
        raise KeyboardInterrupt
    assert caught.value.__notes__ == ["memory.track('') failed, too: ArenaError: no track has the number 7"]
    with pytest.raises(memory.ArenaError, match="no track has the number 7"), memory.track():
        pass


def test_a_device_that_came_during_a_track_counts_from_0(fake, monkeypatch):
    """Of two clients' devices of one name the later one is new; its peak is unknown if it was reset meanwhile."""
    numbers = {"strategy": "tpu", "in_use_bytes": 1, "peak_in_use_bytes": 9}
    pinned = numbers | {"name": "cuda:0 pinned_host", "peak_in_use_bytes": 5}
    devices = [numbers | {"name": "cpu:0", "peak_in_use_bytes": 77}, numbers | {"name": "cpu:1"}, {"engine_bytes": 3}]
    devices += [numbers | {"name": "cpu:0", "pinned_host": pinned}]
    told = {"programs": NO_PROGRAMS, "results": NO_RESULTS, "devices": devices, "scratch": None}
    monkeypatch.setattr(Fake, "counters", lambda self: told)
    monkeypatch.setattr(Fake, "reset_peak", lambda self, device: None, raising=False)
    with memory.track() as track:
        pass
    assert [(one.device, one.bytes_in_use_before, one.peak_bytes_in_use) for one in track.devices[2:]] == [
        ("cpu:0", 0, 9),
        ("cuda:0 pinned_host", 0, 5),
    ]
    with pytest.raises(memory.ArenaError, match="the peak of cpu:0, cuda:0 pinned_host is not known"), memory.track():
        memory.reset_peak()


def test_holders_of_several_devices_are_summed_up():
    rows = [("a", 3, 1, 2.0), ("b", 4, 1, 1.0), ("a", 3, 2, 5.0), ("b", 1, 1, None)]
    sums = _reports.sum_of_holders(memory.Holder(*row) for row in rows)
    assert sums == (memory.Holder("a", 6, 3, 5.0), memory.Holder("b", 5, 2, None))


@pytest.mark.arena
def test_track_finds_who_made_the_peak():
    import jax
    import jax.numpy as jnp

    @jax.jit
    def temporary(x):
        return jnp.outer(x, x)

    # What others left behind must not go while numbers are compared.
    gc.collect()
    x = jnp.ones(1024)
    temporary(x).block_until_ready()
    told = []
    mine = "jit_temporary output 0 f32[1024,1024]"

    @memory.track("call", report=told.append)
    def call():
        return float(temporary(x)[0, 0])

    with memory.track("outer") as outer, memory.track("inner") as inner:
        call()
    with pytest.raises(KeyError, match="mine"), memory.track("raises") as raises:  # noqa: PT012
        kept = temporary(x)
        raise KeyError("mine")
    call()
    assert len(told) == 2 and told[0] is not told[1]
    for track in (outer, inner, *told):
        # Nearly: small arrays of other tests may be collected meanwhile.
        assert track.peak_bytes_in_use > track.bytes_in_use_before + (7 << 19), track
        assert track.bytes_in_use_after < track.peak_bytes_in_use, track
        (holder,) = (holder for holder in track.holders if holder.origin == mine)
        # What the blocks take: at 4 MiB some have a colour of 32 KiB.
        assert 0 <= holder.bytes - (8 << 20 if track is told[1] else 4 << 20) <= 2 << 15, track
        assert mine in str(track)
    assert len(outer.devices) == len(jax.devices("arena"))
    before, after = raises.bytes_in_use_before, raises.bytes_in_use_after
    assert after <= raises.peak_bytes_in_use and before + (7 << 19) < after <= before + (4 << 20)
    assert memory.summary().devices[0].bytes_in_use >= kept.nbytes


@pytest.mark.arena
def test_tracks_in_threads():
    import jax.numpy as jnp

    meet, seen = threading.Barrier(4, timeout=60), []

    def work():
        with memory.track(threading.current_thread().name) as track:
            meet.wait()
            mine = jnp.full((1 << 18,), 1.0).block_until_ready()
            meet.wait()
        seen.append((track, mine.nbytes))

    gc.collect()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    # Each sees what all of them did: more than three of the four arrays. Not four and a start to the byte: small arrays
    # of other tests may be collected meanwhile.
    told = [str(track) for track, _ in seen]
    assert all(track.peak_bytes_in_use > track.bytes_in_use_before + (7 << 19) for track, _ in seen), told

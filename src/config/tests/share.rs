//! Settings of processes that share their devices.

use super::*;

#[test]
fn a_process_that_shares_takes_memory_as_it_needs_it() {
    let share = ("PJRT_ARENA_SHARE", "jobs");
    for (given, strategy, compact) in [
        (("A", "b"), Strategy::Growing, Compact::On),
        ((OURS, "growing"), Strategy::Growing, Compact::On),
        ((OURS, "platform"), Strategy::Platform, Compact::Off),
        ((PREALLOCATE, "false"), Strategy::Growing, Compact::On),
        (("XLA_PYTHON_CLIENT_ALLOCATOR", "bfc"), Strategy::Growing, Compact::On),
        (("PJRT_ARENA_COMPACT", "off"), Strategy::Growing, Compact::Off),
    ] {
        let settings = read(&[share, given], &[]).unwrap();
        assert_eq!((settings.strategy.value, settings.compaction()), (strategy, compact), "{given:?}");
        assert_eq!(settings.share.value.0.as_deref(), Some("jobs"));
        let terms = (settings.share_min.value.0, settings.share_weight.value.get());
        assert_eq!(terms, (crate::units::Bytes::ZERO, 100));
    }
    for (given, name) in
        [((OURS, "tpu"), "tpu"), ((OURS, "preallocate"), "preallocate"), ((PREALLOCATE, "true"), "pre")]
    {
        let refused = read(&[share, given], &[]).unwrap_err().message;
        assert!(refused.starts_with(&format!("{} asks for {name}", given.0)), "{refused}");
        assert!(refused.contains("allowed: growing (with PJRT_ARENA_COMPACT=on"), "{refused}");
    }
    let off = read(&[("PJRT_ARENA_SHARE", "off")], &[]).unwrap();
    assert_eq!((off.strategy.value, off.share.value.0), (Strategy::Preallocate, None));
    let told = [("PJRT_ARENA_SHARE_MIN", "1GiB"), ("PJRT_ARENA_SHARE_WEIGHT", "1000")];
    let settings = read(&[share, told[0], told[1]], &[]).unwrap();
    assert_eq!((settings.share_min.value.0.get(), settings.share_weight.value.get()), (1 << 30, 1000));
    for (name, value, allowed) in [
        ("PJRT_ARENA_SHARE", "a/b", "1 to 64 letters"),
        ("PJRT_ARENA_SHARE", ".hidden", "no dot first"),
        ("PJRT_ARENA_SHARE_MIN", "half", "bytes per device"),
        ("PJRT_ARENA_SHARE_WEIGHT", "0", "from 1 to 1000"),
        ("PJRT_ARENA_SHARE_WEIGHT", "1001", "from 1 to 1000"),
    ] {
        let refused = read(&[(name, value)], &[]).unwrap_err().message;
        assert!(refused.contains(&format!("{name}={value}")) && refused.contains(allowed), "{refused}");
    }
}

//! Huge pages: what the kernel's files say, what regions ask for, and what moves and returns leave whole.

use crate::device::host::{capacity::tests::machine, huge::offer_under, tests::*};

/// Lines of `/proc/self/smaps` that say `field`, of the mappings that an extent reaches into.
fn smaps(extent: Extent, field: &str) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/smaps").expect("a running kernel");
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (mut lines, mut inside) = (Vec::new(), false);
    for line in text.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        if let Some((start, end)) = range.and_then(|(start, end)| Some((hex(start)?, hex(end)?))) {
            inside = start < extent.end().get() && end > extent.start.get();
        } else if let Some(value) = line.strip_prefix(field).filter(|_| inside) {
            lines.push(value.trim().to_owned());
        }
    }
    assert!(!lines.is_empty(), "{extent:?} is mapped");
    lines
}

/// Whether all of an extent has asked for huge pages.
fn asked(extent: Extent) -> bool {
    smaps(extent, "VmFlags:").iter().all(|flags| flags.split(' ').any(|flag| flag == "hg"))
}

/// What of the mappings around an extent is in huge pages.
fn in_huge_pages(extent: Extent) -> Bytes {
    let kib = |text: &String| text.strip_suffix(" kB").and_then(|kib| kib.parse().ok()).expect("a number of kB");
    smaps(extent, "AnonHugePages:").iter().map(|text| Bytes::kib(kib(text))).sum()
}

/// Whether this kernel knows the advice: it need not give huge pages to whoever asks.
fn knows_the_advice() -> bool {
    fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap_or(false)
}

/// How often the kernel had no huge page to give, since it started.
fn fallbacks() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("thp_fault_fallback ")).and_then(|count| count.parse().ok())
}

#[test]
fn what_the_kernel_offers_is_read_from_its_files() {
    const ALL: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    const OWN: &str = "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    let never = |why: &str| HugePages::Never(why.to_owned());
    type Files<'a> = &'a [(&'a str, &'a str)];
    let cases: &[(&str, Files<'_>, HugePages)] = &[
        ("always", &[(ALL, "[always] madvise never\n")], HugePages::Always),
        ("madvise", &[(ALL, "always [madvise] never\n")], HugePages::OnRequest),
        ("never", &[(ALL, "always madvise [never]\n")], never(&format!("/{ALL} is `always madvise [never]`"))),
        ("inherit", &[(ALL, "always [madvise] never"), (OWN, "always [inherit] madvise never")], HugePages::OnRequest),
        ("own", &[(ALL, "always madvise [never]"), (OWN, "always inherit [madvise] never")], HugePages::OnRequest),
        (
            "own-never",
            &[(ALL, "[always] madvise never"), (OWN, "always inherit madvise [never]")],
            never(&format!("/{OWN} is `always inherit madvise [never]`")),
        ),
        ("none", &[("sys/kernel/mm/nothing", "")], never(&format!("the kernel has none (/{ALL} cannot be read)"))),
    ];
    for (name, files, expected) in cases {
        let root = machine(&format!("huge-{name}"), files);
        assert_eq!(offer_under(&root, false), *expected, "{name}");
        assert!(matches!(offer_under(&root, true), HugePages::Never(why) if why.contains("PR_SET_THP_DISABLE")));
        fs::remove_dir_all(root).expect("ours");
    }
}

#[test]
fn large_regions_ask_where_they_are_to_and_no_others() {
    let cases = [
        (HostBacking::new(), Bytes::mib(4), false),
        (HostBacking::with_huge_pages(), Bytes::mib(1), false),
        (HostBacking::with_huge_pages(), Bytes::mib(2), true),
        (HostBacking::with_huge_pages(), Bytes::mib(5), true),
    ];
    for (host, bytes, asks) in cases {
        let region = host.reserve(bytes).expect("room");
        // The margins are of one mapping with the region, as they are without advice.
        let start = Address::new(region.address.get() - host.page.get());
        let all = Extent { start, bytes: bytes + host.page + host.page };
        assert_eq!(asked(all), asks && knows_the_advice(), "{bytes}");
        assert_eq!(smaps(all, "VmFlags:").len(), 1, "{bytes}");
        assert_eq!(host.release(region), Ok(()));
    }
}

#[test]
fn regions_that_ask_get_huge_pages() {
    let host = HostBacking::with_huge_pages();
    let before = fallbacks();
    let model = Model::new(host, Bytes::mib(64));
    // Skipped where the machine gives none, and says why; where memory is in too small pieces, the kernel counts that.
    if let HugePages::Never(why) = huge_pages() {
        eprintln!("no huge pages here: {why}");
        return;
    }
    let huge = in_huge_pages(model.extent(0, model.len()));
    assert!(!huge.is_zero() || fallbacks() > before, "64 MiB in use, none of it in huge pages");
}

#[test]
fn exchanges_and_returns_keep_the_advice_and_whole_huge_pages() {
    let mut model = Model::new(host(HUGE_PAGE, 1000), Bytes::mib(32));
    let all = model.extent(0, model.len());
    let before = in_huge_pages(all);
    // Alike, apart and overlapping; each by whole huge pages, with a head and a tail in between.
    model.relocate(1 << 20, 17 << 20, 9 << 20);
    model.relocate(17 << 20, 13 << 20, 9 << 20);
    assert_eq!(!model.borders().is_empty(), kernel_exchanges());
    assert_eq!(asked(all), knows_the_advice());
    // khugepaged may make more of them meanwhile, but none may go.
    assert!(in_huge_pages(all) >= before, "{before} were in huge pages");
    // Of 9 MiB from an odd one on, 8 MiB are whole huge pages, and all that goes back.
    assert_eq!(model.discard(15 << 20, 9 << 20), Bytes::mib(8));
    assert!(model.held()[15 << 20..16 << 20] == model.bytes[15 << 20..16 << 20]);
    assert_eq!(model.discard((28 << 20) + 4096, 2 << 20), Bytes::ZERO);
    // The range with cuts gets a fresh mapping, which asks again.
    assert!(model.discard(0, model.len()) > Bytes::mib(16));
    assert_eq!(model.borders(), BTreeSet::new());
    assert_eq!(asked(all), knows_the_advice());
}

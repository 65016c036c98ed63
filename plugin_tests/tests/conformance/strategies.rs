//! How each strategy takes space from the machine and gives it back.

use std::fs;

use pjrt_arena::device::host::{HugePages, huge_pages};
use plugin_tests::{Buffer, Client, ElementType, Value};

use crate::{MIB, eventually, limited, settles_at};

fn pool(client: &Client) -> i64 {
    client.stats().unwrap().pool_bytes.expect("pool_bytes is set")
}

fn megabytes(client: &Client, count: i64) -> Buffer {
    Buffer::uninitialized(client, ElementType::U8, &[count * MIB]).unwrap()
}

#[test]
fn c33_arena_preallocate_takes_everything_at_the_first_allocation() {
    let client = limited("preallocate", 64 * MIB);
    assert_eq!(pool(&client), 0);
    let buffer = megabytes(&client, 1);
    assert_eq!(pool(&client), 64 * MIB);
    drop(buffer);
    settles_at(&client, 0);
    assert_eq!(pool(&client), 64 * MIB);
}

#[test]
fn c33_arena_growing_takes_what_it_needs_and_gives_it_back() {
    let client = limited("growing", 256 * MIB);
    assert_eq!(pool(&client), 0);
    let small = megabytes(&client, 1);
    let first = pool(&client);
    assert!((MIB..256 * MIB).contains(&first), "{first}");
    let large = megabytes(&client, 100);
    let grown = pool(&client);
    assert!((101 * MIB..=256 * MIB).contains(&grown), "{grown}");
    drop((small, large));
    settles_at(&client, 0);
    eventually("empty regions go back", || pool(&client) < grown);
}

#[test]
fn c33_arena_growing_respects_its_limit() {
    let client = limited("growing", 64 * MIB);
    let _half = megabytes(&client, 32);
    let _rest = megabytes(&client, 20);
    assert!(Buffer::uninitialized(&client, ElementType::U8, &[20 * MIB]).is_err());
    assert!(pool(&client) <= 64 * MIB);
}

#[test]
fn c33_arena_platform_follows_the_use() {
    let client = limited("platform", 64 * MIB);
    assert_eq!(pool(&client), 0);
    let (one, ten) = (megabytes(&client, 1), megabytes(&client, 10));
    assert_eq!(pool(&client), 11 * MIB);
    drop(ten);
    eventually("the mapping goes back", || pool(&client) == MIB);
    drop(one);
    eventually("the mapping goes back", || pool(&client) == 0);
}

#[test]
fn c33_arena_every_strategy_computes_and_frees() {
    for strategy in ["preallocate", "growing", "platform"] {
        let client = limited(strategy, 64 * MIB);
        let add_one = client.compile(&plugin_tests::Program::add_one_1m()).unwrap();
        let mut x = client.put(&vec![0f32; 262_144], &[262_144]).unwrap();
        for _ in 0..10 {
            x = add_one.run1(&[&x]).unwrap();
        }
        assert_eq!(x.read::<f32>().unwrap(), vec![10.0; 262_144], "{strategy}");
        drop(x);
        settles_at(&client, 0);
    }
}

#[test]
fn c33_arena_xlas_own_allocator_options_are_understood() {
    // JAX sends these as strings, from jax_pjrt_client_create_options and from its own variables.
    for (options, preallocated) in [
        (vec![("allocator", "default"), ("preallocate", "true")], true),
        (vec![("allocator", "bfc"), ("preallocate", "false")], false),
        (vec![("allocator", "platform")], false),
    ] {
        let mut all: Vec<(&str, Value)> = options.iter().map(|&(name, value)| (name, Value::from(value))).collect();
        all.push(("limit", "64MiB".into()));
        let client = Client::create(1, &all).unwrap();
        let _buffer = megabytes(&client, 1);
        assert_eq!(pool(&client) == 64 * MIB, preallocated, "{options:?}: {}", pool(&client));
    }
}

/// KiB of huge pages in the mapping around an address, and whether that mapping asked for them.
fn huge_at(address: usize) -> (u64, bool) {
    let text = fs::read_to_string("/proc/self/smaps").expect("a running kernel");
    let start = |line: &str| usize::from_str_radix(line.split_once('-')?.0, 16).ok();
    // Mappings come in order, each with its fields behind it.
    let (mut kib, mut asked) = (0, false);
    for line in text.lines().take_while(|line| start(line).is_none_or(|start| start <= address)) {
        if let Some(count) = line.strip_prefix("AnonHugePages:") {
            kib = count.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            asked = flags.split(' ').any(|flag| flag == "hg");
        }
    }
    (kib, asked)
}

#[test]
fn c33_arena_huge_pages_come_where_they_are_asked_for() {
    let offered = huge_pages();
    let fallbacks = || {
        fs::read_to_string("/proc/vmstat")
            .ok()?
            .lines()
            .find(|l| l.starts_with("thp_fault_fallback "))
            .map(str::to_owned)
    };
    for strategy in ["preallocate", "growing", "platform", "tpu"] {
        for setting in ["off", "on"] {
            let options = [("strategy", strategy), ("limit", "64MiB"), ("huge_pages", setting)];
            let options = options.map(|(name, value)| (name, Value::from(value)));
            let client = Client::create(1, &options).unwrap();
            let before = fallbacks();
            let x = client.put(&vec![1f32; 6 << 20], &[6 << 20]).unwrap();
            let add_one = client.compile(&plugin_tests::Program::add_one_1m()).unwrap();
            let small = client.put(&vec![0f32; 262_144], &[262_144]).unwrap();
            assert_eq!(add_one.run1(&[&small]).unwrap().read::<f32>().unwrap(), vec![1.0; 262_144]);
            let (kib, asked) = huge_at(x.address().unwrap());
            match &offered {
                // Then a warning says why not, and nothing is asked for.
                HugePages::Never(_) => assert!(!asked, "{strategy} {setting}"),
                _ if setting == "off" => assert!(!asked, "{strategy}"),
                // 24 MiB in use; where the machine's memory is in too small pieces, the kernel counts that.
                _ => assert!(asked && (kib > 0 || fallbacks() != before), "{strategy}: {kib} KiB, {asked}"),
            }
        }
    }
}

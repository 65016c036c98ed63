//! Arrays of the host that are used where they lie: which, for how long, and what becomes of them.

use pjrt_arena::engine::order;
use plugin_tests::{Buffer, Client, Event, HostArray, Semantics, Value, event::elsewhere};

use crate::{settles_at, shared};

/// Elements of the smallest array that is used in place: 64 KiB.
const COUNT: usize = 16 << 10;

/// Floats behind an aligned address, and some before and after.
struct Host {
    memory: Vec<f32>,
    start: usize,
}

impl Host {
    /// `1, 2, ...`, so many bytes after a multiple of 64.
    fn new(count: usize, bytes: usize) -> Self {
        let mut memory = vec![0.0; count + 32];
        let start = memory.as_ptr().align_offset(64) + bytes / 4;
        memory[start..start + count].iter_mut().zip(1..).for_each(|(place, number)| *place = number as f32);
        Self { memory, start }
    }

    fn values(&self) -> &[f32] {
        &self.memory[self.start..self.memory.len() - 32 + self.start]
    }

    fn address(&self) -> usize {
        self.values().as_ptr() as usize
    }

    fn lend(&self, client: &Client) -> (Buffer, Event) {
        let values = self.values();
        let array = HostArray::of(values, &[values.len() as i64]).on_device(client.device());
        client.from_host(&array, Semantics::ZeroCopy).unwrap()
    }
}

/// A client with the setting `zero_copy`.
fn told(zero_copy: &str, strategy: &str) -> Client {
    Client::create(1, &[("strategy", Value::from(strategy)), ("zero_copy", Value::from(zero_copy))]).unwrap()
}

#[test]
fn c07_arena_an_aligned_array_is_used_where_it_lies() {
    let client = Client::one();
    let host = Host::new(COUNT, 0);
    let (buffer, done) = host.lend(&client);
    assert_eq!(buffer.address().unwrap(), host.address());
    assert_eq!(client.stats().unwrap().bytes_in_use, 0);
    assert_eq!((buffer.dims(), buffer.on_device_size().unwrap()), (vec![COUNT as i64], 4 * COUNT));
    assert_eq!((buffer.device(), buffer.memory()), (client.device(), client.device().default_memory()));
    assert_eq!(buffer.read::<f32>().unwrap(), host.values());
    assert_eq!(buffer.read_raw(4, 4).unwrap(), 2f32.to_ne_bytes());
    buffer.ready().wait().unwrap();
    let signal = done.on_ready();
    assert_eq!(signal.get(), None, "the memory is in use while the buffer lives");
    buffer.delete().unwrap();
    assert_eq!(signal.wait(), Ok(()));
    assert!(buffer.is_deleted());
}

#[test]
fn c07_arena_other_arrays_are_copied() {
    let client = Client::one();
    let copied = |host: &Host| {
        let (buffer, done) = host.lend(&client);
        done.wait().unwrap();
        assert_ne!(buffer.address().unwrap(), host.address());
        assert_eq!(buffer.read::<f32>().unwrap(), host.values());
        assert_eq!(client.stats().unwrap().bytes_in_use, 4 * host.values().len() as i64);
        drop(buffer);
        settles_at(&client, 0);
    };
    for bytes in [4, 16, 32, 60] {
        copied(&Host::new(COUNT, bytes));
    }
    copied(&Host::new(COUNT - 1, 0));
    // Transposed: a matrix of 128 rows, shown by its columns.
    let host = Host::new(COUNT, 0);
    let array = HostArray::of(host.values(), &[COUNT as i64]).on_device(client.device());
    let turned = array.strided(host.values().as_ptr().cast(), &[128, 128], &[4, 512]);
    let (buffer, done) = client.from_host(&turned, Semantics::ZeroCopy).unwrap();
    done.wait().unwrap();
    assert_eq!(buffer.read::<f32>().unwrap()[1], host.values()[128]);
}

#[test]
fn c07_arena_strides_along_one_element_do_not_matter() {
    let host = Host::new(COUNT, 0);
    let array = HostArray::of(host.values(), &[COUNT as i64]).on_device(shared().device());
    let data = host.values().as_ptr().cast();
    for (dims, strides) in [([1, COUNT as i64], [12, 4]), ([COUNT as i64, 1], [4, -8])] {
        let array = array.clone().strided(data, &dims, &strides);
        let (buffer, _done) = shared().from_host(&array, Semantics::ZeroCopy).unwrap();
        assert_eq!(buffer.address().unwrap(), host.address());
        assert_eq!(buffer.dims(), dims);
        assert_eq!(buffer.read::<f32>().unwrap(), host.values());
    }
}

#[test]
fn c07_arena_only_arrays_that_stay_as_they_are_are_used_in_place() {
    let mut host = Host::new(COUNT, 0);
    for semantics in [Semantics::OnlyDuringCall, Semantics::UntilTransferCompletes] {
        let array = HostArray::of(host.values(), &[COUNT as i64]).on_device(shared().device());
        let (buffer, done) = shared().from_host(&array, semantics).unwrap();
        done.wait().unwrap();
        let before = host.values().to_vec();
        host.memory.fill(-1.0);
        assert_eq!(buffer.read::<f32>().unwrap(), before, "{semantics:?}");
    }
}

#[test]
fn c33_arena_zero_copy_can_be_turned_off_and_on() {
    for (zero_copy, strategy, in_place) in
        [("off", "preallocate", false), ("on", "tpu", true), ("on", "platform", true)]
    {
        let client = told(zero_copy, strategy);
        let host = Host::new(COUNT, 0);
        let (buffer, _done) = host.lend(&client);
        assert_eq!(buffer.address().unwrap() == host.address(), in_place, "{zero_copy} {strategy}");
        let in_use = if in_place { 0 } else { 4 * COUNT as i64 };
        assert_eq!(client.stats().unwrap().bytes_in_use, in_use, "{zero_copy} {strategy}");
    }
    let client = Client::create(1, &[("strategy", Value::from("tpu"))]).unwrap();
    let host = Host::new(COUNT, 0);
    let (_buffer, done) = host.lend(&client);
    done.wait().unwrap();
    assert_eq!(client.stats().unwrap().bytes_in_use, 4 * COUNT as i64, "what stands for a TPU counts all");
}

#[test]
fn c24_arena_a_copy_of_an_array_in_place_lies_in_the_arena() {
    let client = Client::one();
    let host = Host::new(COUNT, 0);
    let (buffer, done) = host.lend(&client);
    let copy = buffer.copy_to_memory(buffer.memory()).unwrap();
    assert_eq!(client.stats().unwrap().bytes_in_use, 4 * COUNT as i64);
    drop(buffer);
    done.wait().unwrap();
    let expected = host.values().to_vec();
    drop(host);
    assert_eq!(copy.read::<f32>().unwrap(), expected);
}

#[test]
fn c24_an_array_in_place_that_is_deleted_while_it_is_copied_is_whole_or_gone() {
    let client = std::sync::Arc::new(Client::one());
    for _ in 0..20 {
        let host = Host::new(1 << 20, 0);
        let expected = host.values().to_vec();
        let (buffer, done) = host.lend(&client);
        let buffer = std::sync::Arc::new(buffer);
        let source = std::sync::Arc::clone(&buffer);
        let copied = elsewhere(move || {
            source.copy_to_memory(source.memory()).and_then(|copy| copy.read::<f32>()).map_err(|failure| failure.code)
        });
        buffer.delete().unwrap();
        // From here on the memory is not the plugin's.
        done.wait().unwrap();
        let mut host = host;
        order::taken(host.values().as_ptr());
        host.memory.fill(f32::NAN);
        match copied.wait() {
            Ok(values) => assert!(values == expected, "a copy of what was written later"),
            Err(code) => assert_eq!(code, plugin_tests::Code::INVALID_ARGUMENT),
        }
    }
}

#[test]
fn c14_an_array_in_place_can_be_referenced() {
    let host = Host::new(COUNT, 0);
    let (buffer, done) = host.lend(shared());
    let signal = done.on_ready();
    buffer.increase().unwrap();
    let address = buffer.opaque_pointer().unwrap();
    assert_eq!(address as usize, buffer.address().unwrap());
    buffer.delete().unwrap();
    assert_eq!(signal.get(), None, "somebody holds the address");
    buffer.decrease().unwrap();
    drop(buffer);
    assert_eq!(signal.wait(), Ok(()));
}

//! What one thread does: at random, within its budget, checking all it reads.

use std::sync::atomic::Ordering::Relaxed;

use super::{Item, LARGE, Outcome, SMALL, Site, element};
use crate::{Code, ElementType, Result, plugin};

/// One thread and its arrays.
pub(super) struct Worker<'a> {
    site: &'a Site,
    random: fastrand::Rng,
    items: Vec<Item>,
    /// Bytes of the own arrays by device.
    held: Vec<usize>,
    next: u32,
    outcome: Outcome,
}

impl<'a> Worker<'a> {
    pub(super) fn new(site: &'a Site, number: usize) -> Self {
        Self {
            site,
            random: fastrand::Rng::with_seed(site.load.seed + number as u64),
            items: Vec::new(),
            held: vec![0; site.devices.len()],
            next: (number as u32) << 24,
            outcome: Outcome::default(),
        }
    }

    /// Does one thing after the other until it is enough.
    pub(super) fn work(mut self) -> Outcome {
        while !self.site.enough.load(Relaxed) {
            self.step();
            self.site.operations.fetch_add(1, Relaxed);
        }
        while let Some(item) = self.items.pop() {
            self.drop_item(item);
        }
        self.outcome
    }

    fn step(&mut self) {
        match self.random.u32(0..1000) {
            0..480 => self.create(),
            480..630 => self.read(),
            630..730 => self.add_one(),
            730..790 => self.donate(),
            // Each takes as long as a hundred of the others.
            790..800 => self.wave(),
            800..850 => self.refer(),
            850..880 => self.copy(),
            880..910 => self.ask(),
            910..930 => self.transfer(),
            930..945 => self.delete(),
            945..950 => self.point(),
            950..952 => self.pack(),
            _ => self.destroy(),
        }
    }

    fn did(&mut self, what: &'static str) {
        *self.outcome.done.entry(what).or_default() += 1;
    }

    /// Frees own arrays until `bytes` more are within the budget; whether they are.
    fn make_room(&mut self, device: usize, bytes: usize) -> bool {
        let budget = self.site.budget();
        while self.held[device] + bytes > budget {
            let on_device: Vec<usize> = (0..self.items.len()).filter(|&i| self.items[i].device == device).collect();
            let Some(&victim) = self.random.choice(&on_device) else { return false };
            let item = self.items.swap_remove(victim);
            self.drop_item(item);
        }
        true
    }

    fn keep(&mut self, item: Item) {
        self.held[item.device] += item.bytes();
        self.items.push(item);
    }

    fn drop_item(&mut self, item: Item) {
        self.held[item.device] -= item.bytes();
        if self.random.u32(0..4) == 0 || item.address.is_some() {
            item.check(&mut self.outcome);
        }
        for _ in 0..item.references {
            item.buffer.decrease().expect("it was increased");
        }
    }

    fn any(&mut self) -> Option<usize> {
        (!self.items.is_empty()).then(|| self.random.usize(0..self.items.len()))
    }

    /// What was allocated; `None` if that was refused. Then an array of our own goes, so that the next does not fail
    /// too.
    fn granted<T>(&mut self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(failure) if failure.code == Code::RESOURCE_EXHAUSTED => {
                let pinned = failure.message.lines().filter_map(|line| line.trim().strip_prefix("could not move "));
                let why: Vec<&str> = pinned.filter_map(|line| line.split_once(": ")).map(|(_, why)| why).collect();
                let what = if failure.message.contains("to reserve") { "scratch" } else { "array" };
                *self.outcome.refused.entry(format!("{what}: {}", why.join(", "))).or_default() += 1;
                self.destroy();
                None
            }
            Err(failure) => panic!("{failure}"),
        }
    }

    fn seed(&mut self) -> u32 {
        self.next = self.next.wrapping_add(7919);
        self.next
    }

    /// A length between a few bytes and 2 MiB, each order of magnitude as likely as the others.
    fn len(&mut self) -> usize {
        let most = ((self.site.budget() / size_of::<f32>()) as f64).min(524_288.0);
        (most.ln() * self.random.f64()).exp() as usize
    }

    fn create(&mut self) {
        let (len, seed) = (self.len(), self.seed());
        let device = self.random.usize(0..self.site.devices.len());
        if !self.make_room(device, len * 4) {
            return;
        }
        let values: Vec<f32> = (0..len).map(|i| element(seed, 0, i)).collect();
        let outcome = self.site.client.put_on(self.site.devices[device], &values, &[len as i64]);
        if let Some(buffer) = self.granted(outcome) {
            self.keep(Item { buffer, len, seed, steps: 0, device, references: 0, address: None });
        }
        self.did("created");
    }

    fn read(&mut self) {
        if self.random.bool() {
            let shared = self.random.choice(&self.site.pool).expect("a pool");
            shared.check(&mut self.outcome);
        } else if let Some(at) = self.any() {
            let item = &self.items[at];
            let first = self.random.usize(0..item.len);
            let raw = item.buffer.read_raw(4 * first as i64, 4 * (item.len - first) as i64).expect("its bytes");
            let values: Vec<f32> = raw.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
            item.compare(&values, first, &mut self.outcome);
            item.check(&mut self.outcome);
        }
        self.did("read");
    }

    /// An own array of `len` elements on the first device.
    fn own(&mut self, len: usize) -> Option<usize> {
        let mut found: Vec<usize> = Vec::new();
        let fits = |item: &Item| item.len == len && item.device == 0 && item.address.is_none();
        found.extend((0..self.items.len()).filter(|&i| fits(&self.items[i])));
        self.random.choice(found)
    }

    fn add_one(&mut self) {
        let large = self.random.bool();
        let (program, len) = if large { (&self.site.add_one_large, LARGE) } else { (&self.site.add_one, SMALL) };
        if !self.make_room(0, 4 * len) {
            return;
        }
        let own = self.own(len);
        let argument = match own {
            Some(at) => &self.items[at],
            None => {
                let pool = &self.site.pool;
                &pool[self.random.usize(0..pool.len() / 2) * 2 + usize::from(large)]
            }
        };
        let (seed, steps) = (argument.seed, argument.steps + 1);
        let outcome = program.run1(&[&argument.buffer]);
        if let Some(buffer) = self.granted(outcome) {
            self.keep(Item { buffer, len, seed, steps, device: 0, references: 0, address: None });
        }
        self.did("run");
        if !large {
            self.two_results();
        }
    }

    fn two_results(&mut self) {
        if !self.make_room(0, 8 * SMALL) {
            return;
        }
        let pool = &self.site.pool;
        let (a, b) = (&pool[0], &pool[2]);
        let outcome = self.site.two_results.run(&[&a.buffer, &b.buffer]);
        let Some(results) = self.granted(outcome) else { return };
        let sums = results[0].read::<f32>().expect("sums");
        let products = results[1].read::<f32>().expect("products");
        for i in 0..SMALL {
            let (a, b) = (element(a.seed, a.steps, i), element(b.seed, b.steps, i));
            assert_eq!((sums[i], products[i]), (a + b, a * b), "element {i}");
        }
        self.outcome.checks += 2;
    }

    fn donate(&mut self) {
        let large = self.random.bool();
        let (program, len) = if large { (&self.site.donate_large, LARGE) } else { (&self.site.donate, SMALL) };
        let Some(at) = self.own(len) else { return };
        let mut item = self.items.swap_remove(at);
        let outcome = program.run1(&[&item.buffer]);
        self.held[0] -= item.bytes();
        if let Some(buffer) = self.granted(outcome) {
            assert!(item.buffer.is_deleted(), "{} was donated", item.name());
            (item.buffer, item.steps) = (buffer, item.steps + 1);
        }
        self.keep(item);
        self.did("donated");
    }

    fn wave(&mut self) {
        let which = self.random.usize(0..2);
        let site = self.site;
        let (program, (x, expected)) = ([&site.iterate, &site.temp_heavy][which], &site.waves[which]);
        if !self.make_room(0, 4 * expected.len()) {
            return;
        }
        let outcome = program.run1(&[x]);
        if let Some(y) = self.granted(outcome) {
            let values = y.read::<f32>().expect("its result");
            assert!(values.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "program {which} differs");
            self.outcome.checks += 1;
        }
        self.did("run with scratch or loops");
    }

    /// Lends an array to an outsider, or takes one back. At most two a thread, so that they never divide all memory.
    fn refer(&mut self) {
        let lent: Vec<usize> = (0..self.items.len()).filter(|&i| self.items[i].references > 0).collect();
        if lent.len() >= 2 || (!lent.is_empty() && self.random.bool()) {
            let at = lent[self.random.usize(0..lent.len())];
            let item = &mut self.items[at];
            item.check(&mut self.outcome);
            item.buffer.decrease().expect("it was increased");
            item.references -= 1;
            if item.references == 0 {
                item.address = None;
            }
            self.did("taken back");
        } else if let Some(at) = self.any() {
            let item = &mut self.items[at];
            item.buffer.increase().expect("it is alive");
            item.references += 1;
            let address = item.buffer.opaque_pointer().expect("its address").expose_provenance();
            item.stays_at(address);
            item.check(&mut self.outcome);
            self.did("lent");
        }
    }

    /// Asks for an address for good; the array goes soon after.
    fn point(&mut self) {
        let Some(at) = self.any() else { return };
        let mut item = self.items.swap_remove(at);
        let address = item.buffer.address().expect("its address");
        item.stays_at(address);
        item.check(&mut self.outcome);
        self.create();
        item.check(&mut self.outcome);
        self.drop_item(item);
        self.did("pointed at");
    }

    fn copy(&mut self) {
        let Some(at) = self.any() else { return };
        let device = self.random.usize(0..self.site.devices.len());
        let bytes = self.items[at].bytes();
        let item = self.items.swap_remove(at);
        let (from, len, seed, steps) = (item.device, item.len, item.seed, item.steps);
        self.held[from] -= bytes;
        if self.held[device] + 2 * bytes <= self.site.budget() {
            let outcome = item.buffer.copy_to_device(self.site.devices[device]);
            if let Some(buffer) = self.granted(outcome) {
                let copy = Item { buffer, len, seed, steps, device, references: 0, address: None };
                copy.check(&mut self.outcome);
                self.keep(copy);
            }
            self.did("copied");
        }
        self.keep(item);
    }

    fn ask(&mut self) {
        let Some(at) = self.any() else { return };
        let item = &self.items[at];
        let ready = item.buffer.ready();
        assert_eq!(item.buffer.dims(), [item.len as i64]);
        assert_eq!(item.buffer.unpadded_dims(), [item.len as i64]);
        assert_eq!(item.buffer.element_type(), ElementType::F32);
        assert_eq!(item.buffer.on_device_size(), Ok(item.bytes()));
        assert_eq!(item.buffer.minor_to_major(), [0]);
        assert_eq!(item.buffer.dynamic_dims(), [0usize; 0]);
        assert_eq!(item.buffer.device(), self.site.devices[item.device]);
        assert!(item.buffer.is_on_cpu() && !item.buffer.is_deleted());
        ready.wait().expect("it is good");
        self.did("asked");
    }

    fn transfer(&mut self) {
        let (len, seed) = (self.len().max(2), self.seed());
        if !self.make_room(0, 4 * len) {
            return;
        }
        let outcome = self.site.client.transfer(ElementType::F32, &[&[len as i64]]);
        let Some(manager) = self.granted(outcome) else { return };
        self.held[0] += 4 * len;
        let bytes: Vec<u8> = (0..len).flat_map(|i| element(seed, 0, i).to_ne_bytes()).collect();
        let early = self.random.bool().then(|| manager.retrieve(0).expect("its buffer"));
        let middle = 4 * (len / 2);
        let first = manager.send(0, 0, &bytes[..middle], false).expect("the first half");
        // Others compact while half of the array is there.
        self.create();
        let second = manager.send(0, middle as i64, &bytes[middle..], true).expect("the second half");
        first.wait().and_then(|()| second.wait()).expect("both halves");
        let buffer = early.unwrap_or_else(|| manager.retrieve(0).expect("its buffer"));
        drop(manager);
        self.held[0] -= 4 * len;
        let item = Item { buffer, len, seed, steps: 0, device: 0, references: 0, address: None };
        item.check(&mut self.outcome);
        self.keep(item);
        self.did("transferred");
    }

    fn delete(&mut self) {
        let Some(at) = self.any().filter(|&at| self.items[at].references == 0) else { return };
        let item = self.items.swap_remove(at);
        self.held[item.device] -= item.bytes();
        item.buffer.delete().expect("it is deleted once");
        assert!(item.buffer.is_deleted());
        assert!(item.buffer.read::<f32>().is_err());
        self.did("deleted");
    }

    fn destroy(&mut self) {
        let Some(at) = self.any() else { return };
        let item = self.items.swap_remove(at);
        self.drop_item(item);
        self.did("destroyed");
    }

    fn pack(&mut self) {
        let Ok(_one) = self.site.packing.try_lock() else { return };
        let text = plugin().text("pjrt_arena_compact").expect("the library under test is the arena");
        assert!(text.starts_with('['), "{text}");
        self.did("packed");
    }
}

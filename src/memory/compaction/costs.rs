//! What moving costs on a device.

use crate::{memory::compaction::layout::Spot, units::Bytes};

/// What it costs to move blocks; all times in nanoseconds. The planner compares plans by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Of any move, however small: the engine's new view and the end of the old one.
    pub per_move: u32,
    /// Of copying one MiB.
    pub per_mib: u32,
    /// Exchanging pages instead of copying, where the device can.
    pub remap: Option<Remap>,
}

/// Exchanging pages instead of copying them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    /// Source and destination must lie alike within a page of this size.
    pub page: Bytes,
    /// Blocks below this size are copied.
    pub least: Bytes,
    /// Of each exchange.
    pub per_exchange: u32,
    /// Of each MiB exchanged.
    pub per_mib: u32,
}

impl Costs {
    /// A device that only copies, at 20 GB/s: the host's memory as it was measured.
    pub const COPY: Self = Self { per_move: 2_000, per_mib: 50_000, remap: None };
}

/// [`Costs`] for one granule: prices of moves in nanoseconds. Sums and products saturate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tariff {
    granule_shift: u32,
    per_move: u64,
    per_mib: u32,
    exchange: Option<Exchange>,
}

/// [`Remap`] in granules.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    page: u32,
    least: u64,
    per_exchange: u64,
    per_mib: u32,
}

impl Tariff {
    /// Prices by `costs` where a granule is `1 << granule_shift` bytes.
    pub(super) fn new(costs: &Costs, granule_shift: u32) -> Self {
        let granule = Bytes::new(1u64.checked_shl(granule_shift).unwrap_or(u64::MAX));
        let exchange = costs.remap.and_then(|remap| {
            // A page that is no whole number of granules would let granules share pages: then blocks are copied.
            let page = if remap.page <= granule && granule.is_multiple_of(remap.page) {
                1
            } else if remap.page.is_multiple_of(granule) {
                u32::try_from(remap.page.get() / granule.get()).ok().filter(|&page| page != 0)?
            } else {
                return None;
            };
            Some(Exchange {
                page,
                // Moves of no distance are never priced, so that chunks are never empty.
                least: remap.least.get().div_ceil(granule.get()).max(1),
                per_exchange: remap.per_exchange.into(),
                per_mib: remap.per_mib,
            })
        });
        Self { granule_shift, per_move: costs.per_move.into(), per_mib: costs.per_mib, exchange }
    }

    /// Whether there is another way than copying.
    pub(super) fn exchanges(&self) -> bool {
        self.exchange.is_some()
    }

    /// Granules of a page that can be exchanged; 1 where pages are not.
    pub(super) fn page(&self) -> u32 {
        self.exchange.map_or(1, |exchange| exchange.page)
    }

    /// Moving a block of `size` granules between two places. Nothing if they are the same. O(1).
    pub(super) fn price(&self, size: u32, from: Spot, to: Spot) -> u64 {
        if from == to {
            return 0;
        }
        let distance = from.offset.abs_diff(to.offset);
        let chunk = if from.region == to.region { size.min(distance) } else { size };
        let copied = self.copied(size);
        match self.exchange {
            Some(exchange) if distance.is_multiple_of(exchange.page) => {
                copied.min(self.exchanged(exchange, size, chunk))
            }
            _ => copied,
        }
    }

    /// The least that any move of a block of `size` granules can cost. O(1).
    pub(super) fn floor(&self, size: u32) -> u64 {
        let copied = self.copied(size);
        self.exchange.map_or(copied, |exchange| copied.min(self.exchanged(exchange, size, size)))
    }

    /// The least that moving at least `size` granules in blocks of up to `largest` can cost. O(1).
    pub(super) fn bulk(&self, size: u64, largest: u32) -> u64 {
        // Each block's price is rounded down: a nanosecond less than its share of this one at most.
        let Some(per_move) = self.per_move.checked_sub(1) else { return 0 };
        let per_mib = self.exchange.map_or(self.per_mib, |exchange| exchange.per_mib.min(self.per_mib));
        let moves = size.div_ceil(largest.max(1).into());
        let bytes = u32::try_from(size).map_or(0, |size| self.by_size(size, per_mib));
        moves.saturating_mul(per_move).saturating_add(bytes)
    }

    /// Copying a block of `size` granules. O(1).
    pub(super) fn copied(&self, size: u32) -> u64 {
        self.per_move.saturating_add(self.by_size(size, self.per_mib))
    }

    /// By exchanges of `chunk` granules; `u64::MAX` where that is too little for one.
    fn exchanged(&self, exchange: Exchange, size: u32, chunk: u32) -> u64 {
        if u64::from(chunk) < exchange.least {
            return u64::MAX;
        }
        let exchanges = u64::from(size.div_ceil(chunk)).saturating_mul(exchange.per_exchange);
        self.per_move.saturating_add(exchanges).saturating_add(self.by_size(size, exchange.per_mib))
    }

    fn by_size(&self, size: u32, per_mib: u32) -> u64 {
        const MIB_SHIFT: u32 = 20;
        let product = u64::from(size) * u64::from(per_mib);
        match self.granule_shift.checked_sub(MIB_SHIFT) {
            None => product >> (MIB_SHIFT - self.granule_shift),
            Some(up) => product.saturating_mul(1u64.checked_shl(up).unwrap_or(u64::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::plan::testing::spot, *};

    const REMAP: Costs = Costs {
        per_move: 10,
        per_mib: 1 << 20,
        remap: Some(Remap { page: Bytes::kib(4), least: Bytes::kib(64), per_exchange: 1000, per_mib: 1 << 10 }),
    };

    #[test]
    fn a_copy_costs_its_bytes_and_an_exchange_its_chunks() {
        let tariff = Tariff::new(&REMAP, 8);
        // 256 granules are 64 KiB: the least that is exchanged. A page has 16 granules.
        let price = |size, from, to| tariff.price(size, spot(0, from), spot(0, to));
        assert_eq!(price(256, 512, 512), 0);
        assert_eq!(price(255, 512, 0), 10 + 255 * 256, "too small");
        assert_eq!(price(256, 513, 0), 10 + 256 * 256, "not alike");
        assert_eq!(price(256, 512, 0), 10 + 1000 + 64);
        assert_eq!(price(1024, 512, 0), 10 + 2 * 1000 + 256, "two chunks of 512");
        assert_eq!(price(1025, 512, 0), 10 + 3 * 1000 + 256, "a third for the rest");
        assert_eq!(price(1024, 240, 0), 10 + 1024 * 256, "chunks of 60 KiB are too small");
        assert_eq!(tariff.price(1024, spot(0, 240), spot(1, 0)), 10 + 1000 + 256, "nothing overlaps");
        assert_eq!(tariff.floor(1024), 10 + 1000 + 256);
        assert_eq!(tariff.floor(255), 10 + 255 * 256);
    }

    #[test]
    fn an_exchange_that_costs_more_is_a_copy() {
        let mut costs = REMAP;
        costs.per_mib = 1;
        let tariff = Tariff::new(&costs, 8);
        assert_eq!(tariff.price(256, spot(0, 512), spot(0, 0)), 10);
        assert_eq!(tariff.floor(256), 10);
    }

    #[test]
    fn odd_pages_and_huge_granules_do_not_break_it() {
        for page in [0, 1, 100, 256, 300, 4096, u64::MAX] {
            for granule_shift in [0, 8, 20, 31, 63, 64, u32::MAX] {
                for least in [0, 1, u64::MAX] {
                    let remap = Remap {
                        page: Bytes::new(page),
                        least: Bytes::new(least),
                        per_exchange: u32::MAX,
                        per_mib: u32::MAX,
                    };
                    let costs = Costs { per_move: u32::MAX, per_mib: u32::MAX, remap: Some(remap) };
                    let tariff = Tariff::new(&costs, granule_shift);
                    for size in [0, 1, u32::MAX] {
                        let price = tariff.price(size, spot(0, 0), spot(0, 1));
                        assert!(price >= tariff.floor(size), "{page} {granule_shift} {least} {size}");
                    }
                }
            }
        }
    }
}

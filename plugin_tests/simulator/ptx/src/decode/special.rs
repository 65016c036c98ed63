//! The names of registers that the machine fills.

use crate::code::Special;

/// The register of a name, if that is one; `%clock` and its like are not here, because they change.
pub fn named(word: &str) -> Option<Special> {
    let (name, dimension) = match word.rsplit_once('.') {
        Some((name, "x")) => (name, 0),
        Some((name, "y")) => (name, 1),
        Some((name, "z")) => (name, 2),
        _ => (word, 3),
    };
    Some(match (name, dimension) {
        ("%tid", 0..3) => Special::Thread(dimension),
        ("%ntid", 0..3) => Special::Threads(dimension),
        ("%ctaid" | "%clusterid", 0..3) => Special::Block(dimension),
        ("%nctaid" | "%nclusterid", 0..3) => Special::Blocks(dimension),
        ("%cluster_ctaid", 0..3) => Special::Zero,
        ("%cluster_nctaid", 0..3) => Special::One,
        ("%laneid", 3) => Special::Lane,
        ("%warpid", 3) => Special::Warp,
        ("%nwarpid", 3) => Special::Warps,
        ("%lanemask_eq", 3) => Special::Mask([false, true, false]),
        ("%lanemask_lt", 3) => Special::Mask([true, false, false]),
        ("%lanemask_le", 3) => Special::Mask([true, true, false]),
        ("%lanemask_gt", 3) => Special::Mask([false, false, true]),
        ("%lanemask_ge", 3) => Special::Mask([false, true, true]),
        ("%dynamic_smem_size", 3) => Special::DynamicShared,
        ("%total_smem_size", 3) => Special::AllShared,
        ("%smid" | "%gridid" | "%cluster_ctarank", 3) => Special::Zero,
        ("%nsmid" | "%cluster_nctarank", 3) => Special::One,
        _ => return None,
    })
}

/// Whether a name is that of a counter.
pub fn is_clock(word: &str) -> bool {
    matches!(word, "%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo")
}

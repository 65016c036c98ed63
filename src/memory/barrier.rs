//! Why the bytes of a block stay where they are.

/// Why bytes stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MoveBarrier {
    /// An outsider holds the address and will say when no longer: a NumPy view, dlpack.
    Referenced,
    /// The address was given out for good (`PJRT_Buffer_UnsafePointer` has no release).
    AddressKnown,
    /// An execution or a transfer uses them.
    InUse,
    /// They are being written, or hold an error.
    NotDefined,
    /// They have no owner any more.
    Gone,
}

impl MoveBarrier {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Referenced, Self::AddressKnown, Self::InUse, Self::NotDefined, Self::Gone];

    /// The number of the reason, from 1 on.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// In words, for reports.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Referenced => "external references (NumPy views, dlpack)",
            Self::AddressKnown => "address given out for good (unsafe pointer)",
            Self::InUse => "in use by a program or transfer",
            Self::NotDefined => "being written, or holding an error",
            Self::Gone => "deleted, not yet free",
        }
    }
}

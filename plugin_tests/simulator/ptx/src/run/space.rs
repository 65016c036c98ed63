//! Where the spaces lie among 64-bit addresses, and memory that belongs to a block.
//!
//! ```text
//!   0x00..  global memory: addresses of the host      0x02..  the thread's own
//!   0x01..  the block's shared memory                 0x03..  the kernel's arguments
//! ```
//!
//! An address of the host begins with 16 bits that are all the same, so the windows meet none. Within its space an
//! address is counted from 0.

/// A space that addresses tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The GPU's memory, and constants.
    Global,
    /// The block's.
    Shared,
    /// The thread's.
    Local,
    /// The kernel's arguments.
    Parameter,
}

const BITS: u32 = 56;

impl Window {
    /// Those that belong to a block or its threads.
    pub const OWN: [Self; 3] = [Self::Shared, Self::Local, Self::Parameter];

    /// The space that a qualifier names.
    pub fn named(word: &str) -> Option<Self> {
        match word {
            "global" | "const" => Some(Self::Global),
            "shared" | "shared::cta" => Some(Self::Shared),
            "local" => Some(Self::Local),
            "param" | "param::entry" => Some(Self::Parameter),
            _ => None,
        }
    }

    /// What is added to an address of the space to make it a generic one.
    pub fn base(self) -> u64 {
        match self {
            Self::Global => 0,
            Self::Shared => 1 << BITS,
            Self::Local => 2 << BITS,
            Self::Parameter => 3 << BITS,
        }
    }
}

/// The space of a generic address.
pub fn window(address: u64) -> Window {
    match address >> BITS {
        1 => Window::Shared,
        2 => Window::Local,
        3 => Window::Parameter,
        _ => Window::Global,
    }
}

/// Reads a number of 1, 2, 4 or 8 bytes; nothing where it is not all within.
pub fn fetch(bytes: &[u8], at: u64, width: u8) -> Option<u64> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    Some(match width {
        1 => u64::from(*rest.first()?),
        2 => u16::from_le_bytes(*rest.first_chunk()?).into(),
        4 => u32::from_le_bytes(*rest.first_chunk()?).into(),
        _ => u64::from_le_bytes(*rest.first_chunk()?),
    })
}

/// Writes a number of 1, 2, 4 or 8 bytes; nothing where it is not all within.
pub fn keep(bytes: &mut [u8], at: u64, width: u8, value: u64) -> Option<()> {
    let rest = bytes.get_mut(usize::try_from(at).ok()?..)?;
    match width {
        1 => *rest.first_mut()? = value as u8,
        2 => *rest.first_chunk_mut()? = (value as u16).to_le_bytes(),
        4 => *rest.first_chunk_mut()? = (value as u32).to_le_bytes(),
        _ => *rest.first_chunk_mut()? = value.to_le_bytes(),
    }
    Some(())
}

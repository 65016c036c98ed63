//! Instructions as they are run: names are resolved to indexes, qualifiers to functions over the lanes of a warp.
//!
//! ```text
//!   registers of a warp     what the kernel declares | literals and addresses | %tid, %laneid, ...
//!                           written by instructions  | filled once            | filled for each block
//! ```

use super::value::Lanes;

/// The number of a register.
pub type Register = u32;

/// Computes a register from up to four others.
pub type Apply = Box<dyn Fn(&mut Lanes, [&Lanes; 4]) + Send + Sync>;

/// Compares two registers: a bit for each lane.
pub type Compare = Box<dyn Fn(&Lanes, &Lanes) -> u32 + Send + Sync>;

/// Computes one lane's value and carry from three values and a carry.
pub type Carry = Box<dyn Fn(u64, u64, u64, bool) -> (u64, bool) + Send + Sync>;

/// What an atomic operation leaves, from what it found and its two operands.
pub type Update = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// Combines two values of `redux.sync`.
pub type Combine = Box<dyn Fn(u64, u64) -> u64 + Send + Sync>;

/// A predicate as an instruction uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Its number.
    pub predicate: u32,
    /// Whether it counts where it is false.
    pub negated: bool,
}

/// Where a memory instruction goes.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The register that holds the address.
    pub base: Register,
    /// What is added to it.
    pub offset: u64,
    /// What it is an address of.
    pub space: Space,
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Any of them, told apart by the address.
    Generic,
    /// Memory of the GPU; `.const` lies there too.
    Global,
    /// The block's.
    Shared,
    /// The thread's.
    Local,
    /// The kernel's arguments.
    Parameter,
}

/// An instruction.
pub struct Step {
    /// Where it is in the text.
    pub line: u32,
    /// The lanes that it runs in.
    pub guard: Option<Truth>,
    /// What it does.
    pub action: Action,
}

/// What an instruction does.
pub enum Action {
    /// Nothing that a host has to do: fences, prefetches.
    Nothing,
    /// `to` from up to four registers.
    Compute { to: Register, of: [Register; 4], apply: Apply },
    /// With the carry of `add.cc` and its like.
    Carry { to: Register, of: [Register; 3], apply: Carry, keep: bool },
    /// `setp`: the comparison, combined with a predicate.
    Test { to: [Option<u32>; 2], of: [Register; 2], apply: Compare, with: Option<(Logic, Truth)> },
    /// `and.pred` and its like.
    Logic { to: u32, of: [Truth; 2], logic: Logic },
    /// One of two registers, by a predicate.
    Select { to: Register, of: [Register; 2], by: Truth },
    /// The number of instructions that the block has run.
    Clock { to: Register },
    /// Loads of elements that lie side by side.
    Load { to: Vec<Register>, address: Address, bytes: u8, sign: Option<u64> },
    /// Stores of elements side by side.
    Store { of: Vec<Register>, address: Address, bytes: u8 },
    /// A load and a store that nothing comes between.
    Atomic { to: Option<Register>, address: Address, bytes: u8, of: [Register; 2], update: Update },
    /// `ldmatrix`, `stmatrix`: 8 x 8 matrices of 16 bits, whose rows the lanes name.
    Matrix { registers: Vec<Register>, address: Address, transposed: bool, store: bool },
    /// What lanes tell each other.
    Collective { members: Register, exchange: Exchange },
    /// Waits for the block.
    Barrier { id: Register, threads: Option<Register>, aligned: bool },
    /// Goes on elsewhere.
    Jump { to: u32 },
    /// Goes on at one of several places.
    Table { index: Register, to: Vec<u32> },
    /// Ends the thread.
    Exit,
    /// Ends the kernel with an error.
    Trap,
}

/// How two predicates are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logic {
    /// Both.
    And,
    /// One or both.
    Or,
    /// Exactly one.
    Xor,
}

impl Logic {
    /// Combines a bit for each lane.
    pub fn of(self, a: u32, b: u32) -> u32 {
        match self {
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
        }
    }
}

/// What lanes tell each other.
pub enum Exchange {
    /// `bar.warp.sync`.
    Nothing,
    /// `shfl.sync`.
    Shuffle { to: Register, valid: Option<u32>, way: Way, of: Register, by: Register, clamp: Register },
    /// `vote.sync` with a predicate for a result.
    Vote { to: u32, vote: Vote, of: Truth },
    /// `vote.sync.ballot`.
    Ballot { to: Register, of: Truth },
    /// `match.any.sync`.
    MatchAny { to: Register, of: Register },
    /// `match.all.sync`.
    MatchAll { to: Register, same: Option<u32>, of: Register },
    /// `redux.sync`.
    Reduce { to: Register, of: Register, combine: Combine },
    /// `elect.sync`.
    Elect { to: Option<Register>, chosen: u32 },
    /// `activemask`, of which nobody waits for another one.
    Active { to: Register },
}

/// Which lane `shfl` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One below.
    Up,
    /// One above.
    Down,
    /// The one whose number differs in some bits.
    Butterfly,
    /// A given one.
    Index,
}

/// What `vote` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// Whether all say yes.
    All,
    /// Whether one says yes.
    Any,
    /// Whether all say the same.
    Uniform,
}

/// What a register holds from the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constant {
    /// A literal, or an address that does not depend on the launch.
    Value(u64),
    /// The address of a module's variable, and what is added to it.
    Global(String, u64),
    /// The address of shared memory whose size the launch says, and what is added to it.
    Dynamic(u64),
}

/// A register that the machine fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `%tid`.
    Thread(usize),
    /// `%ntid`.
    Threads(usize),
    /// `%ctaid`.
    Block(usize),
    /// `%nctaid`.
    Blocks(usize),
    /// `%laneid`.
    Lane,
    /// `%warpid`.
    Warp,
    /// `%nwarpid`.
    Warps,
    /// `%lanemask_eq` and its like: whether the lanes below, the lane itself and those above are in it.
    Mask([bool; 3]),
    /// `%dynamic_smem_size`.
    DynamicShared,
    /// `%total_smem_size`.
    AllShared,
    /// `%smid`, `%gridid`: there is one.
    Zero,
    /// `%nsmid`.
    One,
}

/// What a kernel's body says.
pub struct Code {
    /// The instructions.
    pub steps: Vec<Step>,
    /// How many registers there are.
    pub registers: u32,
    /// How many predicates there are.
    pub predicates: u32,
    /// Registers that keep one value.
    pub constants: Vec<(Register, Constant)>,
    /// Registers that the machine fills.
    pub specials: Vec<(Register, Special)>,
    /// Where parameters lie, and their size all together.
    pub parameters: (Vec<u64>, u64),
    /// Shared memory that the kernel declares, and where the launch's begins.
    pub shared: u64,
    /// Memory that each thread declares.
    pub local: u64,
}

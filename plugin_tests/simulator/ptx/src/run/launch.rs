//! A launch: checks, arguments, addresses of variables, and all blocks.

use super::{block::Block, warp::Warp};
use crate::{
    Kernel, Memory,
    code::{Code, Constant, Special},
    value::WARP,
};

/// What NVIDIA's GPUs allow a block to have.
const MOST_THREADS: u64 = 1024;
/// Bytes of shared memory that a block may have on a GPU of today.
const MOST_SHARED: u64 = 227 << 10;

/// A launch of a kernel.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// How many blocks there are in each dimension.
    pub grid: [u32; 3],
    /// How many threads a block has in each dimension.
    pub block: [u32; 3],
    /// Bytes of shared memory besides those that the kernel declares.
    pub dynamic_shared: u32,
    /// The bytes of each argument.
    pub arguments: &'a [Vec<u8>],
    /// Addresses of the module's variables.
    pub globals: &'a dyn Fn(&str) -> Option<u64>,
    /// How many instructions all warps together may run before the launch is taken for endless.
    pub limit: u64,
}

impl Launch<'_> {
    /// A limit that no kernel reaches which ends: minutes of work.
    pub const LIMIT: u64 = 1 << 31;
}

impl Kernel {
    /// Runs all blocks, one after the other.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the launch, which instruction is not known, or what went wrong where.
    pub fn run(&self, launch: &Launch<'_>, memory: &mut dyn Memory) -> Result<(), String> {
        let code = self.code()?;
        self.check(launch, code)
            .and_then(|()| run(self, launch, code, memory))
            .map_err(|told| format!("ptx: {}: {told}", self.name()))
    }

    fn check(&self, launch: &Launch<'_>, code: &Code) -> Result<(), String> {
        let Launch { grid, block, .. } = launch;
        let threads = block.iter().try_fold(1u64, |all, &count| all.checked_mul(count.into())).unwrap_or(u64::MAX);
        if grid.contains(&0) || threads == 0 || threads > MOST_THREADS {
            return Err(format!(
                "a grid of {grid:?} blocks of {block:?} threads: each has 1 to {MOST_THREADS} threads"
            ));
        }
        if let Some(required) = self.required_threads().filter(|required| required != block) {
            return Err(format!("blocks of {block:?} threads, and the kernel requires {required:?}"));
        }
        let most = self.most_threads().map(|most| most.iter().map(|&count| u64::from(count)).product::<u64>());
        if let Some(most) = most.filter(|&most| threads > most) {
            return Err(format!("blocks of {threads} threads, and the kernel allows {most}"));
        }
        let shared = code.shared + u64::from(launch.dynamic_shared);
        if shared > MOST_SHARED {
            return Err(format!("{shared} bytes of shared memory, and a block may have {MOST_SHARED}"));
        }
        if launch.arguments.len() != self.parameters().len() {
            return Err(format!("{} arguments in place of {}", launch.arguments.len(), self.parameters().len()));
        }
        for (index, (argument, parameter)) in launch.arguments.iter().zip(self.parameters()).enumerate() {
            if argument.len() as u64 != parameter.bytes {
                return Err(format!("argument {index} has {} bytes in place of {}", argument.len(), parameter.bytes));
            }
        }
        Ok(())
    }
}

fn run(kernel: &Kernel, launch: &Launch<'_>, code: &Code, memory: &mut dyn Memory) -> Result<(), String> {
    let (offsets, bytes) = &code.parameters;
    let mut arguments = vec![0; *bytes as usize];
    for ((argument, parameter), &offset) in launch.arguments.iter().zip(kernel.parameters()).zip(offsets) {
        arguments[offset as usize..(offset + parameter.bytes) as usize].copy_from_slice(argument);
    }
    let threads = launch.block.iter().product::<u32>();
    let mut warps = (0..threads.div_ceil(WARP as u32)).map(|number| Warp::new(code, number)).collect::<Vec<_>>();
    let shared = code.shared + u64::from(launch.dynamic_shared);
    let mut block = Block {
        code,
        memory,
        shared: vec![0; shared as usize],
        arguments,
        place: [0; 3],
        steps: 0,
        limit: launch.limit,
    };
    constants(launch, code, &mut warps)?;
    specials(launch, code, &mut warps);
    for z in 0..launch.grid[2] {
        for y in 0..launch.grid[1] {
            for x in 0..launch.grid[0] {
                block.place = [x, y, z];
                for warp in &mut warps {
                    for (register, special) in &code.specials {
                        if let Special::Block(dimension) = *special {
                            warp.fill(*register, |_| block.place[dimension].into());
                        }
                    }
                    let lanes = (threads - warp.number * WARP as u32).min(WARP as u32);
                    warp.start(u32::MAX >> (WARP as u32 - lanes));
                }
                block.run(&mut warps)?;
            }
        }
    }
    Ok(())
}

/// Fills what stays the same for the launch.
fn constants(launch: &Launch<'_>, code: &Code, warps: &mut [Warp]) -> Result<(), String> {
    for (register, constant) in &code.constants {
        let value = match constant {
            Constant::Value(value) | Constant::Dynamic(value) => *value,
            Constant::Global(name, offset) => {
                let found = (launch.globals)(name);
                found.ok_or_else(|| format!("the variable \"{name}\" has no address"))?.wrapping_add(*offset)
            }
        };
        for warp in &mut *warps {
            warp.fill(*register, |_| value);
        }
    }
    Ok(())
}

fn specials(launch: &Launch<'_>, code: &Code, warps: &mut [Warp]) {
    let [width, height, _] = launch.block.map(|count| count as usize);
    let count = warps.len() as u64;
    for warp in warps {
        let number = warp.number;
        let thread = |lane: usize| number as usize * WARP + lane;
        for (register, special) in &code.specials {
            let register = *register;
            match *special {
                Special::Thread(0) => warp.fill(register, |lane| (thread(lane) % width) as u64),
                Special::Thread(1) => warp.fill(register, |lane| (thread(lane) / width % height) as u64),
                Special::Thread(_) => warp.fill(register, |lane| (thread(lane) / width / height) as u64),
                Special::Threads(dimension) => warp.fill(register, |_| launch.block[dimension].into()),
                Special::Blocks(dimension) => warp.fill(register, |_| launch.grid[dimension].into()),
                Special::Lane => warp.fill(register, |lane| lane as u64),
                Special::Warp => warp.fill(register, |_| number.into()),
                Special::Warps => warp.fill(register, |_| count),
                Special::Mask([below, same, above]) => warp.fill(register, |lane| {
                    let one = 1u64 << lane;
                    let (lower, higher) = (one - 1, u64::from(u32::MAX) & !(one - 1) & !one);
                    (if below { lower } else { 0 }) | (if same { one } else { 0 }) | (if above { higher } else { 0 })
                }),
                Special::DynamicShared => warp.fill(register, |_| launch.dynamic_shared.into()),
                Special::AllShared => warp.fill(register, |_| code.shared + u64::from(launch.dynamic_shared)),
                Special::Zero | Special::Block(_) => warp.fill(register, |_| 0),
                Special::One => warp.fill(register, |_| 1),
            }
        }
    }
}

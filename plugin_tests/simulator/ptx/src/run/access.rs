//! Loads and stores of a warp, in every space.

use super::{
    block::Block,
    exchange::lanes,
    global,
    space::{Window, fetch, keep, window},
    warp::Warp,
};
use crate::{
    code::{Address, Register, Space, Update},
    value::{Lanes, WARP, types},
};

impl Warp {
    /// The addresses that an instruction uses, and which lanes go to which space, where each address is counted from 0.
    fn addresses(&self, address: Address, active: u32, bytes: u64) -> Result<(Lanes, [u32; 4]), String> {
        let mut all = self.lanes(address.base).map(|base| base.wrapping_add(address.offset));
        let wrong = all.iter().enumerate().fold(0, |all, (lane, at)| all | u32::from(at & (bytes - 1) != 0) << lane);
        if let Some(lane) = lanes(wrong & active).next() {
            let at = all[lane];
            return Err(format!("{bytes} bytes at {at:#x}, which is no multiple of {bytes}, are used in lane {lane}"));
        }
        let mut windows = [0; 4];
        match address.space {
            Space::Global => windows[0] = active,
            Space::Shared => windows[1] = active,
            Space::Local => windows[2] = active,
            Space::Parameter => windows[3] = active,
            Space::Generic => {
                for lane in lanes(active) {
                    let window = window(all[lane]);
                    windows[window as usize] |= 1 << lane;
                    all[lane] = all[lane].wrapping_sub(window.base());
                }
            }
        }
        Ok((all, windows))
    }

    /// Loads elements that lie side by side into registers.
    ///
    /// # Errors
    /// An address that may not be used so.
    pub fn load(
        &mut self,
        block: &mut Block<'_>,
        to: &[Register],
        address: Address,
        (bytes, sign): (u8, Option<u64>),
        active: u32,
    ) -> Result<(), String> {
        let width = usize::from(bytes) * to.len();
        let (mut addresses, [global, own @ ..]) = self.addresses(address, active, width as u64)?;
        let mut buffer = [0; WARP * global::MOST];
        if global != 0 {
            global::load(block.memory, (&addresses, global), width, &mut buffer)?;
        }
        for (index, &to) in to.iter().enumerate() {
            let Self { scratch: values, local, .. } = self;
            if global != 0 {
                global::unpack(&buffer, width, index * usize::from(bytes), bytes, values);
            }
            for (window, mask) in Window::OWN.into_iter().zip(own) {
                fetch_own(block, local, window, (&addresses, mask), bytes, values)?;
            }
            if let Some(kept) = sign {
                values.iter_mut().for_each(|value| *value = types::extend(*value, bytes) & kept);
            }
            self.take(to, active);
            addresses = addresses.map(|at| at.wrapping_add(bytes.into()));
        }
        Ok(())
    }

    /// Stores registers side by side.
    ///
    /// # Errors
    /// An address that may not be used so.
    pub fn store(
        &mut self,
        block: &mut Block<'_>,
        of: &[Register],
        address: Address,
        bytes: u8,
        active: u32,
    ) -> Result<(), String> {
        let width = usize::from(bytes) * of.len();
        let (mut addresses, [global, own @ ..]) = self.addresses(address, active, width as u64)?;
        if global != 0 {
            let mut buffer = [0; WARP * global::MOST];
            for (index, &of) in of.iter().enumerate() {
                global::pack(&mut buffer, width, index * usize::from(bytes), bytes, self.lanes(of));
            }
            global::store(block.memory, (&addresses, global), width, &buffer)?;
        }
        for &of in of {
            for (window, mask) in Window::OWN.into_iter().zip(own) {
                let values = *self.lanes(of);
                self.keep_own(block, window, (&addresses, mask), bytes, &values)?;
            }
            addresses = addresses.map(|at| at.wrapping_add(bytes.into()));
        }
        Ok(())
    }

    /// An atomic operation, lane after lane.
    ///
    /// # Errors
    /// An address that may not be used so.
    pub fn atomic(
        &mut self,
        block: &mut Block<'_>,
        (to, of): (Option<Register>, [Register; 2]),
        (address, bytes): (Address, u8),
        update: &Update,
        active: u32,
    ) -> Result<(), String> {
        let (addresses, [global, own @ ..]) = self.addresses(address, active, bytes.into())?;
        let (mut values, operands) = ([0; WARP], of.map(|of| *self.lanes(of)));
        let after = |lane: usize, found: u64| update(found, operands[0][lane], operands[1][lane]);
        for lane in lanes(global) {
            let mut found = [0; 8];
            let part = &mut found[..bytes.into()];
            block.memory.load(addresses[lane], part)?;
            values[lane] = u64::from_le_bytes(found);
            let left = after(lane, values[lane]).to_le_bytes();
            block.memory.store(addresses[lane], &left[..bytes.into()])?;
        }
        for (window, mask) in Window::OWN.into_iter().zip(own) {
            for lane in lanes(mask) {
                fetch_own(block, &self.local, window, (&addresses, 1 << lane), bytes, &mut values)?;
                let mut left = values;
                left[lane] = after(lane, values[lane]);
                self.keep_own(block, window, (&addresses, 1 << lane), bytes, &left)?;
            }
        }
        if let Some(to) = to {
            self.write(to, &values, active);
        }
        Ok(())
    }

    /// `ldmatrix` and `stmatrix`: lane 8 i + j names row j of matrix i, and lane 4 j + k has columns 2 k and 2 k + 1 of
    /// row j, or of column j where the matrix is transposed.
    ///
    /// # Errors
    /// An address that may not be used so, or lanes that are not here.
    pub fn matrix(
        &mut self,
        block: &mut Block<'_>,
        registers: &[Register],
        address: Address,
        (transposed, store): (bool, bool),
        active: u32,
    ) -> Result<(), String> {
        if active != u32::MAX {
            return Err(format!("a matrix needs all lanes of a warp, and {active:#010x} are here"));
        }
        let naming = u32::MAX >> (32 - 8 * registers.len().clamp(1, 4));
        let (rows, windows) = self.addresses(address, naming, 16)?;
        if windows[1] != naming {
            return Err("a row of a matrix does not lie in shared memory".to_owned());
        }
        for (matrix, &register) in registers.iter().enumerate() {
            let mut values = *self.lanes(register);
            for (lane, value) in values.iter_mut().enumerate() {
                let place = |half: usize| {
                    let (row, column) = (lane / 4, lane % 4 * 2 + half);
                    let (row, column) = if transposed { (column, row) } else { (row, column) };
                    rows[8 * matrix + row].wrapping_add(2 * column as u64)
                };
                let outside = || format!("a row of a matrix at {:#x} is outside of shared memory", place(0));
                if store {
                    keep(&mut block.shared, place(0), 2, *value).ok_or_else(outside)?;
                    keep(&mut block.shared, place(1), 2, *value >> 16).ok_or_else(outside)?;
                } else {
                    let low = fetch(&block.shared, place(0), 2).ok_or_else(outside)?;
                    *value = low | fetch(&block.shared, place(1), 2).ok_or_else(outside)? << 16;
                }
            }
            if !store {
                self.write(register, &values, active);
            }
        }
        Ok(())
    }

    fn keep_own(
        &mut self,
        block: &mut Block<'_>,
        space: Window,
        (addresses, mask): (&Lanes, u32),
        bytes: u8,
        values: &Lanes,
    ) -> Result<(), String> {
        if mask == 0 {
            return Ok(());
        }
        let local = self.local.len() / WARP;
        let (memory, stride, size) = match space {
            Window::Global => return Ok(()),
            Window::Parameter => return Err("an argument is stored to, which may only be loaded".to_owned()),
            Window::Shared => (&mut block.shared, 0, None),
            Window::Local => (&mut self.local, local, Some(local)),
        };
        let size = size.unwrap_or(memory.len());
        for lane in lanes(mask) {
            let found = memory.get_mut(lane * stride..lane * stride + size);
            let found = found.and_then(|memory| keep(memory, addresses[lane], bytes, values[lane]));
            found.ok_or_else(|| outside("stored", space, addresses[lane], bytes, size, lane))?;
        }
        Ok(())
    }
}

/// Loads from memory of the block or of its threads.
fn fetch_own(
    block: &Block<'_>,
    local: &[u8],
    space: Window,
    (addresses, mask): (&Lanes, u32),
    bytes: u8,
    values: &mut Lanes,
) -> Result<(), String> {
    if mask == 0 {
        return Ok(());
    }
    let (memory, stride, size) = match space {
        Window::Global => return Ok(()),
        Window::Shared => (&block.shared[..], 0, block.shared.len()),
        Window::Local => (local, local.len() / WARP, local.len() / WARP),
        Window::Parameter => (&block.arguments[..], 0, block.arguments.len()),
    };
    if space == Window::Parameter && addresses.iter().all(|at| *at == addresses[0]) {
        // As arguments are loaded nearly always.
        let found = fetch(memory, addresses[0], bytes);
        let found = found.ok_or_else(|| outside("loaded", space, addresses[0], bytes, size, 0))?;
        lanes(mask).for_each(|lane| values[lane] = found);
        return Ok(());
    }
    for lane in lanes(mask) {
        let found = memory.get(lane * stride..lane * stride + size);
        let found = found.and_then(|memory| fetch(memory, addresses[lane], bytes));
        values[lane] = found.ok_or_else(|| outside("loaded", space, addresses[lane], bytes, size, lane))?;
    }
    Ok(())
}

fn outside(verb: &str, space: Window, at: u64, bytes: u8, size: usize, lane: usize) -> String {
    let of = match space {
        Window::Global => "global memory",
        Window::Shared => "the block's shared memory",
        Window::Local => "the thread's own memory",
        Window::Parameter => "the kernel's arguments",
    };
    format!("{bytes} bytes at {at:#x} of {of}, which has {size}, are {verb} in lane {lane}")
}

//! Copies and fills, with what CUDA documents about the host's part in them.
//!
//! ```text
//!                         asynchronous call                       synchronous call, on the legacy default stream
//!  pageable -> GPU        staged when it returns                  staged when it returns
//!  pinned   -> GPU        read when the stream comes to it        done when it returns
//!  GPU -> pageable        done when it returns                    done when it returns
//!  GPU -> pinned          written when the stream comes to it     done when it returns
//!  GPU -> GPU             when the stream comes to it             when the default stream comes to it
//!  host -> host           done when it returns                    -
//! ```

use crate::{
    memory::{Home, Place, User, overlap},
    operation::{Order, Work},
    perform::stage,
    state::Driver,
    status::{self, Answer, misuse},
    stream::Waits,
};

/// Which memory a function's parameter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A GPU's, or pinned memory by the address that a GPU has for it, which is the same.
    Device,
    /// The host's.
    Host,
    /// Any.
    Any,
}

/// A copy as a function of the driver has it.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// The function.
    pub what: &'static str,
    /// The destination.
    pub to: (Side, u64),
    /// The source.
    pub from: (Side, u64),
    /// How much.
    pub bytes: usize,
    /// Whether the host waits, as far as the table above says.
    pub waits: bool,
}

fn find(driver: &Driver, gpu: usize, (side, address): (Side, u64), bytes: u64, write: bool) -> Answer<Place> {
    let wrong = |why: String| misuse(status::INVALID_VALUE, why);
    let place = driver.place(User::Copy(gpu), address, bytes, write).map_err(wrong)?;
    match (side, place.home) {
        (Side::Device, Home::Pageable) => {
            Err(wrong(format!("{bytes} bytes at {address:#x} are not in a GPU's memory")))
        }
        (Side::Host, Home::Gpu(_)) => Err(wrong(format!("{bytes} bytes at {address:#x} are not in the host's memory"))),
        _ => Ok(place),
    }
}

/// Copies.
pub fn copy(driver: &mut Driver, copy: Copy, stream: usize) -> Answer {
    let (line, gpu) = driver.line_to_use(stream)?;
    let Copy { what, to, from, bytes, waits } = copy;
    if bytes == 0 {
        return Ok(());
    }
    let bytes = bytes as u64;
    let destination = find(driver, gpu, to, bytes, true)?;
    let source = find(driver, gpu, from, bytes, false)?;
    let ((_, to), (_, from)) = (to, from);
    if overlap(&(to..to + bytes), &(from..from + bytes)) {
        return Err(misuse(status::INVALID_VALUE, format!("{bytes} bytes from {from:#x} to {to:#x} overlap")));
    }
    let on_host = |home: Home| !matches!(home, Home::Gpu(_));
    let (work, done_at_return) = match (source.home, destination.home) {
        (Home::Pageable, Home::Gpu(_)) => (Work::Staged { to, from: stage(from, bytes) }, false),
        (Home::Gpu(_), Home::Gpu(_)) => (Work::Copy { to, from, bytes }, false),
        (source, home) => {
            let waits = waits || home == Home::Pageable || on_host(source) && on_host(home);
            (Work::Copy { to, from, bytes }, waits)
        }
    };
    let order = Order { uses: vec![(source, false), (destination, true)], ..Order::new(what, work) };
    let point = driver.issue(line, order)?;
    if done_at_return {
        let clock = driver.streams[&line].clock.clone();
        driver.wait_for(&[point]);
        driver.observe(&clock);
        driver.healthy(gpu)?;
    }
    Ok(())
}

/// `cuMemsetD8Async`.
pub fn fill(driver: &mut Driver, address: u64, value: u8, bytes: usize, stream: usize) -> Answer {
    repeat(driver, "cuMemsetD8Async", address, [value; 4], bytes as u64, stream)
}

/// `cuMemsetD32Async`, of `count` words.
pub fn fill_words(driver: &mut Driver, address: u64, value: u32, count: usize, stream: usize) -> Answer {
    if !address.is_multiple_of(4) {
        return Err(misuse(status::INVALID_VALUE, format!("the address {address:#x} is no multiple of 4")));
    }
    let bytes = (count as u64).checked_mul(4).ok_or(status::INVALID_VALUE)?;
    repeat(driver, "cuMemsetD32Async", address, value.to_ne_bytes(), bytes, stream)
}

fn repeat(
    driver: &mut Driver,
    what: &'static str,
    address: u64,
    pattern: [u8; 4],
    bytes: u64,
    stream: usize,
) -> Answer {
    let (line, gpu) = driver.line_to_use(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let place = find(driver, gpu, (Side::Device, address), bytes, true)?;
    let work = Work::Fill { to: address, pattern, bytes };
    driver.issue(line, Order { uses: vec![(place, true)], ..Order::new(what, work) }).map(|_| ())
}

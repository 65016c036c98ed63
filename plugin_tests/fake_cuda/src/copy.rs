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
    state::Driver,
    status::{self, Answer, misuse},
    stream::{Order, Waits, Work, stage},
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
    let (source_home, home) = (source.home, destination.home);
    let on_host = |home: Home| !matches!(home, Home::Gpu(_));
    let mut order = Order::new(what, Work::Copy { to, from, bytes });
    order.uses = vec![(source, false), (destination, true)];
    let done_at_return = match (source_home, home) {
        (Home::Pageable, home) if !on_host(home) => {
            order.work = Work::Staged { to, from: stage(from, bytes) };
            false
        }
        (Home::Gpu(_), Home::Gpu(_)) => false,
        (source, home) => waits || home == Home::Pageable || on_host(source) && on_host(home),
    };
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
    let (line, gpu) = driver.line_to_use(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let bytes = bytes as u64;
    let place = find(driver, gpu, (Side::Device, address), bytes, true)?;
    let mut order = Order::new("cuMemsetD8Async", Work::Fill { to: address, value, bytes });
    order.uses = vec![(place, true)];
    driver.issue(line, order).map(|_| ())
}

//! Memory that buffers lie in, shared by every buffer and every piece of work that names it.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ffi::c_void,
    ptr,
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    cpu::Raw,
    driver::Range,
    error::{Error, Result},
    gpu::Gpu,
    milestone::Mark,
};

/// How XLA aligns what it allocates.
const ALIGNMENT: usize = 256;

/// Called once when an outsider's memory is not needed any more.
pub type OnDelete = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// Whose it is.
enum Owner {
    /// The GPU's pool; it goes back in the order of the compute stream, after the last uses on others.
    Pool(Arc<Gpu>, Mutex<Vec<Arc<Mark>>>),
    /// An outsider's.
    Foreign(Option<OnDelete>, Raw<c_void>),
    /// The host's.
    Host(Layout),
    /// Nobody's: there is none.
    Nobody,
}

/// See the module.
pub struct Memory {
    address: u64,
    bytes: u64,
    owner: Owner,
}

impl Memory {
    /// From the pool of a GPU, ready for its compute stream.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub fn on_device(gpu: &Arc<Gpu>, bytes: u64) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            address: gpu.allocate(bytes)?,
            bytes,
            owner: Owner::Pool(Arc::clone(gpu), Mutex::default()),
        }))
    }

    /// From the host.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub fn on_host(bytes: u64) -> Result<Arc<Self>> {
        let layout = Layout::from_size_align((bytes as usize).max(1), ALIGNMENT)
            .map_err(|_| Error::invalid(format!("{bytes} bytes are too many")))?;
        // SAFETY: the layout has a size.
        let address = unsafe { alloc_zeroed(layout) };
        if address.is_null() {
            return Err(Error::exhausted(format!("the host has no {bytes} bytes")));
        }
        Ok(Arc::new(Self { address: address.expose_provenance() as u64, bytes, owner: Owner::Host(layout) }))
    }

    /// An outsider's, who is told with `on_delete` when it is not needed any more.
    pub fn foreign(address: *mut c_void, bytes: u64, on_delete: Option<OnDelete>, argument: *mut c_void) -> Arc<Self> {
        let address = address.expose_provenance() as u64;
        Arc::new(Self { address, bytes, owner: Owner::Foreign(on_delete, Raw(argument)) })
    }

    /// No memory, of a buffer that is only an error.
    pub fn none() -> Arc<Self> {
        Arc::new(Self { address: 0, bytes: 0, owner: Owner::Nobody })
    }

    /// The first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether an outsider owns it.
    pub fn is_foreign(&self) -> bool {
        matches!(self.owner, Owner::Foreign(..))
    }

    /// Whether it is the pool's.
    pub fn is_pool(&self) -> bool {
        matches!(self.owner, Owner::Pool(..))
    }

    /// A stream other than the compute stream uses it up to `mark`.
    pub fn used_until(&self, mark: Arc<Mark>) {
        if let Owner::Pool(_, uses) = &self.owner {
            let mut uses = uses.lock();
            // Streams are in order: a later mark stands for the earlier ones.
            uses.retain(|use_| use_.stream() != mark.stream());
            uses.push(mark);
        }
    }

    /// What a kernel that uses it names; nothing for memory of the host, and for none.
    pub fn range(&self) -> Option<Range> {
        let on_device = !matches!(self.owner, Owner::Host(_) | Owner::Nobody);
        (on_device && self.bytes > 0).then_some(Range { address: self.address, bytes: self.bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Pool(gpu, uses) => {
                for mark in uses.lock().drain(..) {
                    // A driver that refuses has said why.
                    let _ = gpu.follow(gpu.compute, &mark);
                }
                gpu.free(self.address);
            }
            Owner::Foreign(on_delete, argument) => {
                if let Some(on_delete) = on_delete {
                    // SAFETY: the outsider's callback, called once, with what it asked for.
                    unsafe { on_delete(at(self.address).cast(), argument.0) };
                }
            }
            // SAFETY: allocated with this layout, and nothing names it any more.
            Owner::Host(layout) => unsafe { dealloc(at(self.address), *layout) },
            Owner::Nobody => {}
        }
    }
}

/// The pointer to an address.
pub fn at(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}

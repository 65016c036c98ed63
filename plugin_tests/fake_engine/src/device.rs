//! Devices and their descriptions: what they are called, whose they are, what their memory comes to.

use std::{
    ffi::{CString, c_char, c_int},
    ptr,
    sync::LazyLock,
};

use parking_lot::Mutex;

use crate::{
    client::{described, device, is_elsewhere},
    cpu,
    entry::Entry,
    error::Result,
    platform::platform,
    sys::{self, CStruct},
};

impl Entry for sys::PJRT_Device_IsAddressable_Args {
    unsafe fn run(&mut self) -> Result {
        self.is_addressable = !is_elsewhere(self.device);
        if self.is_addressable {
            device(self.device)?;
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Device_AddressableMemories_Args {
    unsafe fn run(&mut self) -> Result {
        if is_elsewhere(self.device) {
            (self.memories, self.num_memories) = (ptr::null(), 0);
            return Ok(());
        }
        // SAFETY: the caller's struct, as it came.
        unsafe { cpu::engine()?.pass(self) }
    }
}

impl Entry for sys::PJRT_Device_DefaultMemory_Args {
    unsafe fn run(&mut self) -> Result {
        device(self.device)?;
        // SAFETY: the caller's struct, as it came.
        unsafe { cpu::engine()?.pass(self) }
    }
}

impl Entry for sys::PJRT_DeviceDescription_ProcessIndex_Args {
    unsafe fn run(&mut self) -> Result {
        if let Some(described) = described(self.device_description) {
            self.process_index = described.node as c_int;
            return Ok(());
        }
        // One of a topology, without a device.
        // SAFETY: the caller's struct, as it came.
        unsafe { cpu::engine()?.pass(self) }
    }
}

impl Entry for sys::PJRT_Device_LocalHardwareId_Args {
    unsafe fn run(&mut self) -> Result {
        if is_elsewhere(self.device) {
            self.local_hardware_id = -1;
            return Ok(());
        }
        let (client, number) = device(self.device)?;
        self.local_hardware_id = client.devices[number].gpu.ordinal;
        Ok(())
    }
}

/// A text that the C API may keep for ever; there are few of them.
fn keep(text: &str) -> (*const c_char, usize) {
    static KEPT: Mutex<Vec<CString>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock();
    let wanted = CString::new(text).unwrap_or_default();
    let at = kept.iter().position(|known| *known == wanted).unwrap_or_else(|| {
        kept.push(wanted);
        kept.len() - 1
    });
    (kept[at].as_ptr(), kept[at].as_bytes().len())
}

impl Entry for sys::PJRT_DeviceDescription_Kind_Args {
    unsafe fn run(&mut self) -> Result {
        let Some(described) = described(self.device_description) else {
            // One of a topology, without a device.
            // SAFETY: the caller's struct, as it came.
            return unsafe { cpu::engine()?.pass(self) };
        };
        (self.device_kind, self.device_kind_size) = keep(&described.name);
        Ok(())
    }
}

/// What JAX asks a GPU for.
struct Attributes([sys::PJRT_NamedValue; 2]);

// SAFETY: names and values are constants.
unsafe impl Send for Attributes {}
// SAFETY: as above.
unsafe impl Sync for Attributes {}

static ATTRIBUTES: LazyLock<Attributes> = LazyLock::new(|| {
    let (capability_text, core_count) = (platform().capability, platform().cores);
    let named = |name: &'static str, kind, value_size| sys::PJRT_NamedValue {
        struct_size: sys::PJRT_NamedValue::STRUCT_SIZE,
        name: name.as_ptr().cast(),
        name_size: name.len(),
        type_: kind,
        value_size,
        ..Default::default()
    };
    let mut capability = named("compute_capability", sys::PJRT_NamedValue_kString, capability_text.len());
    capability.__bindgen_anon_1.string_value = capability_text.as_ptr().cast();
    let mut cores = named("core_count", sys::PJRT_NamedValue_kInt64, 1);
    cores.__bindgen_anon_1.int64_value = core_count;
    Attributes([capability, cores])
});

impl Entry for sys::PJRT_DeviceDescription_Attributes_Args {
    unsafe fn run(&mut self) -> Result {
        (self.attributes, self.num_attributes) = (ATTRIBUTES.0.as_ptr(), ATTRIBUTES.0.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_Device_MemoryStats_Args {
    unsafe fn run(&mut self) -> Result {
        let (client, number) = device(self.device)?;
        let gpu = &client.devices[number].gpu;
        let usage = gpu.usage()?;
        self.bytes_in_use = usage.in_use as i64;
        self.peak_bytes_in_use = usage.peak_in_use as i64;
        self.pool_bytes = usage.reserved as i64;
        self.peak_pool_bytes = usage.peak_reserved as i64;
        self.num_allocs = gpu.allocations.load(std::sync::atomic::Ordering::Relaxed) as i64;
        self.largest_alloc_size = gpu.largest.load(std::sync::atomic::Ordering::Relaxed) as i64;
        self.bytes_limit = client.options.limit(gpu.memory) as i64;
        self.bytes_reserved_is_set = false;
        self.peak_bytes_reserved_is_set = false;
        self.bytes_reservable_limit_is_set = false;
        self.largest_free_block_bytes_is_set = false;
        self.peak_allocated_bytes_is_set = false;
        self.peak_bytes_in_use_is_set = true;
        self.pool_bytes_is_set = true;
        self.peak_pool_bytes_is_set = true;
        self.num_allocs_is_set = true;
        self.largest_alloc_size_is_set = true;
        self.bytes_limit_is_set = true;
        Ok(())
    }
}

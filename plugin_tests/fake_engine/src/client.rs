//! Clients, devices and memories: the CPU engine's handles, and what stands behind them here.

use std::{
    collections::HashMap,
    ffi::{CString, c_char},
    sync::{Arc, LazyLock},
};

use cudarc::driver::sys::CUmemPool_attribute;
use parking_lot::{Mutex, RwLock};

use crate::{
    cpu::{self, Raw},
    entry::{Entry, list, required, text},
    error::{Error, Result},
    gpu::{Gpu, start_errands},
    options::{Era, Options},
    sys::{self, CStruct},
};

/// What `PJRT_Client_PlatformName` says; programs, handlers and dlpack go by it.
pub const PLATFORM: &str = "cuda";
/// The memory of the host that GPUs read and write.
pub const PINNED_HOST: &str = "pinned_host";
/// Frameworks look for the platform in it.
const VERSION: &str = concat!("cuda 12080, fake CUDA engine ", env!("CARGO_PKG_VERSION"), " without a GPU");

/// A client, alive while anything of it is.
pub struct Client {
    /// The CPU engine's.
    pub handle: Raw<sys::PJRT_Client>,
    /// In the CPU engine's order.
    pub devices: Vec<Device>,
    /// Which XLA is played.
    pub era: Era,
    options: Options,
    /// Launches on several devices happen in one order on all of them, or their kernels would wait for each other.
    pub launches: Mutex<()>,
}

/// One device of a client.
pub struct Device {
    /// The CPU engine's.
    pub handle: Raw<sys::PJRT_Device>,
    /// What computes.
    pub gpu: Arc<Gpu>,
    /// The memories that it reaches, its own first.
    pub memories: Vec<Place>,
}

/// One memory of a device.
#[derive(Clone)]
pub struct Place {
    /// The CPU engine's.
    pub handle: Raw<sys::PJRT_Memory>,
    /// Such as `device`.
    pub kind: String,
    /// Whether the bytes lie on the device.
    pub on_device: bool,
}

/// Where a device or a memory belongs: the client, the device's number, the memory's.
type Home = (Arc<Client>, usize, usize);

#[derive(Default)]
struct Registry {
    clients: HashMap<usize, Arc<Client>>,
    devices: HashMap<usize, (usize, usize)>,
    memories: HashMap<usize, (usize, usize, usize)>,
    /// Descriptions of devices, for what they are called.
    descriptions: HashMap<usize, (usize, usize)>,
}

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

fn key<T>(handle: *mut T) -> usize {
    handle.addr()
}

fn unknown<T>(what: &str, handle: *mut T) -> Error {
    Error::invalid(format!("{handle:p} is no {what} of this engine"))
}

/// The client behind a handle.
///
/// # Errors
/// INVALID_ARGUMENT for a handle that is none.
pub fn client(handle: *mut sys::PJRT_Client) -> Result<Arc<Client>> {
    REGISTRY.read().clients.get(&key(handle)).cloned().ok_or_else(|| unknown("client", handle))
}

/// The client and the number of a device.
///
/// # Errors
/// INVALID_ARGUMENT for a handle that is none.
pub fn device(handle: *mut sys::PJRT_Device) -> Result<(Arc<Client>, usize)> {
    let registry = REGISTRY.read();
    let found = registry
        .devices
        .get(&key(handle))
        .and_then(|&(client, device)| Some((Arc::clone(registry.clients.get(&client)?), device)));
    found.ok_or_else(|| unknown("device", handle))
}

/// The client, the device and the number of a memory. One that several devices reach belongs to the first.
///
/// # Errors
/// INVALID_ARGUMENT for a handle that is none.
pub fn memory(handle: *mut sys::PJRT_Memory) -> Result<Home> {
    let registry = REGISTRY.read();
    let found = registry
        .memories
        .get(&key(handle))
        .and_then(|&(client, device, place)| Some((Arc::clone(registry.clients.get(&client)?), device, place)));
    found.ok_or_else(|| unknown("memory", handle))
}

/// The memory that a caller names, or else the default one of the device that it names.
///
/// # Errors
/// INVALID_ARGUMENT when both are missing or unknown.
pub fn home(
    memory_handle: *mut sys::PJRT_Memory,
    device_handle: *mut sys::PJRT_Device,
    function: &str,
) -> Result<Home> {
    if memory_handle.is_null() {
        let (client, number) = device(required(device_handle, function, "memory and device")?)?;
        return Ok((client, number, 0));
    }
    memory(memory_handle)
}

impl Client {
    /// The number of the device that a handle of this client's names.
    pub fn number(&self, handle: *mut sys::PJRT_Device) -> Option<usize> {
        self.devices.iter().position(|device| device.handle.0 == handle)
    }

    fn register(self: Arc<Self>, descriptions: &[*mut sys::PJRT_DeviceDescription]) {
        let mut registry = REGISTRY.write();
        let client = key(self.handle.0);
        for (number, device) in self.devices.iter().enumerate() {
            registry.devices.insert(key(device.handle.0), (client, number));
            registry.descriptions.insert(key(descriptions[number]), (client, number));
            for (place, memory) in device.memories.iter().enumerate() {
                registry.memories.entry(key(memory.handle.0)).or_insert((client, number, place));
            }
        }
        registry.clients.insert(client, self);
    }

    fn unregister(handle: *mut sys::PJRT_Client) -> Option<Arc<Self>> {
        let mut registry = REGISTRY.write();
        let client = key(handle);
        registry.devices.retain(|_, home| home.0 != client);
        registry.descriptions.retain(|_, home| home.0 != client);
        registry.memories.retain(|_, home| home.0 != client);
        registry.clients.remove(&client)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Ok(cpu) = cpu::engine() {
            let args = sys::PJRT_Client_Destroy_Args { client: self.handle.0, ..Default::default() };
            // SAFETY: the client is ours, and nothing names it any more.
            drop(unsafe { cpu.call(args) });
        }
    }
}

/// The memories of a device, its default one first.
///
/// # Safety
/// The device must be one of the CPU engine's.
unsafe fn places(device: *mut sys::PJRT_Device) -> Result<Vec<Place>> {
    let cpu = cpu::engine()?;
    // SAFETY: the caller's promise; lists and texts live as long as the client.
    unsafe {
        let own = cpu.call(sys::PJRT_Device_DefaultMemory_Args { device, ..Default::default() })?.memory;
        let all = cpu.call(sys::PJRT_Device_AddressableMemories_Args { device, ..Default::default() })?;
        let mut places = Vec::new();
        for &memory in list(all.memories, all.num_memories) {
            let args = cpu.call(sys::PJRT_Memory_Kind_Args { memory, ..Default::default() })?;
            let place = Place { handle: Raw(memory), kind: text(args.kind, args.kind_size), on_device: memory == own };
            places.insert(if memory == own { 0 } else { places.len() }, place);
        }
        Ok(places)
    }
}

/// The GPUs that a client uses.
fn ordinals(options: &Options) -> Result<Vec<i32>> {
    let count = Gpu::count()?;
    let Some(visible) = &options.visible_devices else { return Ok((0..count).collect()) };
    let check = |&ordinal: &i64| {
        i32::try_from(ordinal).ok().filter(|ordinal| (0..count).contains(ordinal)).ok_or_else(|| {
            Error::invalid(format!("visible_devices names GPU {ordinal}, but there are {count}, from 0 on"))
        })
    };
    visible.iter().map(check).collect()
}

impl Entry for sys::PJRT_Client_Create_Args {
    unsafe fn run(&mut self) -> Result {
        let cpu = cpu::engine()?;
        // SAFETY: the caller's list.
        let options = unsafe { Options::read(self.create_options, self.num_options)? };
        let era = Era::from_environment()?;
        let ordinals = ordinals(&options)?;
        if ordinals.is_empty() {
            return Err(Error::new(sys::PJRT_Error_Code_FAILED_PRECONDITION, "No visible GPU devices."));
        }
        let errands = start_errands()?;
        let open = |&ordinal| Gpu::open(ordinal, |memory| options.threshold(memory), errands.clone());
        let gpus = ordinals.iter().map(open).collect::<Result<Vec<_>>>()?;
        let name = "cpu_device_count";
        let mut count = sys::PJRT_NamedValue {
            struct_size: sys::PJRT_NamedValue::STRUCT_SIZE,
            name: name.as_ptr().cast(),
            name_size: name.len(),
            type_: sys::PJRT_NamedValue_kInt64,
            value_size: 1,
            ..Default::default()
        };
        count.__bindgen_anon_1.int64_value = gpus.len() as i64;
        // SAFETY: the option lives through the call, the rest are handles of the engine's own.
        let (handle, devices, descriptions) = unsafe {
            let made = cpu.call(sys::PJRT_Client_Create_Args {
                create_options: &raw const count,
                num_options: 1,
                ..Default::default()
            })?;
            let client = made.client;
            let all = cpu.call(sys::PJRT_Client_AddressableDevices_Args { client, ..Default::default() })?;
            let (mut devices, mut descriptions) = (Vec::new(), Vec::new());
            for (&device, gpu) in list(all.addressable_devices, all.num_addressable_devices).iter().zip(gpus) {
                devices.push(Device { handle: Raw(device), gpu, memories: places(device)? });
                let args = sys::PJRT_Device_GetDescription_Args { device, ..Default::default() };
                descriptions.push(cpu.call(args)?.device_description);
            }
            (client, devices, descriptions)
        };
        let client = Client { handle: Raw(handle), devices, era, options, launches: Mutex::new(()) };
        Arc::new(client).register(&descriptions);
        self.client = handle;
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_Destroy_Args {
    unsafe fn run(&mut self) -> Result {
        if self.client.is_null() {
            return Ok(());
        }
        let client = Client::unregister(self.client).ok_or_else(|| unknown("client", self.client))?;
        // On a GPU that is lost there is nothing to wait for, and the end of a client never fails.
        client.devices.iter().for_each(|device| drop(device.gpu.drain()));
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_PlatformName_Args {
    unsafe fn run(&mut self) -> Result {
        client(self.client)?;
        (self.platform_name, self.platform_name_size) = (PLATFORM.as_ptr().cast(), PLATFORM.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_PlatformVersion_Args {
    unsafe fn run(&mut self) -> Result {
        client(self.client)?;
        (self.platform_version, self.platform_version_size) = (VERSION.as_ptr().cast(), VERSION.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_TopologyDescription_PlatformName_Args {
    unsafe fn run(&mut self) -> Result {
        (self.platform_name, self.platform_name_size) = (PLATFORM.as_ptr().cast(), PLATFORM.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_TopologyDescription_PlatformVersion_Args {
    unsafe fn run(&mut self) -> Result {
        (self.platform_version, self.platform_version_size) = (VERSION.as_ptr().cast(), VERSION.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_Device_LocalHardwareId_Args {
    unsafe fn run(&mut self) -> Result {
        let (client, number) = device(self.device)?;
        self.local_hardware_id = client.devices[number].gpu.ordinal;
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_LookupAddressableDevice_Args {
    unsafe fn run(&mut self) -> Result {
        let client = client(self.client)?;
        let found = client.devices.iter().find(|device| device.gpu.ordinal == self.local_hardware_id);
        self.addressable_device = found
            .ok_or_else(|| {
                Error::invalid(format!("No matching device found for local_hardware_id {}", self.local_hardware_id))
            })?
            .handle
            .0;
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
        let home = REGISTRY.read().descriptions.get(&key(self.device_description)).copied();
        let Some((handle, number)) = home else {
            // One of a topology, without a device.
            // SAFETY: the caller's struct, as it came.
            return unsafe { cpu::engine()?.pass(self) };
        };
        let registry = REGISTRY.read();
        let client = registry.clients.get(&handle).ok_or_else(|| unknown("description", self.device_description))?;
        (self.device_kind, self.device_kind_size) = keep(&client.devices[number].gpu.name);
        Ok(())
    }
}

/// What JAX asks a CUDA device for.
struct Attributes([sys::PJRT_NamedValue; 2]);

// SAFETY: names and values are constants.
unsafe impl Send for Attributes {}
// SAFETY: as above.
unsafe impl Sync for Attributes {}

static ATTRIBUTES: LazyLock<Attributes> = LazyLock::new(|| {
    const CAPABILITY: &str = "9.0";
    let named = |name: &'static str, kind, value_size| sys::PJRT_NamedValue {
        struct_size: sys::PJRT_NamedValue::STRUCT_SIZE,
        name: name.as_ptr().cast(),
        name_size: name.len(),
        type_: kind,
        value_size,
        ..Default::default()
    };
    let mut capability = named("compute_capability", sys::PJRT_NamedValue_kString, CAPABILITY.len());
    capability.__bindgen_anon_1.string_value = CAPABILITY.as_ptr().cast();
    let mut cores = named("core_count", sys::PJRT_NamedValue_kInt64, 1);
    cores.__bindgen_anon_1.int64_value = 132;
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
        let pool = |which| gpu.pool_attribute(which).map(|value| value as i64);
        self.bytes_in_use = pool(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        self.peak_bytes_in_use = pool(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
        self.pool_bytes = pool(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        self.peak_pool_bytes = pool(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
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

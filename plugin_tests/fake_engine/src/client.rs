//! Clients, devices and memories: the CPU engine's handles, and what stands behind them here.

use std::{
    collections::HashMap,
    ffi::c_int,
    iter,
    sync::{Arc, LazyLock},
};

use parking_lot::{Mutex, RwLock};

use crate::{
    cpu::{self, Raw},
    entry::{Entry, list, required, text},
    error::{Error, Result},
    gpu::{Gpu, start_errands},
    nodes::{self, Handles},
    options::{Era, Options},
    platform::platform,
    sys::{self, CStruct},
};

/// The memory of the host that GPUs read and write.
pub const PINNED_HOST: &str = "pinned_host";

/// A client, alive while anything of it is.
pub struct Client {
    /// The CPU engine's.
    pub handle: Raw<sys::PJRT_Client>,
    /// Those of this process, in the CPU engine's order.
    pub devices: Vec<Device>,
    /// The same, and their memories, for callers.
    addressable: Handles<sys::PJRT_Device>,
    memories: Handles<sys::PJRT_Memory>,
    /// Which XLA is played.
    pub era: Era,
    /// What it was made with.
    pub options: Options,
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

/// A device as its description names it.
#[derive(Clone)]
pub struct Described {
    client: usize,
    /// Its process.
    pub node: i64,
    /// What it is called; those of other processes as the first of this one.
    pub name: String,
}

#[derive(Default)]
struct Registry {
    clients: HashMap<usize, Arc<Client>>,
    devices: HashMap<usize, (usize, usize)>,
    memories: HashMap<usize, (usize, usize, usize)>,
    /// Descriptions of all processes' devices, for what they are called and whose they are.
    descriptions: HashMap<usize, Described>,
    /// Devices of other processes, by their clients.
    elsewhere: HashMap<usize, usize>,
}

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

fn key<T>(handle: *mut T) -> usize {
    handle.addr()
}

/// What a description says; `None` for one of a topology, without a device.
pub fn described(description: *mut sys::PJRT_DeviceDescription) -> Option<Described> {
    REGISTRY.read().descriptions.get(&key(description)).cloned()
}

/// Whether a device is one of another process of the job.
pub fn is_elsewhere(handle: *mut sys::PJRT_Device) -> bool {
    REGISTRY.read().elsewhere.contains_key(&key(handle))
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
    if registry.elsewhere.contains_key(&key(handle)) {
        return Err(Error::invalid("the device belongs to another process; it can only be named here"));
    }
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

    /// `all` are all processes' devices with their descriptions and processes, in the order of their numbers in the
    /// job.
    fn register(self: Arc<Self>, all: &[Everywhere]) {
        let mut registry = REGISTRY.write();
        let client = key(self.handle.0);
        for &(device, description, node) in all {
            let number = self.number(device);
            let name = self.devices[number.unwrap_or(0)].gpu.name.clone();
            registry.descriptions.insert(key(description), Described { client, node, name });
            if number.is_none() {
                registry.elsewhere.insert(key(device), client);
            }
        }
        for (number, device) in self.devices.iter().enumerate() {
            registry.devices.insert(key(device.handle.0), (client, number));
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
        registry.descriptions.retain(|_, described| described.client != client);
        registry.elsewhere.retain(|_, home| *home != client);
        registry.memories.retain(|_, home| home.0 != client);
        registry.clients.remove(&client)
    }
}

/// A device of the job, its description, and its process.
type Everywhere = (*mut sys::PJRT_Device, *mut sys::PJRT_DeviceDescription, i64);

impl Drop for Client {
    fn drop(&mut self) {
        if let Ok(cpu) = cpu::engine() {
            let args = sys::PJRT_Client_Destroy_Args { client: self.handle.0, ..Default::default() };
            // SAFETY: the client is ours, and nothing names it any more.
            drop(unsafe { cpu.call(args) });
        }
    }
}

impl Device {
    /// Its number in the job.
    fn id(&self) -> Result<c_int> {
        let cpu = cpu::engine()?;
        // SAFETY: the device lives as long as its client.
        unsafe {
            let args = sys::PJRT_Device_GetDescription_Args { device: self.handle.0, ..Default::default() };
            let device_description = cpu.call(args)?.device_description;
            let args = sys::PJRT_DeviceDescription_Id_Args { device_description, ..Default::default() };
            Ok(cpu.call(args)?.id)
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
        let open = |&ordinal| Gpu::open(ordinal, &options, errands.clone());
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
        // The CPU engine shows the devices of all processes; those of the others are never computed on.
        let node = options.node;
        let counts = nodes::exchange(self, node, gpus.len())?;
        let first = counts[..node.id as usize].iter().sum::<usize>();
        let nodes: Vec<i64> = (0..).zip(&counts).flat_map(|(id, &count)| iter::repeat_n(id, count)).collect();
        count.__bindgen_anon_1.int64_value = nodes.len() as i64;
        // SAFETY: the option lives through the call, the rest are handles of the engine's own.
        let (handle, devices, everywhere, memories) = unsafe {
            let made = cpu.call(sys::PJRT_Client_Create_Args {
                create_options: &raw const count,
                num_options: 1,
                ..Default::default()
            })?;
            let client = made.client;
            let all = cpu.call(sys::PJRT_Client_AddressableDevices_Args { client, ..Default::default() })?;
            let all = list(all.addressable_devices, all.num_addressable_devices);
            let (mut devices, mut everywhere) = (Vec::new(), Vec::new());
            for (&device, gpu) in all.iter().skip(first).zip(gpus) {
                devices.push(Device { handle: Raw(device), gpu, memories: places(device)? });
            }
            for (&device, node) in all.iter().zip(nodes) {
                let args = sys::PJRT_Device_GetDescription_Args { device, ..Default::default() };
                everywhere.push((device, cpu.call(args)?.device_description, node));
            }
            let args = cpu.call(sys::PJRT_Client_AddressableMemories_Args { client, ..Default::default() })?;
            let memories = Handles::copy(args.addressable_memories, args.num_addressable_memories);
            (client, devices, everywhere, memories)
        };
        let handles: Vec<_> = devices.iter().map(|device| device.handle.0).collect();
        let reached: Vec<_> = devices.iter().flat_map(|device| &device.memories).map(|place| place.handle.0).collect();
        let client = Client {
            handle: Raw(handle),
            devices,
            addressable: Handles::from(handles),
            memories: memories.only(|memory| reached.contains(&memory)),
            era,
            options,
            launches: Mutex::new(()),
        };
        Arc::new(client).register(&everywhere);
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

impl Entry for sys::PJRT_Client_ProcessIndex_Args {
    unsafe fn run(&mut self) -> Result {
        self.process_index = client(self.client)?.options.node.id as c_int;
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_AddressableDevices_Args {
    unsafe fn run(&mut self) -> Result {
        let client = client(self.client)?;
        (self.addressable_devices, self.num_addressable_devices) = client.addressable.as_list();
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_AddressableMemories_Args {
    unsafe fn run(&mut self) -> Result {
        let client = client(self.client)?;
        (self.addressable_memories, self.num_addressable_memories) = client.memories.as_list();
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_DefaultDeviceAssignment_Args {
    unsafe fn run(&mut self) -> Result {
        let client = client(self.client)?;
        let wanted = i64::from(self.num_replicas) * i64::from(self.num_partitions);
        let fits = usize::try_from(wanted).is_ok_and(|wanted| wanted <= client.devices.len());
        if client.options.node.nodes == 1 || !fits || self.default_assignment_size < wanted as usize {
            // SAFETY: the caller's struct, as it came.
            return unsafe { cpu::engine()?.pass(self) };
        }
        // What fits this process runs here.
        for (place, device) in client.devices.iter().take(wanted as usize).enumerate() {
            // SAFETY: the device is alive; the caller has room for so many.
            unsafe { self.default_assignment.add(place).write(device.id()?) };
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_PlatformName_Args {
    unsafe fn run(&mut self) -> Result {
        client(self.client)?;
        let name = platform().name;
        (self.platform_name, self.platform_name_size) = (name.as_ptr().cast(), name.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_PlatformVersion_Args {
    unsafe fn run(&mut self) -> Result {
        client(self.client)?;
        let version = platform().version;
        (self.platform_version, self.platform_version_size) = (version.as_ptr().cast(), version.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_TopologyDescription_PlatformName_Args {
    unsafe fn run(&mut self) -> Result {
        let name = platform().name;
        (self.platform_name, self.platform_name_size) = (name.as_ptr().cast(), name.len());
        Ok(())
    }
}

impl Entry for sys::PJRT_TopologyDescription_PlatformVersion_Args {
    unsafe fn run(&mut self) -> Result {
        let version = platform().version;
        (self.platform_version, self.platform_version_size) = (version.as_ptr().cast(), version.len());
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

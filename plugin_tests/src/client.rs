//! Clients, devices, memories, and what they tell about themselves.

use std::{collections::BTreeMap, ffi::c_char, mem::offset_of, ptr};

use crate::{
    Plugin,
    buffer::{Buffer, Element, HostArray, Semantics},
    call,
    event::Event,
    executable::Loaded,
    plugin,
    program::Program,
    raw::{Failure, Result, slice, text},
    sized, sys,
    transfer::Transfer,
};

/// The value of an option or attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A list of integers.
    Integers(Vec<i64>),
    /// A float.
    Float(f32),
    /// A truth value.
    Bool(bool),
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}
impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}
impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl Value {
    /// The C form; it borrows from `name` and `self`.
    pub fn named(&self, name: &str) -> sys::PJRT_NamedValue {
        let mut named = sized!(PJRT_NamedValue);
        named.name = name.as_ptr().cast();
        named.name_size = name.len();
        named.value_size = 1;
        // The union's members all start at its first byte, which is `value_size`'s left neighbour.
        let union = union_of(&mut named);
        // SAFETY: the union holds 8 aligned bytes, enough for every member.
        let kind = unsafe {
            match self {
                Self::Text(value) => {
                    union.cast::<*const c_char>().write(value.as_ptr().cast());
                    named.value_size = value.len();
                    sys::PJRT_NamedValue_kString
                }
                Self::Integer(value) => {
                    union.cast::<i64>().write(*value);
                    sys::PJRT_NamedValue_kInt64
                }
                Self::Integers(value) => {
                    union.cast::<*const i64>().write(value.as_ptr());
                    named.value_size = value.len();
                    sys::PJRT_NamedValue_kInt64List
                }
                Self::Float(value) => {
                    union.cast::<f32>().write(*value);
                    sys::PJRT_NamedValue_kFloat
                }
                Self::Bool(value) => {
                    union.cast::<bool>().write(*value);
                    sys::PJRT_NamedValue_kBool
                }
            }
        };
        named.type_ = kind;
        named
    }

    /// Reads a list of named values.
    pub fn read_list(list: *const sys::PJRT_NamedValue, len: usize) -> BTreeMap<String, Value> {
        let read = |named: &sys::PJRT_NamedValue| {
            let mut copy = *named;
            let union = union_of(&mut copy);
            // SAFETY: the type says which member of the union is set.
            let value = unsafe {
                match named.type_ {
                    sys::PJRT_NamedValue_kString => {
                        Self::Text(text(union.cast::<*const c_char>().read(), named.value_size))
                    }
                    sys::PJRT_NamedValue_kInt64 => Self::Integer(union.cast::<i64>().read()),
                    sys::PJRT_NamedValue_kInt64List => {
                        Self::Integers(slice(union.cast::<*const i64>().read(), named.value_size).to_vec())
                    }
                    sys::PJRT_NamedValue_kFloat => Self::Float(union.cast::<f32>().read()),
                    sys::PJRT_NamedValue_kBool => Self::Bool(union.cast::<bool>().read()),
                    other => panic!("named value of unknown type {}", other.0),
                }
            };
            (text(named.name, named.name_size), value)
        };
        slice(list, len).iter().map(read).collect()
    }
}

/// The address of the union inside a named value (bindgen does not name it).
fn union_of(named: &mut sys::PJRT_NamedValue) -> *mut u8 {
    let offset = offset_of!(sys::PJRT_NamedValue, value_size) - size_of::<u64>();
    (&raw mut *named).cast::<u8>().wrapping_add(offset)
}

/// An owned `PJRT_Client`.
pub struct Client {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_Client,
}

// SAFETY: clients are thread-safe by contract.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

macro_rules! handle {
    ($name:ident, $raw:ident) => {
        #[doc = concat!("A borrowed `", stringify!($raw), "`, compared by address.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            plugin: PluginRef,
            raw: *mut sys::$raw,
        }
        // SAFETY: the client owns the object, which is immutable.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
        impl $name {
            /// The handle of an object of `plugin`'s.
            pub fn new(plugin: &'static Plugin, raw: *mut sys::$raw) -> Self {
                Self { plugin: PluginRef(plugin), raw }
            }
            /// The handle's address.
            pub fn raw(&self) -> *mut sys::$raw {
                self.raw
            }
        }
    };
}

#[derive(Clone, Copy)]
struct PluginRef(&'static Plugin);

impl std::fmt::Debug for PluginRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("plugin")
    }
}
impl PartialEq for PluginRef {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}
impl Eq for PluginRef {}

handle!(Device, PJRT_Device);
handle!(Memory, PJRT_Memory);

impl Client {
    /// A client of the library under test with `devices` devices and further `options`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn create(devices: i64, options: &[(&str, Value)]) -> Result<Self> {
        Self::create_on(plugin(), devices, options)
    }

    /// A client of `plugin`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn create_on(plugin: &'static Plugin, devices: i64, options: &[(&str, Value)]) -> Result<Self> {
        let count = [("cpu_device_count", Value::Integer(devices))];
        Self::create_with(plugin, count.iter().chain(options))
    }

    /// A client of `plugin` that is given `options` and nothing else: an engine for GPUs refuses `cpu_device_count`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn create_with<'a>(
        plugin: &'static Plugin,
        options: impl IntoIterator<Item = &'a (&'a str, Value)>,
    ) -> Result<Self> {
        let named: Vec<_> = options.into_iter().map(|(name, value)| value.named(name)).collect();
        let args = call!(plugin, PJRT_Client_Create { create_options: named.as_ptr(), num_options: named.len() })?;
        assert!(!args.client.is_null(), "PJRT_Client_Create succeeded without a client");
        Ok(Self { plugin, raw: args.client })
    }

    /// A client with one device and default settings.
    pub fn one() -> Self {
        Self::create(1, &[]).expect("PJRT_Client_Create")
    }

    /// The plugin.
    pub fn plugin(&self) -> &'static Plugin {
        self.plugin
    }

    /// The handle.
    pub fn raw(&self) -> *mut sys::PJRT_Client {
        self.raw
    }

    /// `PJRT_Client_PlatformName`.
    pub fn platform_name(&self) -> String {
        let args = call!(self.plugin, PJRT_Client_PlatformName { client: self.raw }).expect("PlatformName");
        text(args.platform_name, args.platform_name_size)
    }

    /// `PJRT_Client_PlatformVersion`.
    pub fn platform_version(&self) -> String {
        let args = call!(self.plugin, PJRT_Client_PlatformVersion { client: self.raw }).expect("PlatformVersion");
        text(args.platform_version, args.platform_version_size)
    }

    /// `PJRT_Client_Devices`.
    pub fn devices(&self) -> Vec<Device> {
        let args = call!(self.plugin, PJRT_Client_Devices { client: self.raw }).expect("Devices");
        slice(args.devices, args.num_devices).iter().map(|&raw| Device::new(self.plugin, raw)).collect()
    }

    /// `PJRT_Client_AddressableDevices`.
    pub fn addressable_devices(&self) -> Vec<Device> {
        let args = call!(self.plugin, PJRT_Client_AddressableDevices { client: self.raw }).expect("AddressableDevices");
        let devices = slice(args.addressable_devices, args.num_addressable_devices);
        devices.iter().map(|&raw| Device::new(self.plugin, raw)).collect()
    }

    /// `PJRT_Client_AddressableMemories`.
    pub fn memories(&self) -> Vec<Memory> {
        let args =
            call!(self.plugin, PJRT_Client_AddressableMemories { client: self.raw }).expect("AddressableMemories");
        let memories = slice(args.addressable_memories, args.num_addressable_memories);
        memories.iter().map(|&raw| Memory::new(self.plugin, raw)).collect()
    }

    /// The first addressable device.
    pub fn device(&self) -> Device {
        self.addressable_devices()[0]
    }

    /// The statistics of the first device.
    ///
    /// # Errors
    /// The plugin's.
    pub fn stats(&self) -> Result<Stats> {
        self.device().stats()
    }

    /// Copies values to the first device, as a framework's plain array creation does, and waits.
    ///
    /// # Errors
    /// The plugin's.
    pub fn put<T: Element>(&self, values: &[T], dims: &[i64]) -> Result<Buffer> {
        self.put_on(self.device(), values, dims)
    }

    /// Copies values to `device` and waits.
    ///
    /// # Errors
    /// The plugin's.
    pub fn put_on<T: Element>(&self, device: Device, values: &[T], dims: &[i64]) -> Result<Buffer> {
        let array = HostArray::of(values, dims).on_device(device);
        let (buffer, done) = self.from_host(&array, Semantics::OnlyDuringCall)?;
        done.wait()?;
        Ok(buffer)
    }

    /// `PJRT_Client_BufferFromHostBuffer`: the buffer and the event after which the host memory is the caller's again.
    ///
    /// # Errors
    /// The plugin's.
    pub fn from_host(&self, array: &HostArray, semantics: Semantics) -> Result<(Buffer, Event)> {
        let args = call!(
            self.plugin,
            PJRT_Client_BufferFromHostBuffer {
                client: self.raw,
                data: array.data,
                type_: array.element_type.raw(),
                dims: array.dims.as_ptr(),
                num_dims: array.dims.len(),
                byte_strides: array.strides.as_ref().map_or(ptr::null(), |strides| strides.as_ptr()),
                num_byte_strides: array.strides.as_ref().map_or(0, Vec::len),
                host_buffer_semantics: sys::PJRT_HostBufferSemantics(semantics as u32),
                device: array.device.map_or(ptr::null_mut(), |device| device.raw()),
                memory: array.memory.map_or(ptr::null_mut(), |memory| memory.raw()),
            }
        )?;
        let buffer = Buffer::own(self.plugin, args.buffer);
        let done = Event::own(self.plugin, args.done_with_host_buffer).expect("done_with_host_buffer is never null");
        Ok((buffer, done))
    }

    /// `PJRT_Client_Compile`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn compile(&self, program: &Program) -> Result<Loaded> {
        let c = program.raw();
        let args = call!(
            self.plugin,
            PJRT_Client_Compile {
                client: self.raw,
                program: &raw const c,
                compile_options: program.options().as_ptr().cast(),
                compile_options_size: program.options().len(),
            }
        )?;
        Ok(Loaded::own(self.plugin, args.executable))
    }

    /// `PJRT_Executable_DeserializeAndLoad`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn deserialize(&self, blob: &[u8]) -> Result<Loaded> {
        let args = call!(
            self.plugin,
            PJRT_Executable_DeserializeAndLoad {
                client: self.raw,
                serialized_executable: blob.as_ptr().cast(),
                serialized_executable_size: blob.len(),
            }
        )?;
        Ok(Loaded::own(self.plugin, args.loaded_executable))
    }

    /// `PJRT_Client_CreateBuffersForAsyncHostToDevice` for arrays of one type in the first device's default memory.
    ///
    /// # Errors
    /// The plugin's.
    pub fn transfer(&self, element_type: crate::ElementType, shapes: &[&[i64]]) -> Result<Transfer> {
        Transfer::create(self, element_type, shapes)
    }

    /// Destroys the client and gives the outcome.
    ///
    /// # Errors
    /// The plugin's.
    pub fn destroy(self) -> Result<()> {
        let raw = self.raw;
        let plugin = self.plugin;
        std::mem::forget(self);
        call!(plugin, PJRT_Client_Destroy { client: raw }).map(drop)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        call!(self.plugin, PJRT_Client_Destroy { client: self.raw }).expect("PJRT_Client_Destroy");
    }
}

impl Device {
    /// `PJRT_Device_DefaultMemory`.
    pub fn default_memory(&self) -> Memory {
        let args = call!(self.plugin.0, PJRT_Device_DefaultMemory { device: self.raw }).expect("DefaultMemory");
        Memory::new(self.plugin.0, args.memory)
    }

    /// `PJRT_Device_AddressableMemories`.
    pub fn memories(&self) -> Vec<Memory> {
        let args =
            call!(self.plugin.0, PJRT_Device_AddressableMemories { device: self.raw }).expect("AddressableMemories");
        slice(args.memories, args.num_memories).iter().map(|&raw| Memory::new(self.plugin.0, raw)).collect()
    }

    /// `PJRT_Device_LocalHardwareId`.
    pub fn local_hardware_id(&self) -> i32 {
        call!(self.plugin.0, PJRT_Device_LocalHardwareId { device: self.raw })
            .expect("LocalHardwareId")
            .local_hardware_id
    }

    /// `PJRT_Device_IsAddressable`.
    pub fn is_addressable(&self) -> bool {
        call!(self.plugin.0, PJRT_Device_IsAddressable { device: self.raw }).expect("IsAddressable").is_addressable
    }

    /// `PJRT_Device_GetDescription`.
    pub fn description(&self) -> *mut sys::PJRT_DeviceDescription {
        call!(self.plugin.0, PJRT_Device_GetDescription { device: self.raw })
            .expect("GetDescription")
            .device_description
    }

    /// `PJRT_DeviceDescription_Id`.
    pub fn id(&self) -> i32 {
        call!(self.plugin.0, PJRT_DeviceDescription_Id { device_description: self.description() }).expect("Id").id
    }

    /// `PJRT_Device_MemoryStats`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn stats(&self) -> Result<Stats> {
        let args = call!(self.plugin.0, PJRT_Device_MemoryStats { device: self.raw })?;
        let set = |is_set: bool, value: i64| is_set.then_some(value);
        Ok(Stats {
            bytes_in_use: args.bytes_in_use,
            peak_bytes_in_use: set(args.peak_bytes_in_use_is_set, args.peak_bytes_in_use),
            num_allocs: set(args.num_allocs_is_set, args.num_allocs),
            largest_alloc_size: set(args.largest_alloc_size_is_set, args.largest_alloc_size),
            bytes_limit: set(args.bytes_limit_is_set, args.bytes_limit),
            bytes_reserved: set(args.bytes_reserved_is_set, args.bytes_reserved),
            largest_free_block_bytes: set(args.largest_free_block_bytes_is_set, args.largest_free_block_bytes),
            pool_bytes: set(args.pool_bytes_is_set, args.pool_bytes),
            peak_pool_bytes: set(args.peak_pool_bytes_is_set, args.peak_pool_bytes),
        })
    }
}

/// What `PJRT_Device_MemoryStats` says; fields that it does not set are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the C struct's")]
pub struct Stats {
    pub bytes_in_use: i64,
    pub peak_bytes_in_use: Option<i64>,
    pub num_allocs: Option<i64>,
    pub largest_alloc_size: Option<i64>,
    pub bytes_limit: Option<i64>,
    pub bytes_reserved: Option<i64>,
    pub largest_free_block_bytes: Option<i64>,
    pub pool_bytes: Option<i64>,
    pub peak_pool_bytes: Option<i64>,
}

impl Memory {
    /// `PJRT_Memory_Id`.
    pub fn id(&self) -> i32 {
        call!(self.plugin.0, PJRT_Memory_Id { memory: self.raw }).expect("Memory_Id").id
    }

    /// `PJRT_Memory_Kind`.
    pub fn kind(&self) -> String {
        let args = call!(self.plugin.0, PJRT_Memory_Kind { memory: self.raw }).expect("Memory_Kind");
        text(args.kind, args.kind_size)
    }

    /// `PJRT_Memory_AddressableByDevices`.
    pub fn devices(&self) -> Vec<Device> {
        let args =
            call!(self.plugin.0, PJRT_Memory_AddressableByDevices { memory: self.raw }).expect("AddressableByDevices");
        slice(args.devices, args.num_devices).iter().map(|&raw| Device::new(self.plugin.0, raw)).collect()
    }
}

/// Asserts that creating a client with `options` fails, and gives the failure.
#[track_caller]
pub fn refused(options: &[(&str, Value)]) -> Failure {
    match Client::create(1, options) {
        Ok(_) => panic!("a client was created with {options:?}"),
        Err(failure) => failure,
    }
}

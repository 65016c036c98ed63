//! Handles of the library under test. What their destruction says is noted, as any other error: it may be the one that
//! was injected. (The handles of `plugin_tests` take an error there for a failed test.)

use std::{ptr, sync::Mutex};

use plugin_tests::{ElementType, Failure, Program, Result, Value, call, plugin, sized, sys};

/// What happened while a workload ran.
#[derive(Debug)]
pub enum Note {
    /// A call failed, in this step.
    Failed(&'static str, Failure),
    /// Something is wrong though no call failed.
    Wrong(String),
}

static NOTES: Mutex<Vec<Note>> = Mutex::new(Vec::new());

/// Notes that something is wrong.
pub fn wrong(what: String) {
    NOTES.lock().expect("no holder panics").push(Note::Wrong(what));
}

/// Notes an error.
pub fn failed(step: &'static str, failure: Failure) {
    NOTES.lock().expect("no holder panics").push(Note::Failed(step, failure));
}

/// All that was noted since the last time.
pub fn notes() -> Vec<Note> {
    std::mem::take(&mut NOTES.lock().expect("no holder panics"))
}

/// One part of a workload: its error is noted, and the parts behind it run all the same.
pub fn step<T>(name: &'static str, body: impl FnOnce() -> Result<T>) -> Option<T> {
    body().map_err(|failure| failed(name, failure)).ok()
}

/// Elements of most arrays.
pub const N: usize = 1024;
/// Their dimensions.
pub const DIMS: [i64; 1] = [N as i64];

/// `start, start + 1, ...`
pub fn ramp(start: f32) -> Vec<f32> {
    (0..N).map(|at| start + at as f32).collect()
}

macro_rules! held {
    ($(#[$doc:meta])* $name:ident $raw:ident: $destroy:ident $field:ident) => {
        $(#[$doc])*
        pub struct $name(pub *mut sys::$raw);

        impl Drop for $name {
            fn drop(&mut self) {
                if let Err(failure) = call!(plugin(), $destroy { $field: self.0 }) {
                    failed(stringify!($destroy), failure);
                }
            }
        }
    };
}

held! { /// A client.
Client PJRT_Client: PJRT_Client_Destroy client }
held! { /// A buffer.
Array PJRT_Buffer: PJRT_Buffer_Destroy buffer }
held! { /// An event.
Event PJRT_Event: PJRT_Event_Destroy event }
held! { /// A loaded program.
Loaded PJRT_LoadedExecutable: PJRT_LoadedExecutable_Destroy executable }
held! { /// The description of a program.
Description PJRT_Executable: PJRT_Executable_Destroy executable }
held! { /// A transfer manager.
Manager PJRT_AsyncHostToDeviceTransferManager: PJRT_AsyncHostToDeviceTransferManager_Destroy transfer_manager }

impl Client {
    /// `PJRT_Client_Create`.
    pub fn create(options: &[(&str, Value)]) -> Result<Self> {
        let named: Vec<_> = options.iter().map(|(name, value)| value.named(name)).collect();
        let args = call!(plugin(), PJRT_Client_Create { create_options: named.as_ptr(), num_options: named.len() })?;
        Ok(Self(args.client))
    }

    /// The devices.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let args = call!(plugin(), PJRT_Client_AddressableDevices { client: self.0 })?;
        // SAFETY: the list is the client's, as long as it says.
        let devices = unsafe { sys::slice(args.addressable_devices, args.num_addressable_devices) };
        devices.iter().map(|&device| Device::of(device)).collect()
    }

    /// `PJRT_Client_Compile`.
    pub fn compile(&self, program: &Program) -> Result<Loaded> {
        let code = program.raw();
        let args = call!(
            plugin(),
            PJRT_Client_Compile {
                client: self.0,
                program: &raw const code,
                compile_options: program.options().as_ptr().cast(),
                compile_options_size: program.options().len(),
            }
        )?;
        Ok(Loaded(args.executable))
    }

    /// `PJRT_Executable_DeserializeAndLoad`.
    pub fn deserialize(&self, blob: &[u8]) -> Result<Loaded> {
        let args = call!(
            plugin(),
            PJRT_Executable_DeserializeAndLoad {
                client: self.0,
                serialized_executable: blob.as_ptr().cast(),
                serialized_executable_size: blob.len(),
            }
        )?;
        Ok(Loaded(args.loaded_executable))
    }

    /// `PJRT_Client_BufferFromHostBuffer` of a dense array, which stays as it is until the buffer is gone.
    pub fn upload(&self, device: Device, values: &[f32], dims: &[i64], semantics: u32) -> Result<(Array, Event)> {
        let args = call!(
            plugin(),
            PJRT_Client_BufferFromHostBuffer {
                client: self.0,
                data: values.as_ptr().cast(),
                type_: ElementType::F32.raw(),
                dims: dims.as_ptr(),
                num_dims: dims.len(),
                host_buffer_semantics: sys::PJRT_HostBufferSemantics(semantics),
                device: device.device,
            }
        )?;
        Ok((Array(args.buffer), Event(args.done_with_host_buffer)))
    }

    /// A copy of values, once it is made.
    pub fn put(&self, device: Device, values: &[f32], dims: &[i64]) -> Result<Array> {
        let (array, done) = self.upload(device, values, dims, 0)?;
        done.wait()?;
        Ok(array)
    }

    /// `PJRT_Client_CreateUninitializedBuffer`.
    pub fn uninitialized(&self, device: Device, bytes: i64) -> Result<Array> {
        let args = call!(
            plugin(),
            PJRT_Client_CreateUninitializedBuffer {
                client: self.0,
                shape_dims: &raw const bytes,
                shape_num_dims: 1,
                shape_element_type: ElementType::U8.raw(),
                memory: device.memory,
            }
        )?;
        Ok(Array(args.buffer))
    }

    /// `PJRT_Client_CreateBuffersForAsyncHostToDevice` for two arrays of [`DIMS`].
    pub fn transfer(&self, device: Device) -> Result<Manager> {
        let mut spec = sized!(PJRT_ShapeSpec);
        (spec.dims, spec.num_dims, spec.element_type) = (DIMS.as_ptr(), 1, ElementType::F32.raw());
        let mut specs = [spec, spec];
        let args = call!(
            plugin(),
            PJRT_Client_CreateBuffersForAsyncHostToDevice {
                client: self.0,
                shape_specs: specs.as_mut_ptr(),
                num_shape_specs: specs.len(),
                memory: device.memory,
            }
        )?;
        Ok(Manager(args.transfer_manager))
    }

    /// `PJRT_Client_CreateAliasBuffer`, and its fulfilment by an array of the same kind.
    pub fn alias(&self, device: Device, of: &Array) -> Result<Array> {
        let args = call!(
            plugin(),
            PJRT_Client_CreateAliasBuffer {
                client: self.0,
                memory: device.memory,
                shape_dims: DIMS.as_ptr(),
                shape_num_dims: 1,
                shape_element_type: ElementType::F32.raw(),
            }
        )?;
        let alias = Array(args.alias_buffer);
        call!(
            plugin(),
            PJRT_Client_FulfillAliasBuffer {
                client: self.0,
                buffer: of.0,
                fulfill_alias_buffer_cb: args.fulfill_alias_buffer_cb,
            }
        )?;
        Ok(alias)
    }
}

/// A device, its own memory and the last of its others.
#[derive(Clone, Copy)]
pub struct Device {
    pub device: *mut sys::PJRT_Device,
    pub memory: *mut sys::PJRT_Memory,
    pub other: *mut sys::PJRT_Memory,
}

impl Device {
    fn of(device: *mut sys::PJRT_Device) -> Result<Self> {
        let memory = call!(plugin(), PJRT_Device_DefaultMemory { device: device })?.memory;
        let args = call!(plugin(), PJRT_Device_AddressableMemories { device: device })?;
        // SAFETY: the list is the device's, as long as it says.
        let memories = unsafe { sys::slice(args.memories, args.num_memories) };
        let other = memories.iter().copied().rfind(|&other| other != memory).unwrap_or(memory);
        Ok(Self { device, memory, other })
    }

    /// `PJRT_Device_MemoryStats`: bytes in use.
    pub fn bytes_in_use(self) -> Result<i64> {
        Ok(call!(plugin(), PJRT_Device_MemoryStats { device: self.device })?.bytes_in_use)
    }
}

impl Event {
    /// `PJRT_Event_Await`, after `PJRT_Event_IsReady`.
    pub fn wait(&self) -> Result<()> {
        // Whatever fails, what is behind the event is over when this returns.
        let asked = call!(plugin(), PJRT_Event_IsReady { event: self.0 });
        call!(plugin(), PJRT_Event_Await { event: self.0 })?;
        asked.map(drop)
    }
}

impl Array {
    /// `PJRT_Buffer_ReadyEvent`.
    pub fn ready(&self) -> Result<Event> {
        Ok(Event(call!(plugin(), PJRT_Buffer_ReadyEvent { buffer: self.0 })?.event))
    }

    /// The contents, by `PJRT_Buffer_ToHostBuffer`.
    pub fn read(&self) -> Result<Vec<f32>> {
        let size = call!(plugin(), PJRT_Buffer_ToHostBuffer { src: self.0 })?.dst_size;
        let mut values = vec![0_f32; size / size_of::<f32>()];
        let args =
            call!(plugin(), PJRT_Buffer_ToHostBuffer { src: self.0, dst: values.as_mut_ptr().cast(), dst_size: size })?;
        Event(args.event).wait()?;
        Ok(values)
    }

    /// The contents, by `PJRT_Buffer_CopyRawToHost`.
    pub fn read_raw(&self) -> Result<Vec<f32>> {
        let mut values = ramp(-1.0);
        let args = call!(
            plugin(),
            PJRT_Buffer_CopyRawToHost {
                buffer: self.0,
                dst: values.as_mut_ptr().cast(),
                offset: 0,
                transfer_size: size_of_val(&values[..]) as i64,
            }
        )?;
        Event(args.event).wait()?;
        Ok(values)
    }

    /// Notes it if the contents are not these.
    pub fn holds(&self, expected: &[f32], what: &str) -> Result<()> {
        same(&self.read()?, expected, what);
        Ok(())
    }

    /// `PJRT_Buffer_CopyToDevice`.
    pub fn copy_to_device(&self, device: Device) -> Result<Self> {
        Ok(Self(call!(plugin(), PJRT_Buffer_CopyToDevice { buffer: self.0, dst_device: device.device })?.dst_buffer))
    }

    /// `PJRT_Buffer_CopyToMemory`.
    pub fn copy_to_memory(&self, memory: *mut sys::PJRT_Memory) -> Result<Self> {
        Ok(Self(call!(plugin(), PJRT_Buffer_CopyToMemory { buffer: self.0, dst_memory: memory })?.dst_buffer))
    }

    /// `PJRT_Buffer_Delete`.
    pub fn delete(&self) -> Result<()> {
        call!(plugin(), PJRT_Buffer_Delete { buffer: self.0 }).map(drop)
    }

    /// Where the bytes are at this moment.
    pub fn place(&self) -> Result<usize> {
        Ok(call!(plugin(), PJRT_Buffer_OpaqueDeviceMemoryDataPointer { buffer: self.0 })?.device_memory_ptr.addr())
    }
}

/// Notes it if values are not these.
pub fn same(found: &[f32], expected: &[f32], what: &str) {
    if found != expected {
        let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
        wrong(format!("{what}: {} values instead of {}, the first other one at {at:?}", found.len(), expected.len()));
    }
}

impl Loaded {
    /// `PJRT_LoadedExecutable_GetExecutable`.
    pub fn description(&self) -> Result<Description> {
        Ok(Description(call!(plugin(), PJRT_LoadedExecutable_GetExecutable { loaded_executable: self.0 })?.executable))
    }

    /// `PJRT_LoadedExecutable_Execute`: so many results for each device, and the completion events.
    pub fn execute(&self, arguments: &[&[&Array]], results: usize) -> Result<(Vec<Vec<Array>>, Vec<Event>)> {
        let raw: Vec<Vec<_>> = arguments.iter().map(|list| list.iter().map(|array| array.0).collect()).collect();
        let argument_lists: Vec<*const *mut sys::PJRT_Buffer> = raw.iter().map(Vec::as_ptr).collect();
        let mut outputs = vec![vec![ptr::null_mut::<sys::PJRT_Buffer>(); results]; raw.len()];
        let output_lists: Vec<*mut *mut sys::PJRT_Buffer> = outputs.iter_mut().map(Vec::as_mut_ptr).collect();
        let mut complete = vec![ptr::null_mut::<sys::PJRT_Event>(); raw.len()];
        let mut options = sized!(PJRT_ExecuteOptions);
        call!(
            plugin(),
            PJRT_LoadedExecutable_Execute {
                executable: self.0,
                options: &raw mut options,
                argument_lists: argument_lists.as_ptr(),
                num_devices: raw.len(),
                num_args: raw.first().map_or(0, Vec::len),
                output_lists: output_lists.as_ptr(),
                device_complete_events: complete.as_mut_ptr(),
            }
        )?;
        let outputs = outputs.into_iter().map(|list| list.into_iter().map(Array).collect()).collect();
        Ok((outputs, complete.into_iter().map(Event).collect()))
    }

    /// The results on one device, once it is done.
    pub fn run(&self, arguments: &[&Array], results: usize) -> Result<Vec<Array>> {
        let (mut outputs, complete) = self.execute(&[arguments], results)?;
        complete.iter().try_for_each(Event::wait)?;
        Ok(outputs.remove(0))
    }
}

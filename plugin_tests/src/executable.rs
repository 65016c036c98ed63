//! Executables: run, inspect, serialise.

use std::{marker::PhantomData, ptr};

use crate::{
    Plugin, args,
    buffer::{Buffer, ElementType},
    call,
    client::Device,
    event::Event,
    raw::{Result, bytes, slice, text},
    sized, sys,
};

/// An owned `PJRT_LoadedExecutable`.
pub struct Loaded {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_LoadedExecutable,
}

// SAFETY: executables are thread-safe by contract.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// What an execution gave: for each device its results, and its completion event when one was asked for.
pub struct Run {
    /// Results by device.
    pub outputs: Vec<Vec<Buffer>>,
    /// Completion events by device; empty when none were asked for.
    pub complete: Vec<Event>,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "run with {:?} results", self.outputs.iter().map(Vec::len).collect::<Vec<_>>())
    }
}

impl Run {
    /// The results of a single device's run.
    pub fn single(mut self) -> Vec<Buffer> {
        assert_eq!(self.outputs.len(), 1, "one device");
        self.outputs.remove(0)
    }

    /// The only result of a single device's run.
    pub fn only(self) -> Buffer {
        let mut outputs = self.single();
        assert_eq!(outputs.len(), 1, "one result");
        outputs.remove(0)
    }
}

/// How to execute.
#[derive(Clone, Copy, Default)]
pub struct RunOptions<'a> {
    /// Ask for completion events.
    pub complete: bool,
    /// `non_donatable_input_indices`.
    pub keep: &'a [i64],
    /// An execute context.
    pub context: *mut sys::PJRT_ExecuteContext,
    /// One of the program's devices, to run on alone.
    pub device: Option<Device>,
}

impl Loaded {
    /// Takes ownership.
    pub fn own(plugin: &'static Plugin, raw: *mut sys::PJRT_LoadedExecutable) -> Self {
        assert!(!raw.is_null(), "a call succeeded without an executable");
        Self { plugin, raw }
    }

    /// The handle.
    pub fn raw(&self) -> *mut sys::PJRT_LoadedExecutable {
        self.raw
    }

    /// Runs on one device without completion events.
    ///
    /// # Errors
    /// The plugin's.
    pub fn run(&self, arguments: &[&Buffer]) -> Result<Vec<Buffer>> {
        Ok(self.execute(&[arguments], RunOptions::default())?.single())
    }

    /// Runs on one device and gives the only result.
    ///
    /// # Errors
    /// The plugin's.
    pub fn run1(&self, arguments: &[&Buffer]) -> Result<Buffer> {
        Ok(self.execute(&[arguments], RunOptions::default())?.only())
    }

    /// `PJRT_LoadedExecutable_Execute`: `arguments[device][argument]`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn execute(&self, arguments: &[&[&Buffer]], how: RunOptions<'_>) -> Result<Run> {
        let raw: Vec<Vec<_>> = arguments.iter().map(|list| list.iter().map(|buffer| buffer.raw()).collect()).collect();
        self.execute_raw(&raw, how)
    }

    /// The same with raw handles.
    ///
    /// # Errors
    /// The plugin's.
    pub fn execute_raw(&self, arguments: &[Vec<*mut sys::PJRT_Buffer>], how: RunOptions<'_>) -> Result<Run> {
        let devices = arguments.len();
        let results = self.executable().num_outputs();
        let argument_lists: Vec<*const *mut sys::PJRT_Buffer> = arguments.iter().map(Vec::as_ptr).collect();
        let mut outputs = vec![vec![ptr::null_mut::<sys::PJRT_Buffer>(); results]; devices];
        let output_lists: Vec<*mut *mut sys::PJRT_Buffer> = outputs.iter_mut().map(Vec::as_mut_ptr).collect();
        let mut complete = vec![ptr::null_mut::<sys::PJRT_Event>(); devices];
        let mut options = sized!(PJRT_ExecuteOptions);
        options.non_donatable_input_indices = how.keep.as_ptr();
        options.num_non_donatable_input_indices = how.keep.len();
        options.context = how.context;
        call!(
            self.plugin,
            PJRT_LoadedExecutable_Execute {
                executable: self.raw,
                options: &raw mut options,
                argument_lists: argument_lists.as_ptr(),
                num_devices: devices,
                num_args: arguments.first().map_or(0, Vec::len),
                output_lists: output_lists.as_ptr(),
                device_complete_events: if how.complete { complete.as_mut_ptr() } else { ptr::null_mut() },
                execute_device: how.device.map_or(ptr::null_mut(), |device| device.raw()),
            }
        )?;
        let own = |list: Vec<_>| list.into_iter().map(|raw| Buffer::own(self.plugin, raw)).collect();
        Ok(Run {
            outputs: outputs.into_iter().map(own).collect(),
            complete: complete.into_iter().filter_map(|raw| Event::own(self.plugin, raw)).collect(),
        })
    }

    /// `PJRT_LoadedExecutable_GetExecutable`.
    pub fn executable(&self) -> Executable<'_> {
        let args = call!(self.plugin, PJRT_LoadedExecutable_GetExecutable { loaded_executable: self.raw })
            .expect("GetExecutable");
        assert!(!args.executable.is_null(), "GetExecutable succeeded without an executable");
        Executable { plugin: self.plugin, raw: args.executable, loaded: PhantomData }
    }

    /// `PJRT_LoadedExecutable_AddressableDevices`, by address.
    pub fn devices(&self) -> Vec<*mut sys::PJRT_Device> {
        let args = call!(self.plugin, PJRT_LoadedExecutable_AddressableDevices { executable: self.raw })
            .expect("AddressableDevices");
        slice(args.addressable_devices, args.num_addressable_devices).to_vec()
    }

    /// `PJRT_LoadedExecutable_Delete`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn delete(&self) -> Result<()> {
        call!(self.plugin, PJRT_LoadedExecutable_Delete { executable: self.raw }).map(drop)
    }

    /// `PJRT_LoadedExecutable_IsDeleted`.
    pub fn is_deleted(&self) -> bool {
        call!(self.plugin, PJRT_LoadedExecutable_IsDeleted { executable: self.raw }).expect("IsDeleted").is_deleted
    }

    /// `PJRT_LoadedExecutable_Fingerprint`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn fingerprint(&self) -> Result<String> {
        let args = call!(self.plugin, PJRT_LoadedExecutable_Fingerprint { executable: self.raw })?;
        Ok(text(args.executable_fingerprint, args.executable_fingerprint_size))
    }

    /// `PJRT_LoadedExecutable_GetDeviceAssignment`: the serialised assignment.
    ///
    /// # Errors
    /// The plugin's.
    pub fn device_assignment(&self) -> Result<Vec<u8>> {
        let args = call!(self.plugin, PJRT_LoadedExecutable_GetDeviceAssignment { executable: self.raw })?;
        let assignment = bytes(args.serialized_bytes, args.serialized_bytes_size).to_vec();
        if let Some(delete) = args.serialized_device_assignment_deleter {
            // SAFETY: the deleter belongs to this object, which is not used again.
            unsafe { delete(args.serialized_device_assignment) };
        }
        Ok(assignment)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        call!(self.plugin, PJRT_LoadedExecutable_Destroy { executable: self.raw })
            .expect("PJRT_LoadedExecutable_Destroy");
    }
}

/// An owned `PJRT_Executable`. Engines of 0.81 keep a bare pointer in it, so it must not outlive the loaded executable.
pub struct Executable<'a> {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_Executable,
    loaded: PhantomData<&'a Loaded>,
}

/// Sizes of `PJRT_Executable_GetCompiledMemoryStats`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompiledSizes {
    /// All arguments.
    pub argument: i64,
    /// All results.
    pub output: i64,
    /// Results that reuse arguments.
    pub alias: i64,
    /// Temporary memory.
    pub temp: i64,
}

impl Executable<'_> {
    /// The handle.
    pub fn raw(&self) -> *mut sys::PJRT_Executable {
        self.raw
    }

    /// `PJRT_Executable_NumOutputs`.
    pub fn num_outputs(&self) -> usize {
        call!(self.plugin, PJRT_Executable_NumOutputs { executable: self.raw }).expect("NumOutputs").num_outputs
    }

    /// `PJRT_Executable_NumReplicas` and `PJRT_Executable_NumPartitions`.
    pub fn replicas_and_partitions(&self) -> (usize, usize) {
        let replicas = call!(self.plugin, PJRT_Executable_NumReplicas { executable: self.raw }).expect("NumReplicas");
        let partitions =
            call!(self.plugin, PJRT_Executable_NumPartitions { executable: self.raw }).expect("NumPartitions");
        (replicas.num_replicas, partitions.num_partitions)
    }

    /// `PJRT_Executable_Name`.
    pub fn name(&self) -> String {
        let args = call!(self.plugin, PJRT_Executable_Name { executable: self.raw }).expect("Name");
        text(args.executable_name, args.executable_name_size)
    }

    /// `PJRT_Executable_Fingerprint`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn fingerprint(&self) -> Result<String> {
        let args = call!(self.plugin, PJRT_Executable_Fingerprint { executable: self.raw })?;
        Ok(text(args.executable_fingerprint, args.executable_fingerprint_size))
    }

    /// `PJRT_Executable_OutputElementTypes`.
    pub fn output_types(&self) -> Vec<ElementType> {
        let args = call!(self.plugin, PJRT_Executable_OutputElementTypes { executable: self.raw })
            .expect("OutputElementTypes");
        slice(args.output_types, args.num_output_types).iter().map(|&raw| ElementType(raw.0)).collect()
    }

    /// `PJRT_Executable_OutputDimensions`.
    pub fn output_dims(&self) -> Vec<Vec<i64>> {
        let args =
            call!(self.plugin, PJRT_Executable_OutputDimensions { executable: self.raw }).expect("OutputDimensions");
        let sizes = slice(args.dim_sizes, args.num_outputs);
        let mut rest = slice(args.dims, sizes.iter().sum());
        let mut all = Vec::new();
        for &size in sizes {
            let (dims, tail) = rest.split_at(size);
            all.push(dims.to_vec());
            rest = tail;
        }
        all
    }

    /// `PJRT_Executable_OutputMemoryKinds`.
    ///
    /// # Errors
    /// The plugin's; the CPU engine of 0.81 has no such query.
    pub fn output_memory_kinds(&self) -> Result<Vec<String>> {
        let args = call!(self.plugin, PJRT_Executable_OutputMemoryKinds { executable: self.raw })?;
        let sizes = slice(args.memory_kind_sizes, args.num_outputs);
        Ok(slice(args.memory_kinds, args.num_outputs)
            .iter()
            .zip(sizes)
            .map(|(&kind, &size)| text(kind, size))
            .collect())
    }

    /// `PJRT_Executable_GetCompiledMemoryStats`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn sizes(&self) -> Result<CompiledSizes> {
        let args = call!(self.plugin, PJRT_Executable_GetCompiledMemoryStats { executable: self.raw })?;
        Ok(CompiledSizes {
            argument: args.argument_size_in_bytes,
            output: args.output_size_in_bytes,
            alias: args.alias_size_in_bytes,
            temp: args.temp_size_in_bytes,
        })
    }

    /// `PJRT_Executable_GetCostAnalysis`: names and values.
    ///
    /// # Errors
    /// The plugin's: XLA's CPU plugins of 0.106 and 0.115 count nothing, and without a Python package nobody else does.
    pub fn cost(&self) -> Result<std::collections::BTreeMap<String, crate::Value>> {
        let args = call!(self.plugin, PJRT_Executable_GetCostAnalysis { executable: self.raw })?;
        Ok(crate::Value::read_list(args.properties, args.num_properties))
    }

    /// `PJRT_Executable_OptimizedProgram`: format and bytes, by the usual two calls.
    ///
    /// # Errors
    /// The plugin's.
    pub fn optimized(&self) -> Result<(String, Vec<u8>)> {
        let mut program = sized!(PJRT_Program);
        call!(self.plugin, PJRT_Executable_OptimizedProgram { executable: self.raw, program: &raw mut program })?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        call!(self.plugin, PJRT_Executable_OptimizedProgram { executable: self.raw, program: &raw mut program })?;
        Ok((text(program.format, program.format_size), code))
    }

    /// `PJRT_Executable_Serialize`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let args = call!(self.plugin, PJRT_Executable_Serialize { executable: self.raw })?;
        let blob = bytes(args.serialized_bytes, args.serialized_bytes_size).to_vec();
        let delete = args.serialized_executable_deleter.expect("Serialize gives a deleter");
        // SAFETY: the deleter belongs to this object, which is not used again.
        unsafe { delete(args.serialized_executable) };
        Ok(blob)
    }
}

impl Drop for Executable<'_> {
    fn drop(&mut self) {
        call!(self.plugin, PJRT_Executable_Destroy { executable: self.raw }).expect("PJRT_Executable_Destroy");
    }
}

/// An owned `PJRT_ExecuteContext`.
pub struct Context {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_ExecuteContext,
}

impl Context {
    /// `PJRT_ExecuteContext_Create`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn create(plugin: &'static Plugin) -> Result<Self> {
        let args = call!(plugin, PJRT_ExecuteContext_Create {})?;
        Ok(Self { plugin, raw: args.context })
    }

    /// The handle.
    pub fn raw(&self) -> *mut sys::PJRT_ExecuteContext {
        self.raw
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut args = args!(PJRT_ExecuteContext_Destroy { context: self.raw });
        let destroy = self.plugin.table().PJRT_ExecuteContext_Destroy.expect("the table that made it");
        // SAFETY: the context is ours.
        let error = unsafe { destroy(&mut args) };
        self.plugin.check(error).expect("PJRT_ExecuteContext_Destroy");
    }
}

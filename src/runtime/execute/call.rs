//! A call of `PJRT_LoadedExecutable_Execute`, checked: its lists as slices, and its options as the engine gets them.

use std::{
    cell::Cell,
    mem::{MaybeUninit, size_of},
    ptr, slice,
};

use smallvec::SmallVec;

use crate::{
    engine::{
        Engine, EngineBuffer, EngineError, EngineEvent, Live, Outcome, Session, failure::required, process, views,
    },
    error::Error,
    runtime::{
        buffer::buffer_ref::BufferRef,
        client::Device,
        executable::loaded::{Donations, Loaded},
        execute::context::{Context, ContextRef},
    },
    sys::{self, CStruct},
};

/// The name that errors give.
pub const NAME: &str = "PJRT_LoadedExecutable_Execute";

/// As much of the caller's options as any version may have: unknown fields at the end are passed on (engine behaviour
/// T25).
#[repr(C)]
pub struct Options {
    known: sys::PJRT_ExecuteOptions,
    tail: [u64; 32],
}

/// See the module's documentation.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// What the caller passed.
    pub(super) args: &'a sys::PJRT_LoadedExecutable_Execute_Args,
    /// The program.
    pub(super) loaded: &'a Loaded,
    /// pjrt-arena's copy of the options, with the engine's context in place of the caller's.
    pub(super) options: *mut sys::PJRT_ExecuteOptions,
    /// The caller's context, if the program reads it.
    pub(super) context: Option<ContextRef<'a>>,
    /// The numbers of the arguments that the caller forbids to consume.
    kept: &'a [i64],
    /// The handles of each device's arguments, `num_args` each.
    lists: &'a [*const *mut sys::PJRT_Buffer],
}

impl<'a> Call<'a> {
    /// Checks what can be checked before anything begins; `room` is where the copy of the options goes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a NULL, a wrong number of arguments or devices, or options that are too short; or the
    /// engine's, which makes no context.
    ///
    /// # Safety
    /// What the caller passed must be as the C API says: lists as long as their numbers, handles and the context alive.
    pub unsafe fn check(
        args: &'a sys::PJRT_LoadedExecutable_Execute_Args,
        loaded: &'a Loaded,
        room: &'a mut MaybeUninit<Options>,
    ) -> Outcome<Self> {
        if let Some(expected) = loaded.program.plan.arguments
            && args.num_args != expected
        {
            // XLA's words, with the user's numbers.
            return Err(Error::invalid_argument(format!(
                "Execution supplied {} buffers but compiled program expected {expected} buffers",
                args.num_args
            ))
            .into());
        }
        let devices = if args.execute_device.is_null() { loaded.devices.len() } else { 1 };
        if args.num_devices != devices {
            return Err(Error::invalid_argument(format!(
                "{NAME}: num_devices is {}, but the program runs on {devices} addressable device(s)",
                args.num_devices
            ))
            .into());
        }
        let mut lists: &[*const *mut sys::PJRT_Buffer] = &[];
        if args.num_args > 0 {
            required(args.argument_lists.cast_mut(), NAME, "argument_lists")?;
            // SAFETY: there are `num_devices` lists, which live during the call, as this function asks.
            lists = unsafe { sys::slice(args.argument_lists, args.num_devices) };
            for list in lists {
                required(list.cast_mut(), NAME, "argument_lists' list of a device")?;
            }
        }
        if !loaded.program.results.is_empty() {
            required(args.output_lists.cast_mut(), NAME, "output_lists")?;
        }
        let options = room.as_mut_ptr().cast::<sys::PJRT_ExecuteOptions>();
        // SAFETY: the options are `struct_size` bytes long, as this function asks; `room` has space for the copy,
        // which is as long as the struct. A context is NULL or a live one of pjrt-arena, and there are as many
        // numbers as the caller says.
        unsafe {
            copy_options(args.options, loaded.client.session.engine, options)?;
            // To the known engines contexts carry nothing but user data.
            let reads_context = !(loaded.program.plan.needs_no_context && process::kind().is_some());
            let context = ContextRef::of((*options).context).filter(|_| reads_context);
            let kept = sys::slice((*options).non_donatable_input_indices, (*options).num_non_donatable_input_indices);
            let call = Self { args, loaded, options, context, kept, lists };
            if args.num_devices > 1 {
                call.refuse_what_is_donated_twice()?;
                call.refuse_what_fits_one_device_alone()?;
            }
            (*options).context = context.as_deref().map(Context::handle).transpose()?.unwrap_or(ptr::null_mut());
            Ok(call)
        }
    }

    /// Refuses an array that is donated and is another argument as well. The engine refuses it too, but one device
    /// after the other: the devices before have begun a program of several devices then, and XLA:CPU waits for the
    /// others for ever, with all such programs behind this one (PJRT 0.81, and jaxlib 0.10.2's own). O(n log d) for n
    /// arguments of which d are donated.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, naming both.
    pub fn refuse_what_is_donated_twice(&self) -> Outcome {
        let Donations::Only(donated) = &self.loaded.program.plan.donations else { return Ok(()) };
        if donated.is_empty() {
            return Ok(());
        }
        for index in 0..self.args.num_devices {
            let arguments = self.arguments(index);
            let donated_buffers = donated.iter().filter(|&&argument| !self.keeps(argument));
            let address =
                |argument: &Option<BufferRef<'_>>| argument.map_or(0, |buffer| ptr::from_ref(buffer.get()).addr());
            let mut donated_buffers: SmallVec<[_; 16]> =
                donated_buffers.filter_map(|&argument| Some((address(arguments.get(argument)?), argument))).collect();
            donated_buffers.sort_unstable();
            for (argument, handle) in arguments.iter().map(address).enumerate() {
                let first = donated_buffers.partition_point(|&(other, _)| other < handle);
                let mut same = donated_buffers[first..].iter().take_while(|&&(other, _)| other == handle);
                if let Some(&(_, donated)) = same.find(|&&(_, donated)| donated != argument) {
                    return Err(Error::invalid_argument(format!(
                        "{NAME}: argument {donated} of device {index} is donated, but it is argument {argument} of the same call too"
                    ))
                    .into());
                }
            }
        }
        Ok(())
    }

    /// Refuses arguments that cannot be right for one device: sizes that differ among the devices, and arrays of
    /// other devices. The engine refuses them too, but when programs of the devices before have begun. It waits for
    /// those with what they were donated (PJRT 0.81), or does not wait at all (0.115): then their memory would be
    /// reused while they write into it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, naming the argument and the device.
    fn refuse_what_fits_one_device_alone(&self) -> Outcome {
        for number in 0..self.args.num_args {
            let mut expected = None;
            for (index, place) in self.loaded.devices.iter().enumerate().take(self.args.num_devices) {
                let buffer = self.argument(index, number)?;
                let size = *expected.get_or_insert(buffer.shape.size);
                if buffer.shape.size != size {
                    return Err(Error::invalid_argument(format!(
                        "{NAME}: expected parameter {number} of {size} bytes, as on the program's first device, but got a \
                         buffer of {} bytes on device {index} of {}",
                        buffer.shape.size, self.args.num_devices
                    ))
                    .into());
                }
                if buffer.device.0 != place.0 {
                    return Err(Error::invalid_argument(format!(
                        "{NAME}: argument {number} of device {index} of {} is on another device than that",
                        self.args.num_devices
                    ))
                    .into());
                }
            }
        }
        Ok(())
    }

    /// The arguments of the device with this number; `None` for a NULL.
    pub fn arguments(&self, index: usize) -> &'a [Option<BufferRef<'a>>] {
        let list = self.lists.get(index).copied().unwrap_or(ptr::null());
        // SAFETY: each list has `num_args` handles, which are NULL or alive during the call, as `check` asks.
        unsafe { BufferRef::list(sys::slice(list, self.args.num_args)) }
    }

    /// One of them.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a NULL.
    pub fn argument(&self, index: usize, number: usize) -> Outcome<BufferRef<'a>> {
        let argument = self.arguments(index).get(number).copied().flatten();
        Ok(argument.ok_or_else(|| Error::invalid_argument(format!("{NAME}: buffer is NULL")))?)
    }

    /// The numbers of the executions of which a device's arguments are results, in ascending order.
    #[cold]
    pub fn makers(&self, index: usize) -> Vec<u32> {
        let made_by = |buffer: &BufferRef<'_>| buffer.state().allocation().map(|block| block.provenance().run.step);
        // What no program made has the number 0.
        let steps = self.arguments(index).iter().flatten().filter_map(made_by).filter(|&step| step != 0);
        let mut makers: Vec<u32> = steps.collect();
        makers.sort_unstable();
        makers.dedup();
        makers
    }

    /// Whether an argument of a device comes once among its arguments.
    pub fn comes_once(&self, index: usize, number: usize) -> bool {
        let arguments = self.arguments(index);
        let same = |other: &&Option<BufferRef<'_>>| match (**other, arguments[number]) {
            (Some(one), Some(other)) => ptr::eq(one.get(), other.get()),
            _ => false,
        };
        arguments.iter().filter(same).count() == 1
    }

    /// Which of the user's arguments the program may consume, in ascending order; `None`: any.
    #[inline]
    pub fn donated(&self) -> Option<&'a [usize]> {
        match &self.loaded.program.plan.donations {
            Donations::Only(donated) => Some(donated),
            Donations::Unknown => None,
        }
    }

    /// The caller's list for the results of the device with this number, with an entry for each.
    #[inline]
    pub fn output_list(&self, index: usize) -> &'a [Cell<*mut sys::PJRT_Buffer>] {
        let results = self.loaded.program.results.len();
        if results == 0 || index >= self.args.num_devices {
            return &[];
        }
        // SAFETY: `output_lists` is not NULL, as `check` has seen, and has one list for each device, with an entry for
        // each result. It is memory of the caller's for this call, in which nothing but cells refers to it.
        unsafe { slice::from_raw_parts((*self.args.output_lists.add(index)).cast(), results) }
    }

    /// The results of the device with this number.
    ///
    /// # Safety
    /// The engine must have filled the caller's list with live buffers of the program's client, which nothing else owns
    /// from here on.
    #[inline]
    pub unsafe fn outputs(&self, index: usize) -> Outputs<'a> {
        Outputs { session: self.loaded.client.session, list: self.output_list(index) }
    }

    /// Whether the program may not consume this argument, whatever it was compiled for.
    pub fn keeps(&self, argument: usize) -> bool {
        self.kept.contains(&(argument as i64))
    }

    /// The index of the argument list's device among the program's devices, and the device.
    pub fn device(&self, index: usize) -> (usize, Option<&'a Device>) {
        let (loaded, asked_for) = (self.loaded, self.args.execute_device);
        let (device_index, handle) = if asked_for.is_null() {
            (Some(index), loaded.devices.get(index).map(|device| device.0))
        } else {
            (loaded.devices.iter().position(|device| device.0 == asked_for), Some(asked_for))
        };
        (device_index.unwrap_or(usize::MAX), handle.and_then(|handle| loaded.client.device(handle)))
    }
}

/// The results of an execution on one device, as the engine returned them: an iterator over what is left of them. Those
/// that are not taken stay as they are.
pub struct Outputs<'a> {
    session: &'static Session,
    /// Live buffers of the session's client, which nothing else owns.
    list: &'a [Cell<*mut sys::PJRT_Buffer>],
}

impl Outputs<'_> {
    /// The event of one of them being ready.
    ///
    /// # Errors
    /// The engine's.
    pub fn ready_event(&self, at: usize) -> Result<EngineEvent, EngineError> {
        // SAFETY: the buffer is alive until it is taken, and the session's client during the call.
        let output = unsafe { Live::new(self.session.engine, self.list[at].get()) };
        views::ready_event(output)
    }
}

impl Iterator for Outputs<'_> {
    type Item = EngineBuffer;

    #[inline]
    fn next(&mut self) -> Option<EngineBuffer> {
        let (first, rest) = self.list.split_first()?;
        self.list = rest;
        // SAFETY: the buffer is a live one of the session's client, which nothing else owns; it is taken once.
        Some(unsafe { EngineBuffer::own(self.session, first.get()) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.list.len(), Some(self.list.len()))
    }
}

impl ExactSizeIterator for Outputs<'_> {}

/// Copies the caller's options to `copy`, with zeros up to the size that the engine may read; a longer struct keeps
/// its end.
///
/// # Errors
/// INVALID_ARGUMENT if they are NULL, or shorter than any version.
///
/// # Safety
/// `options` must be NULL or point to a struct of `struct_size` bytes, and `copy` to an [`Options`].
unsafe fn copy_options(
    options: *const sys::PJRT_ExecuteOptions,
    engine: &Engine,
    copy: *mut sys::PJRT_ExecuteOptions,
) -> Outcome {
    if options.is_null() {
        return Err(Error::invalid_argument(format!("{NAME}: options is NULL")).into());
    }
    // SAFETY: the options are not NULL, so they are a struct, as this function asks; every version begins with its
    // size.
    let size = unsafe { ptr::read(options.cast::<usize>()) };
    let least = sys::PJRT_ExecuteOptions::MIN_SIZE;
    if size < least {
        return Err(Error::invalid_argument(format!(
            "Unexpected PJRT_ExecuteOptions size: expected at least {least}, got {size}. Check installed software \
             versions."
        ))
        .into());
    }
    let bytes = size.min(size_of::<Options>());
    let asked_for = if engine.is_newer() { size_of::<Options>() } else { size_of::<sys::PJRT_ExecuteOptions>() };
    let total = bytes.max(asked_for);
    // SAFETY: the caller's struct has at least `bytes`, as this function asks; the copy has room for all of
    // `Options`.
    unsafe {
        ptr::copy_nonoverlapping(options.cast::<u8>(), copy.cast(), bytes);
        copy.cast::<u8>().add(bytes).write_bytes(0, total - bytes);
        (*copy).struct_size = total;
    }
    Ok(())
}

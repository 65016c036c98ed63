//! Buffers: metadata, contents, pointers, copies.

use std::{ffi::c_void, ptr};

use crate::{
    Plugin, call,
    client::{Client, Device, Memory},
    event::{Event, Signal},
    raw::{Result, slice},
    sized, sys,
};

/// An element type, by its number in the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElementType(pub u32);

impl ElementType {
    /// Truth values, one byte each.
    pub const PRED: Self = Self(1);
    /// 8-bit signed.
    pub const S8: Self = Self(2);
    /// 32-bit signed.
    pub const S32: Self = Self(4);
    /// 64-bit signed.
    pub const S64: Self = Self(5);
    /// 8-bit unsigned.
    pub const U8: Self = Self(6);
    /// 32-bit float.
    pub const F32: Self = Self(11);
    /// 64-bit float.
    pub const F64: Self = Self(12);
    /// Brain float.
    pub const BF16: Self = Self(13);
    /// Complex of two 32-bit floats.
    pub const C64: Self = Self(14);
    /// 4-bit signed; one byte each on the host.
    pub const S4: Self = Self(21);

    /// The C value.
    pub fn raw(self) -> sys::PJRT_Buffer_Type {
        sys::PJRT_Buffer_Type(self.0)
    }
}

/// Rust types with an element type of the same representation.
pub trait Element: Copy + Default + PartialEq + std::fmt::Debug {
    /// The element type.
    const TYPE: ElementType;
}
macro_rules! elements {
    ($($rust:ty => $name:ident),* $(,)?) => { $(impl Element for $rust { const TYPE: ElementType = ElementType::$name; })* };
}
elements!(i8 => S8, i32 => S32, i64 => S64, u8 => U8, f32 => F32, f64 => F64, bool => PRED);

/// Bits of a brain float.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);
/// A complex number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex(pub f32, pub f32);
/// A 4-bit integer, one byte on the host. Only the low four bits count: engines leave the high ones zero on the way
/// back.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Int4(pub i8);

impl PartialEq for Int4 {
    fn eq(&self, other: &Self) -> bool {
        self.0 & 0xF == other.0 & 0xF
    }
}

elements!(Bf16 => BF16, Complex => C64, Int4 => S4);

/// What a plugin may do with host memory, by its number in the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Semantics {
    /// The caller may change the memory as soon as the call returns.
    OnlyDuringCall = 0,
    /// ... as soon as the event is ready.
    UntilTransferCompletes = 1,
    /// The buffer may show the memory for all its life.
    ZeroCopy = 2,
    /// ... and programs may write to it.
    MutableZeroCopy = 3,
}

/// Every semantics.
pub const ALL_SEMANTICS: [Semantics; 4] =
    [Semantics::OnlyDuringCall, Semantics::UntilTransferCompletes, Semantics::ZeroCopy, Semantics::MutableZeroCopy];

/// Host memory on its way to a device.
#[derive(Clone, Debug)]
pub struct HostArray {
    /// The first element (not the lowest address, when strides are negative).
    pub data: *const c_void,
    /// Type of the elements.
    pub element_type: ElementType,
    /// Dimensions.
    pub dims: Vec<i64>,
    /// Byte strides; `None` means dense, row-major.
    pub strides: Option<Vec<i64>>,
    /// Target device.
    pub device: Option<Device>,
    /// Target memory.
    pub memory: Option<Memory>,
}

impl HostArray {
    /// Dense row-major values; a target must be added.
    pub fn of<T: Element>(values: &[T], dims: &[i64]) -> Self {
        assert_eq!(values.len() as i64, dims.iter().product::<i64>(), "as many values as the dimensions say");
        Self {
            data: values.as_ptr().cast(),
            element_type: T::TYPE,
            dims: dims.to_vec(),
            strides: None,
            device: None,
            memory: None,
        }
    }

    /// Dense row-major elements of any type as bytes; a target must be added.
    pub fn of_bytes(bytes: &[u8], element_type: ElementType, dims: &[i64]) -> Self {
        Self { element_type, dims: dims.to_vec(), ..Self::of(bytes, &[bytes.len() as i64]) }
    }

    /// With byte strides, starting at `data`.
    pub fn strided(mut self, data: *const c_void, dims: &[i64], strides: &[i64]) -> Self {
        (self.data, self.dims, self.strides) = (data, dims.to_vec(), Some(strides.to_vec()));
        self
    }

    /// To `device`.
    pub fn on_device(mut self, device: Device) -> Self {
        self.device = Some(device);
        self
    }

    /// To `memory`.
    pub fn in_memory(mut self, memory: Memory) -> Self {
        self.memory = Some(memory);
        self
    }
}

/// The layout that a read asks for.
#[derive(Clone, Copy, Debug)]
pub enum HostLayout<'a> {
    /// Dense, with the dimensions in this order.
    MinorToMajor(&'a [i64]),
    /// Byte strides.
    Strides(&'a [i64]),
}

impl HostLayout<'_> {
    /// The C form; it borrows from `self`.
    pub fn raw(&self) -> sys::PJRT_Buffer_MemoryLayout {
        let mut layout = sized!(PJRT_Buffer_MemoryLayout);
        let union = (&raw mut layout).wrapping_byte_add(UNION_OFFSET);
        // SAFETY: the union holds either struct, and starts right after the two header words.
        unsafe {
            match self {
                Self::MinorToMajor(order) => {
                    let mut tiled = sized!(PJRT_Buffer_MemoryLayout_Tiled);
                    (tiled.minor_to_major, tiled.minor_to_major_size) = (order.as_ptr(), order.len());
                    union.cast::<sys::PJRT_Buffer_MemoryLayout_Tiled>().write(tiled);
                }
                Self::Strides(steps) => {
                    let mut strides = sized!(PJRT_Buffer_MemoryLayout_Strides);
                    (strides.byte_strides, strides.num_byte_strides) = (steps.as_ptr(), steps.len());
                    union.cast::<sys::PJRT_Buffer_MemoryLayout_Strides>().write(strides);
                    layout.type_ = sys::PJRT_Buffer_MemoryLayout_Type_Strides;
                }
            }
        }
        layout
    }
}

/// Where `PJRT_Buffer_MemoryLayout` holds its union, which bindgen does not name: after size and extension.
const UNION_OFFSET: usize = size_of::<usize>() * 2;

/// Foreign memory to be shown to a plugin.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// First byte.
    pub address: *mut c_void,
    /// Type of the elements.
    pub element_type: ElementType,
    /// Dimensions, row-major.
    pub dims: &'a [i64],
    /// Target device.
    pub device: Option<Device>,
    /// Target memory.
    pub memory: Option<Memory>,
    /// Stream that the contents are ordered after; 0 for none.
    pub stream: isize,
}

/// An owned `PJRT_Buffer`.
pub struct Buffer {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_Buffer,
}

// SAFETY: buffers are thread-safe by contract.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes ownership.
    pub fn own(plugin: &'static Plugin, raw: *mut sys::PJRT_Buffer) -> Self {
        assert!(!raw.is_null(), "a call succeeded without a buffer");
        Self { plugin, raw }
    }

    /// The handle.
    pub fn raw(&self) -> *mut sys::PJRT_Buffer {
        self.raw
    }

    /// `PJRT_Buffer_Dimensions`.
    pub fn dims(&self) -> Vec<i64> {
        let args = call!(self.plugin, PJRT_Buffer_Dimensions { buffer: self.raw }).expect("Dimensions");
        slice(args.dims, args.num_dims).to_vec()
    }

    /// `PJRT_Buffer_UnpaddedDimensions`.
    pub fn unpadded_dims(&self) -> Vec<i64> {
        let args = call!(self.plugin, PJRT_Buffer_UnpaddedDimensions { buffer: self.raw }).expect("UnpaddedDimensions");
        slice(args.unpadded_dims, args.num_dims).to_vec()
    }

    /// `PJRT_Buffer_DynamicDimensionIndices`.
    pub fn dynamic_dims(&self) -> Vec<usize> {
        let args =
            call!(self.plugin, PJRT_Buffer_DynamicDimensionIndices { buffer: self.raw }).expect("DynamicDimensions");
        slice(args.dynamic_dim_indices, args.num_dynamic_dims).to_vec()
    }

    /// `PJRT_Buffer_ElementType`.
    pub fn element_type(&self) -> ElementType {
        ElementType(call!(self.plugin, PJRT_Buffer_ElementType { buffer: self.raw }).expect("ElementType").type_.0)
    }

    /// `PJRT_Buffer_OnDeviceSizeInBytes`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn on_device_size(&self) -> Result<usize> {
        Ok(call!(self.plugin, PJRT_Buffer_OnDeviceSizeInBytes { buffer: self.raw })?.on_device_size_in_bytes)
    }

    /// `PJRT_Buffer_GetMemoryLayout`: the minor-to-major order of a tiled layout.
    pub fn minor_to_major(&self) -> Vec<i64> {
        let args = call!(self.plugin, PJRT_Buffer_GetMemoryLayout { buffer: self.raw }).expect("GetMemoryLayout");
        assert_eq!(args.layout.type_, sys::PJRT_Buffer_MemoryLayout_Type_Tiled);
        // SAFETY: the type says that the layout is tiled, which starts the union after the struct's two header words.
        let tiled = unsafe {
            (&raw const args.layout).byte_add(UNION_OFFSET).cast::<sys::PJRT_Buffer_MemoryLayout_Tiled>().read()
        };
        slice(tiled.minor_to_major, tiled.minor_to_major_size).to_vec()
    }

    /// `PJRT_Buffer_Device`.
    pub fn device(&self) -> Device {
        Device::new(self.plugin, call!(self.plugin, PJRT_Buffer_Device { buffer: self.raw }).expect("Device").device)
    }

    /// `PJRT_Buffer_Memory`.
    pub fn memory(&self) -> Memory {
        Memory::new(self.plugin, call!(self.plugin, PJRT_Buffer_Memory { buffer: self.raw }).expect("Memory").memory)
    }

    /// `PJRT_Buffer_IsOnCpu`.
    pub fn is_on_cpu(&self) -> bool {
        call!(self.plugin, PJRT_Buffer_IsOnCpu { buffer: self.raw }).expect("IsOnCpu").is_on_cpu
    }

    /// `PJRT_Buffer_IsDeleted`.
    pub fn is_deleted(&self) -> bool {
        call!(self.plugin, PJRT_Buffer_IsDeleted { buffer: self.raw }).expect("IsDeleted").is_deleted
    }

    /// `PJRT_Buffer_Delete`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn delete(&self) -> Result<()> {
        call!(self.plugin, PJRT_Buffer_Delete { buffer: self.raw }).map(drop)
    }

    /// `PJRT_Buffer_ReadyEvent`.
    pub fn ready(&self) -> Event {
        let args = call!(self.plugin, PJRT_Buffer_ReadyEvent { buffer: self.raw }).expect("ReadyEvent");
        Event::own(self.plugin, args.event).expect("PJRT_Buffer_ReadyEvent never gives null")
    }

    /// `PJRT_Buffer_ToHostBuffer` without a destination: the bytes that the host array takes.
    ///
    /// # Errors
    /// The plugin's.
    pub fn host_size(&self) -> Result<usize> {
        Ok(call!(self.plugin, PJRT_Buffer_ToHostBuffer { src: self.raw })?.dst_size)
    }

    /// `PJRT_Buffer_ToHostBuffer` into `dst`; the event is ready when the bytes are there.
    ///
    /// # Errors
    /// The plugin's.
    pub fn to_host(&self, dst: &mut [u8]) -> Result<Event> {
        let args = call!(
            self.plugin,
            PJRT_Buffer_ToHostBuffer { src: self.raw, dst: dst.as_mut_ptr().cast(), dst_size: dst.len() }
        )?;
        Ok(Event::own(self.plugin, args.event).expect("PJRT_Buffer_ToHostBuffer always gives an event"))
    }

    /// The contents.
    ///
    /// # Errors
    /// The plugin's, of the call or of its event.
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        let size = self.host_size()?;
        assert_eq!(size % size_of::<T>(), 0, "whole elements");
        let mut values = vec![T::default(); size / size_of::<T>()];
        let args = call!(
            self.plugin,
            PJRT_Buffer_ToHostBuffer {
                src: self.raw,
                dst: if size == 0 { ptr::dangling_mut::<u64>().cast() } else { values.as_mut_ptr().cast() },
                dst_size: size,
            }
        )?;
        Event::own(self.plugin, args.event).expect("PJRT_Buffer_ToHostBuffer always gives an event").wait()?;
        Ok(values)
    }

    /// `PJRT_Buffer_CopyRawToHost`.
    ///
    /// # Errors
    /// The plugin's, of the call or of its event.
    pub fn read_raw(&self, offset: i64, len: i64) -> Result<Vec<u8>> {
        let mut bytes = vec![0xAA; usize::try_from(len).unwrap_or(0)];
        let args = call!(
            self.plugin,
            PJRT_Buffer_CopyRawToHost {
                buffer: self.raw,
                dst: bytes.as_mut_ptr().cast(),
                offset: offset,
                transfer_size: len,
            }
        )?;
        Event::own(self.plugin, args.event).expect("PJRT_Buffer_CopyRawToHost always gives an event").wait()?;
        Ok(bytes)
    }

    /// `PJRT_Buffer_UnsafePointer`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn address(&self) -> Result<usize> {
        Ok(call!(self.plugin, PJRT_Buffer_UnsafePointer { buffer: self.raw })?.buffer_pointer)
    }

    /// `PJRT_Buffer_OpaqueDeviceMemoryDataPointer`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn opaque_pointer(&self) -> Result<*mut c_void> {
        Ok(call!(self.plugin, PJRT_Buffer_OpaqueDeviceMemoryDataPointer { buffer: self.raw })?.device_memory_ptr)
    }

    /// `PJRT_Buffer_IncreaseExternalReferenceCount`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn increase(&self) -> Result<()> {
        call!(self.plugin, PJRT_Buffer_IncreaseExternalReferenceCount { buffer: self.raw }).map(drop)
    }

    /// `PJRT_Buffer_DecreaseExternalReferenceCount`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn decrease(&self) -> Result<()> {
        call!(self.plugin, PJRT_Buffer_DecreaseExternalReferenceCount { buffer: self.raw }).map(drop)
    }

    /// `PJRT_Buffer_CopyToMemory`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn copy_to_memory(&self, memory: Memory) -> Result<Self> {
        let args = call!(self.plugin, PJRT_Buffer_CopyToMemory { buffer: self.raw, dst_memory: memory.raw() })?;
        Ok(Self::own(self.plugin, args.dst_buffer))
    }

    /// `PJRT_Buffer_CopyToDevice`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn copy_to_device(&self, device: Device) -> Result<Self> {
        let args = call!(self.plugin, PJRT_Buffer_CopyToDevice { buffer: self.raw, dst_device: device.raw() })?;
        Ok(Self::own(self.plugin, args.dst_buffer))
    }

    /// `PJRT_Buffer_ToHostBuffer` with a host layout.
    ///
    /// # Errors
    /// The plugin's, of the call or of its event.
    pub fn read_as<T: Element>(&self, layout: &HostLayout) -> Result<Vec<T>> {
        let mut values = vec![T::default(); self.host_size()? / size_of::<T>()];
        let mut layout = layout.raw();
        let args = call!(
            self.plugin,
            PJRT_Buffer_ToHostBuffer {
                src: self.raw,
                host_layout: &raw mut layout,
                dst: values.as_mut_ptr().cast(),
                dst_size: size_of_val(&values[..]),
            }
        )?;
        Event::own(self.plugin, args.event).expect("PJRT_Buffer_ToHostBuffer always gives an event").wait()?;
        Ok(values)
    }

    /// `PJRT_Client_CreateViewOfDeviceBuffer`; the signal is set when the plugin has let go of the memory.
    ///
    /// # Errors
    /// The plugin's.
    ///
    /// # Safety
    /// The memory must stay valid until the signal is set.
    pub unsafe fn view(client: &Client, view: &View<'_>) -> Result<(Self, Signal<()>)> {
        extern "C" fn released(_: *mut c_void, user: *mut c_void) {
            // SAFETY: `user` is the box below; a second call would be caught by the signal or the allocator.
            unsafe { Box::from_raw(user.cast::<Signal<()>>()) }.set(());
        }
        let signal = Signal::default();
        let registration = Box::into_raw(Box::new(signal.clone()));
        let order: Vec<i64> = (0..view.dims.len() as i64).rev().collect();
        let mut layout = HostLayout::MinorToMajor(&order).raw();
        let outcome = call!(
            client.plugin(),
            PJRT_Client_CreateViewOfDeviceBuffer {
                client: client.raw(),
                device_buffer_ptr: view.address,
                dims: view.dims.as_ptr(),
                num_dims: view.dims.len(),
                element_type: view.element_type.raw(),
                layout: &raw mut layout,
                device: view.device.map_or(ptr::null_mut(), |device| device.raw()),
                memory: view.memory.map_or(ptr::null_mut(), |memory| memory.raw()),
                on_delete_callback: Some(released),
                on_delete_callback_arg: registration.cast(),
                stream: view.stream,
            }
        );
        Ok((Self::own(client.plugin(), outcome?.buffer), signal))
    }

    /// `PJRT_Client_CreateUninitializedBuffer` in the first device's default memory.
    ///
    /// # Errors
    /// The plugin's.
    pub fn uninitialized(client: &Client, element_type: ElementType, dims: &[i64]) -> Result<Self> {
        Self::uninitialized_in(client, client.device().default_memory(), element_type, dims)
    }

    /// The same in `memory`.
    ///
    /// # Errors
    /// The plugin's.
    pub fn uninitialized_in(client: &Client, memory: Memory, element_type: ElementType, dims: &[i64]) -> Result<Self> {
        let args = call!(
            client.plugin(),
            PJRT_Client_CreateUninitializedBuffer {
                client: client.raw(),
                shape_dims: dims.as_ptr(),
                shape_num_dims: dims.len(),
                shape_element_type: element_type.raw(),
                memory: memory.raw(),
            }
        )?;
        Ok(Self::own(client.plugin(), args.buffer))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        call!(self.plugin, PJRT_Buffer_Destroy { buffer: self.raw }).expect("PJRT_Buffer_Destroy");
    }
}

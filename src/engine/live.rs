//! Handles of the engine: as such, and known to be alive; and what one that is alive can be asked.
//!
//! ```text
//!  Raw<T>       a handle, or NULL, of which nothing is known
//!  Live<'a, T>  a handle that nobody destroys before 'a ends: it can be asked
//!  Query        the struct of a function that takes one handle, and nothing else, and says something of it
//!  List         one whose answer is an array that lives as long as the handle: texts, numbers, other handles
//!  Part         one whose answer is another handle that lives as long
//! ```

use std::{borrow::Cow, marker::PhantomData, ptr};

use crate::{
    engine::{Args, Engine, EngineError},
    sys::{self, slice},
};

/// A handle of the engine with nothing of ours around it, that may travel between threads.
#[repr(transparent)]
pub struct Raw<T>(pub *mut T);

// Not derived: the derive would ask the same of `T`, which is only a name.
impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

// SAFETY: PJRT handles may be used from any thread; `Raw` never dereferences one.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: several threads may use a PJRT handle at once, and `Raw` never dereferences one.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// The absent handle.
    pub const NULL: Self = Self(ptr::null_mut());

    /// Whether there is no handle.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A handle of the engine that is alive for `'a`.
pub struct Live<'a, T> {
    engine: &'static Engine,
    handle: Raw<T>,
    alive: PhantomData<&'a ()>,
}

impl<T> Clone for Live<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Live<'_, T> {}

/// The struct of a function that takes one handle and nothing else.
///
/// # Safety
/// With [`Self::of`]'s struct, the function must ask for nothing but that the handle is alive. It must leave the handle
/// alive, and give nothing that has to be destroyed.
pub unsafe trait Query<T>: Args {
    /// The struct for `handle`.
    fn of(handle: *mut T) -> Self;
}

/// A query that gives an array.
///
/// # Safety
/// Once the engine has answered, [`Self::array`] must describe an array that lives as long as the handle, and so must
/// each handle in it.
pub unsafe trait List<T>: Query<T> {
    /// What the array is of.
    type Item;

    /// The array, and its length.
    fn array(&self) -> (*const Self::Item, usize);
}

/// A query that gives another handle.
///
/// # Safety
/// Once the engine has answered, [`Self::part`] must be a handle that lives as long as the one that was asked.
pub unsafe trait Part<T>: Query<T> {
    /// What the other handle is.
    type Part;

    /// The other handle.
    fn part(&self) -> *mut Self::Part;
}

impl<'a, T> Live<'a, T> {
    /// A handle that the caller knows to be alive.
    ///
    /// # Safety
    /// `handle` must be one of `engine`, and not be destroyed before `'a` ends.
    #[inline]
    pub unsafe fn new(engine: &'static Engine, handle: *mut T) -> Self {
        Self { engine, handle: Raw(handle), alive: PhantomData }
    }

    /// The engine whose handle it is.
    #[inline]
    pub fn engine(self) -> &'static Engine {
        self.engine
    }

    /// The handle.
    #[inline]
    pub fn raw(self) -> *mut T {
        self.handle.0
    }

    /// The answer to a query. Its pointers lead to what lives as long as the handle.
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn ask<A: Query<T>>(self) -> Result<A, EngineError> {
        // SAFETY: the handle is alive, and a `Query`'s function asks for nothing else.
        unsafe { self.engine.call(A::of(self.handle.0)) }
    }

    /// The array that answers a query.
    ///
    /// # Errors
    /// The engine's.
    pub fn list<A: List<T>>(self) -> Result<&'a [A::Item], EngineError> {
        let (data, len) = self.ask::<A>()?.array();
        // SAFETY: the array lives as long as the handle, which is alive for `'a`, and is as long as the engine says.
        Ok(unsafe { slice(data, len) })
    }

    /// The text that answers a query; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// The engine's.
    pub fn text<A: List<T, Item = u8>>(self) -> Result<Cow<'a, str>, EngineError> {
        Ok(String::from_utf8_lossy(self.list::<A>()?))
    }

    /// The handles that answer a query.
    ///
    /// # Errors
    /// The engine's.
    pub fn handles<A: List<T, Item = *mut U>, U: 'a>(self) -> Result<Vec<Live<'a, U>>, EngineError> {
        let live = |&handle: &*mut U| {
            // SAFETY: a handle in a `List`'s array lives as long as the one that was asked.
            unsafe { Live::new(self.engine, handle) }
        };
        Ok(self.list::<A>()?.iter().map(live).collect())
    }

    /// The handle that answers a query.
    ///
    /// # Errors
    /// The engine's.
    pub fn part<A: Part<T>>(self) -> Result<Live<'a, A::Part>, EngineError> {
        let part = self.ask::<A>()?.part();
        // SAFETY: a `Part` lives as long as the handle that was asked.
        Ok(unsafe { Live::new(self.engine, part) })
    }
}

macro_rules! queries {
    ($($args:ident: $field:ident $handle:ident
        $(, array $data:ident $len:ident of $item:ty)?
        $(, part $part:ident $kind:ident)?
    ;)*) => {$(
        // SAFETY: by the C API the function takes this handle alone, and what it gives stays the engine's.
        unsafe impl Query<sys::$handle> for sys::$args {
            #[inline]
            fn of(handle: *mut sys::$handle) -> Self {
                Self { $field: handle, ..Default::default() }
            }
        }
        $(
            // SAFETY: by the C API the array has this length, and lives, with all in it, as long as the handle.
            unsafe impl List<sys::$handle> for sys::$args {
                type Item = $item;

                fn array(&self) -> (*const $item, usize) {
                    (self.$data.cast(), self.$len)
                }
            }
        )?
        $(
            // SAFETY: by the C API the part lives as long as the whole.
            unsafe impl Part<sys::$handle> for sys::$args {
                type Part = sys::$kind;

                fn part(&self) -> *mut sys::$kind {
                    self.$part
                }
            }
        )?
    )*};
}

queries! {
    PJRT_Client_PlatformName_Args: client PJRT_Client, array platform_name platform_name_size of u8;
    PJRT_Client_PlatformVersion_Args: client PJRT_Client, array platform_version platform_version_size of u8;
    PJRT_Client_ProcessIndex_Args: client PJRT_Client;
    PJRT_Client_Devices_Args: client PJRT_Client, array devices num_devices of *mut sys::PJRT_Device;
    PJRT_Client_AddressableDevices_Args: client PJRT_Client,
        array addressable_devices num_addressable_devices of *mut sys::PJRT_Device;
    PJRT_Device_GetDescription_Args: device PJRT_Device, part device_description PJRT_DeviceDescription;
    PJRT_Device_LocalHardwareId_Args: device PJRT_Device;
    PJRT_Device_DefaultMemory_Args: device PJRT_Device, part memory PJRT_Memory;
    PJRT_Device_AddressableMemories_Args: device PJRT_Device, array memories num_memories of *mut sys::PJRT_Memory;
    PJRT_DeviceDescription_Id_Args: device_description PJRT_DeviceDescription;
    PJRT_DeviceDescription_ProcessIndex_Args: device_description PJRT_DeviceDescription;
    PJRT_Memory_Kind_Args: memory PJRT_Memory, array kind kind_size of u8;
    PJRT_LoadedExecutable_AddressableDevices_Args: executable PJRT_LoadedExecutable,
        array addressable_devices num_addressable_devices of *mut sys::PJRT_Device;
    PJRT_Executable_Name_Args: executable PJRT_Executable, array executable_name executable_name_size of u8;
    PJRT_Executable_NumOutputs_Args: executable PJRT_Executable;
    PJRT_Executable_GetCompiledMemoryStats_Args: executable PJRT_Executable;
    PJRT_Executable_OutputElementTypes_Args: executable PJRT_Executable,
        array output_types num_output_types of sys::PJRT_Buffer_Type;
    PJRT_Executable_OutputDimensions_Args: executable PJRT_Executable;
    PJRT_Executable_OutputMemoryKinds_Args: executable PJRT_Executable;
    PJRT_Buffer_ElementType_Args: buffer PJRT_Buffer;
    PJRT_Buffer_Dimensions_Args: buffer PJRT_Buffer, array dims num_dims of i64;
    PJRT_Buffer_OnDeviceSizeInBytes_Args: buffer PJRT_Buffer;
    PJRT_Buffer_Device_Args: buffer PJRT_Buffer, part device PJRT_Device;
    PJRT_Buffer_Memory_Args: buffer PJRT_Buffer, part memory PJRT_Memory;
    PJRT_Buffer_GetMemoryLayout_Args: buffer PJRT_Buffer;
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args: buffer PJRT_Buffer;
    PJRT_Buffer_IsDeleted_Args: buffer PJRT_Buffer;
    PJRT_Buffer_Delete_Args: buffer PJRT_Buffer;
    PJRT_Event_IsReady_Args: event PJRT_Event;
    PJRT_Event_Await_Args: event PJRT_Event;
}

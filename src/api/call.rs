//! A call of an exported function: its argument struct, which satisfies the function's contract.
//!
//! ```text
//!  edge  -- Call::new --> call.offset           a field as the caller set it; nothing can change it
//!                         call.buffer()?        a handle of this library as a reference that ends with the call
//!                         call.dims()           a pointer and a number as a slice that ends with the call
//!                         call.forward()        to the engine as it is, once:  (what the engine answered, results)
//!                         call.forward_for(&hold)?   the same with the engine's buffer in place of ours
//!                         call.out()            the results alone
//! ```
//!
//! Bodies are safe code. So the struct can be written only when the call is over: what a body writes is for the caller,
//! and nothing here reads it as a handle or as a pointer again.

use std::{ops::Deref, ptr, sync::Arc};

use crate::{
    api::transfer_manager::Manager,
    engine::{Args, Engine, Outcome, failure::required, process},
    runtime::{
        buffer::{Buffer, BufferRef, Hold},
        execute::context::Context,
        transfer::caller_layout::CallerLayout,
    },
    sys::{self, CStruct, slice},
};

/// See the module's documentation.
#[repr(transparent)]
pub struct Call<'a, A>(&'a mut A);

impl<A> Deref for Call<'_, A> {
    type Target = A;

    fn deref(&self) -> &A {
        self.0
    }
}

impl<'a, A> Call<'a, A> {
    /// A call with this struct.
    ///
    /// # Safety
    /// The struct must satisfy the contract of its function in the C API for `'a`: handles are NULL or alive, those of
    /// the engine are of the process' engine; pointers are NULL or valid, to as many values as the struct says. What
    /// the caller gives up with the call must not be used by anybody else, and the struct not be passed to the same
    /// function again.
    pub unsafe fn new(args: &'a mut A) -> Self {
        Self(args)
    }

    /// Ends the call: the struct, for its results.
    #[inline]
    pub fn out(self) -> &'a mut A {
        self.0
    }
}

impl<'a, A: CStruct> Call<'a, A> {
    /// The name of the function, for messages.
    pub const FUNCTION: &'static str = function_of(A::NAME);

    /// The handle or pointer, if it is not NULL.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, which names the function and the field.
    pub fn required<T>(&self, value: *mut T, field: &str) -> Outcome<*mut T> {
        required(value, Self::FUNCTION, field)
    }

    /// Has the engine do it, with the struct as it is: the engine's answer, and the struct for the results.
    #[inline]
    pub fn forward(self) -> (Outcome<A>, &'a mut A)
    where
        A: EngineHandles,
    {
        let answer = match process::engine() {
            // The struct satisfies the contract, as `new` asks, and has only handles of the engine.
            Ok(engine) => A::send(Sending { args: *self.0, engine }),
            Err(error) => Err(error.into()),
        };
        (answer, self.0)
    }

    /// The buffer.
    ///
    /// # Errors
    /// INVALID_ARGUMENT naming the function if it is NULL.
    #[inline]
    pub fn buffer(&self) -> Outcome<BufferRef<'a>>
    where
        A: LendsBuffer,
    {
        // SAFETY: the handle is NULL or alive during the call, as `new` and `LendsBuffer` ask.
        unsafe { BufferRef::borrow(self.0.buffer_handle(), Self::FUNCTION) }
    }

    /// As [`Self::forward`], with the engine's buffer, which `hold` keeps alive, in place of the caller's.
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn forward_for(self, hold: &Hold<'_>) -> Outcome<(A, &'a mut A)>
    where
        A: LendsBuffer<Use = Query> + Forward,
    {
        // The struct satisfies the contract, as `new` asks: its one handle of this library becomes the engine's, alive
        // as long as the hold, and a query needs it no longer than it runs.
        let (args, engine) = (self.0.with_buffer(hold.handle()), hold.buffer().session.engine);
        Ok((A::send(Sending { args, engine })?, self.0))
    }

    /// What the caller's handle stands for.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, which names the function and the field, if it is NULL.
    pub fn lent<T>(&self, field: &str) -> Outcome<&'a T>
    where
        A: Lends<T>,
    {
        let handle = self.required(self.0.handle().cast_mut(), field)?;
        // SAFETY: the handle is not NULL, so it is alive during the call, as `new` asks, and of a `T`, as `Lends` asks.
        Ok(unsafe { &*handle })
    }

    /// Shares ownership of what the caller's handle stands for.
    ///
    /// # Errors
    /// As [`Self::lent`].
    pub fn share<T>(&self, field: &str) -> Outcome<Arc<T>>
    where
        A: Lends<T>,
    {
        let handle = self.required(self.0.handle().cast_mut(), field)?;
        // SAFETY: the handle is not NULL, so it is the pointer of an `Arc`, as `Lends` asks, alive during the call; the
        // strong count that is added here is the result's.
        Ok(unsafe {
            Arc::increment_strong_count(handle);
            Arc::from_raw(handle)
        })
    }

    /// What the caller gives up, before it is taken over; `None` for NULL.
    pub fn peek<T>(&self) -> Option<&T>
    where
        A: GivesUp<T>,
    {
        // SAFETY: the handle is NULL, or the pointer of an `Arc`, as `GivesUp` asks, which nobody drops before `take`
        // ends the call.
        unsafe { self.0.handle().as_ref() }
    }

    /// Takes over what the caller gives up, if it is not NULL.
    #[inline]
    pub fn take<T>(self) -> Option<Arc<T>>
    where
        A: GivesUp<T>,
    {
        let handle = self.0.handle();
        // SAFETY: the handle is not NULL, so it is the pointer of an `Arc`, as `GivesUp` asks. The caller gives up its
        // strong count, as `new` asks, and this is the only time that it is taken: the call ends.
        (!handle.is_null()).then(|| unsafe { Arc::from_raw(handle) })
    }
}

/// The function that takes an argument struct.
const fn function_of(args: &'static str) -> &'static str {
    let length = args.len();
    if length < 5 {
        return args;
    }
    match args.split_at(length - 5) {
        (function, end) if matches!(end.as_bytes(), b"_Args") => function,
        _ => args,
    }
}

/// A struct on its way to the engine: it satisfies the contract of its function there, and is sent once. Only calls
/// make it, which end with that.
pub struct Sending<A> {
    args: A,
    engine: &'static Engine,
}

impl<A> Sending<A> {
    /// The struct, and the engine whose handles it has.
    #[inline]
    pub fn into_parts(self) -> (A, &'static Engine) {
        (self.args, self.engine)
    }
}

/// A function that the engine has too.
pub trait Forward: CStruct {
    /// Calls the engine's function.
    ///
    /// # Errors
    /// The engine's; UNIMPLEMENTED where it has no such function.
    fn send(sending: Sending<Self>) -> Outcome<Self>;
}

impl<A: Args> Forward for A {
    #[inline]
    fn send(sending: Sending<Self>) -> Outcome<Self> {
        let (args, engine) = sending.into_parts();
        // SAFETY: the struct satisfies its function's contract, with handles of this engine, and is sent once.
        Ok(unsafe { engine.call(args)? })
    }
}

/// A struct that may go to the engine as it is.
///
/// # Safety
/// None of its handles is a handle of this library.
pub unsafe trait EngineHandles: Forward {}

macro_rules! engine_handles {
    ($($args:ident)*) => {$(
        // SAFETY: the struct has no `PJRT_Buffer`, `PJRT_ExecuteContext`, `PJRT_AsyncHostToDeviceTransferManager` or
        // `PJRT_Error`, which are the handles that this library makes.
        unsafe impl EngineHandles for sys::$args {}
    )*};
}

engine_handles! {
    PJRT_Plugin_Initialize_Args
    PJRT_Client_Destroy_Args
    PJRT_Client_Load_Args
    PJRT_Device_MemoryStats_Args
    PJRT_Device_ClearMemoryStats_Args
    PJRT_Executable_Destroy_Args
    PJRT_Executable_GetCompileOptions_Args
    PJRT_Executable_GetCompiledMemoryStats_Args
    PJRT_Executable_GetCostAnalysis_Args
    PJRT_Executable_OptimizedProgram_Args
    PJRT_Executable_OutputMemoryKinds_Args
    PJRT_Executable_ParameterMemoryKinds_Args
    PJRT_Executable_Serialize_Args
    PJRT_LoadedExecutable_Destroy_Args
    PJRT_LoadedExecutable_GetExecutable_Args
    PJRT_Layouts_MemoryLayout_Destroy_Args
    PJRT_Layouts_MemoryLayout_Serialize_Args
    PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args
    PJRT_Shardings_PJRT_Executable_ParameterShardings_Args
    PJRT_FFI_Type_Register_Args
}

/// A struct with a handle of this library, which the caller lends the function.
///
/// # Safety
/// `handle` must give the field of that handle: NULL or the pointer of an `Arc<T>` whose strong count is the caller's.
/// The function must be none that ends the handle.
pub unsafe trait Lends<T>: CStruct {
    /// The handle.
    fn handle(&self) -> *const T;
}

/// A struct with a handle of this library that the function ends.
///
/// # Safety
/// `handle` must give the field of that handle: NULL or the pointer of an `Arc<T>` whose strong count the caller gives
/// up with the call.
pub unsafe trait GivesUp<T>: CStruct {
    /// The handle.
    fn handle(&self) -> *const T;
}

macro_rules! handles {
    ($($relation:ident<$of:ident> for { $($args:ident $field:ident)* })*) => {$($(
        // SAFETY: the field is the handle of the struct's function, and this library makes such handles of `Arc`s of
        // this type. Of the functions `PJRT_*_Destroy` ends the handle, which only `GivesUp` is of, and no other does.
        unsafe impl $relation<$of> for sys::$args {
            #[inline]
            fn handle(&self) -> *const $of {
                self.$field.cast_const().cast()
            }
        }
    )*)*};
}

handles! {
    GivesUp<Buffer> for { PJRT_Buffer_Destroy_Args buffer }
    GivesUp<Context> for { PJRT_ExecuteContext_Destroy_Args context }
    Lends<Context> for { PJRT_FFI_UserData_Add_Args context }
    GivesUp<Manager> for { PJRT_AsyncHostToDeviceTransferManager_Destroy_Args transfer_manager }
    Lends<Manager> for {
        PJRT_AsyncHostToDeviceTransferManager_TransferData_Args transfer_manager
        PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args transfer_manager
        PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args transfer_manager
        PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args transfer_manager
        PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args transfer_manager
        PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args transfer_manager
        PJRT_AsyncHostToDeviceTransferManager_Device_Args transfer_manager
        PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args transfer_manager
    }
}

/// What the engine does with a buffer that a function lends it.
pub trait Use {
    /// What it makes for the caller.
    type Makes;
}

macro_rules! uses {
    ($($(#[$doc:meta])* $what:ident $makes:ty;)*) => {$(
        $(#[$doc])*
        pub struct $what;

        impl Use for $what {
            type Makes = $makes;
        }
    )*};
}

uses! {
    /// It is done with the buffer when its function returns.
    Query ();
    /// It reads the buffer until an event.
    Reading sys::PJRT_Event;
    /// It reads the buffer until a new one is ready.
    Copying sys::PJRT_Buffer;
    /// It consumes the buffer, and makes a new one of the memory.
    Donation sys::PJRT_Buffer;
    /// It consumes the buffer.
    Consumption ();
}

/// A struct with a `PJRT_Buffer`, which the caller lends the function.
///
/// # Safety
/// `buffer_handle` must give the field of that handle. It must be the struct's one handle of this library, and the
/// function be none that ends it. `Use` must be what the engine does with the buffer, and `made` the field of what it
/// makes then, which is new and the caller's. `with_buffer` must change these two fields and nothing else.
pub unsafe trait LendsBuffer: CStruct {
    /// What the engine does with the buffer.
    type Use: Use;

    /// The handle.
    fn buffer_handle(&self) -> *mut sys::PJRT_Buffer;

    /// The struct with another handle, and without what the engine makes.
    fn with_buffer(&self, buffer: *mut sys::PJRT_Buffer) -> Self;

    /// What the engine has made.
    fn made(&self) -> *mut <Self::Use as Use>::Makes {
        ptr::null_mut()
    }
}

macro_rules! lends_buffer {
    ($($what:ident { $($args:ident $field:ident $(=> $made:ident)?)* })*) => {$($(
        // SAFETY: the field is the one handle of this library in the struct, and the function ends it not. What the
        // engine does with it and what it makes is what the C API says of the function.
        unsafe impl LendsBuffer for sys::$args {
            type Use = $what;

            #[inline]
            fn buffer_handle(&self) -> *mut sys::PJRT_Buffer {
                self.$field
            }

            #[inline]
            fn with_buffer(&self, $field: *mut sys::PJRT_Buffer) -> Self {
                Self { $field, $($made: ptr::null_mut(),)? ..*self }
            }

            $(
                fn made(&self) -> *mut <$what as Use>::Makes {
                    self.$made
                }
            )?
        }
    )*)*};
}

lends_buffer! {
    Query {
        PJRT_Buffer_ElementType_Args buffer
        PJRT_Buffer_Dimensions_Args buffer
        PJRT_Buffer_UnpaddedDimensions_Args buffer
        PJRT_Buffer_DynamicDimensionIndices_Args buffer
        PJRT_Buffer_GetMemoryLayout_Args buffer
        PJRT_Buffer_OnDeviceSizeInBytes_Args buffer
        PJRT_Buffer_Device_Args buffer
        PJRT_Buffer_Memory_Args buffer
        PJRT_Buffer_IsDeleted_Args buffer
        PJRT_Buffer_IsOnCpu_Args buffer
        PJRT_Buffer_ReadyEvent_Args buffer
        PJRT_Buffer_UnsafePointer_Args buffer
        PJRT_Buffer_IncreaseExternalReferenceCount_Args buffer
        PJRT_Buffer_DecreaseExternalReferenceCount_Args buffer
        PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args buffer
        PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args buffer
        PJRT_Wait_Until_Buffer_Ready_On_Stream_Args buffer
    }
    Reading {
        PJRT_Buffer_ToHostBuffer_Args src => event
        PJRT_Buffer_CopyRawToHost_Args buffer => event
        PJRT_Buffer_CopyRawToHostFuture_Args buffer => event
    }
    Copying {
        PJRT_Buffer_CopyToDevice_Args buffer => dst_buffer
        PJRT_Buffer_CopyToMemory_Args buffer => dst_buffer
    }
    Donation {
        PJRT_Buffer_Bitcast_Args buffer => out_buffer
        PJRT_Buffer_DonateWithControlDependency_Args buffer => out_buffer
    }
    Consumption {
        PJRT_Buffer_Delete_Args buffer
        PJRT_Client_FulfillAliasBuffer_Args buffer
    }
}

macro_rules! lists {
    ($($args:ident { $($pointer:ident: $item:ty, $number:ident;)* })*) => {$(
        impl<'a> Call<'a, sys::$args> {$(
            #[doc = concat!("As many as `", stringify!($number), "` says; NULL is empty.")]
            pub fn $pointer(&self) -> &'a [$item] {
                // SAFETY: the pointer is NULL or valid for as many values during the call, as `new` asks.
                unsafe { slice(self.0.$pointer.cast(), self.0.$number) }
            }
        )*}
    )*};
}

lists! {
    PJRT_Client_Create_Args { create_options: sys::PJRT_NamedValue, num_options; }
    PJRT_Client_Compile_Args { compile_options: u8, compile_options_size; }
    PJRT_Compile_Args { compile_options: u8, compile_options_size; }
    PJRT_Executable_DeserializeAndLoad_Args { serialized_executable: u8, serialized_executable_size; }
    PJRT_Client_BufferFromHostBuffer_Args {
        dims: i64, num_dims;
        byte_strides: i64, num_byte_strides;
    }
    PJRT_Client_CreateUninitializedBuffer_Args { shape_dims: i64, shape_num_dims; }
    PJRT_Client_CreateAliasBuffer_Args { shape_dims: i64, shape_num_dims; }
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args { error_message: u8, error_message_size; }
    PJRT_FFI_Register_Handler_Args {
        target_name: u8, target_name_size;
        platform_name: u8, platform_name_size;
    }
    PJRT_Register_Custom_Partitioner_Args { name: u8, name_size; }
    PJRT_Register_Batch_Partitionable_Args { name: u8, name_size; }
}

macro_rules! layouts {
    ($($args:ident $layout:ident)*) => {$(
        impl Call<'_, sys::$args> {
            /// Whether the layout is the default one: dense, the last dimension fastest, no tiles.
            pub fn has_default_layout(&self) -> bool {
                // SAFETY: the layout is NULL or valid during the call, as `new` asks.
                unsafe { CallerLayout::read(self.0.$layout) }.is_default()
            }
        }
    )*};
}

layouts! {
    PJRT_Client_BufferFromHostBuffer_Args device_layout
    PJRT_Client_CreateUninitializedBuffer_Args shape_layout
    PJRT_Client_CreateViewOfDeviceBuffer_Args layout
}

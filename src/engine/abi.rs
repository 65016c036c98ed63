//! What is the same for every function of the C API: its argument struct, its slot in the table, and the sizes that
//! caller, library and engine each think the struct has.
//!
//! ```text
//!  caller's struct   |=========|                    an older caller's is shorter than the callee asks for
//!  as passed on      |=========|00000000|           ... so a copy of it is, with zeros behind
//!  copied back       |=========|                    never more than the caller has
//! ```
//! Zero is every field's default, and a callee asks only that `struct_size` is not below its own.

use std::{
    ffi::c_void,
    mem::{MaybeUninit, offset_of},
    ops::RangeBounds,
};

use crate::sys;

/// Every PJRT function but the two that cannot fail takes one struct and returns an error or NULL.
pub type Function = unsafe extern "C" fn(*mut c_void) -> *mut sys::PJRT_Error;

/// A handler of XLA FFI. It may throw a C++ exception, which then passes through its Rust callers.
pub type Handler = unsafe extern "C-unwind" fn(*mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error;

/// The argument struct of one PJRT function.
///
/// # Safety
/// The type must be the C struct of the function in slot `SLOT`, and begin with `struct_size: usize`.
pub unsafe trait Args: sys::CStruct {
    /// The function's name.
    const FUNCTION: &'static str;
    /// Byte offset of the function's slot in `PJRT_Api`.
    const SLOT: usize;
}

/// Bytes of a struct as passed to an engine that is newer than our declarations: more than they know (engine behaviour
/// T30).
pub const fn oversize<A>() -> usize {
    size_of::<Roomy<A>>()
}

/// A struct with room behind it for the fields of later versions; the largest growth so far was 32 bytes.
#[repr(C)]
struct Roomy<A> {
    known: A,
    later: [u64; 16],
}

/// Calls `body` with the struct at `args` if its size is one of `sizes`, or else with a zero-extended or cut copy of
/// `size` bytes, of which as much comes back as the caller has.
///
/// # Safety
/// `args` must point to a struct of `struct_size` bytes, and `size` be at most [`oversize`].
#[inline]
pub unsafe fn fitted<A: sys::CStruct, T>(
    args: *mut A,
    sizes: impl RangeBounds<usize>,
    size: usize,
    body: impl FnOnce(*mut A) -> T,
) -> T {
    debug_assert!(size <= oversize::<A>());
    // SAFETY: every struct of the C API begins with its size.
    let theirs = unsafe { args.cast::<usize>().read() };
    if sizes.contains(&theirs) {
        return body(args);
    }
    // SAFETY: as this function asks, and `theirs` was read there.
    unsafe { with_copy(args, theirs, size, body) }
}

/// As [`fitted`], with a copy of the struct, which has `theirs` bytes. Out of line: callers mostly have the size that
/// this library knows.
///
/// # Safety
/// As for [`fitted`].
#[cold]
#[inline(never)]
unsafe fn with_copy<A: sys::CStruct, T>(args: *mut A, theirs: usize, size: usize, body: impl FnOnce(*mut A) -> T) -> T {
    let mut copy = MaybeUninit::<Roomy<A>>::zeroed();
    let ours = copy.as_mut_ptr().cast::<u8>();
    let shared = theirs.min(size);
    // SAFETY: the caller's struct has `theirs` bytes, the copy has room for `size`, and they do not overlap.
    unsafe {
        ours.copy_from_nonoverlapping(args.cast(), shared);
        ours.cast::<usize>().write(size);
    }
    let result = body(ours.cast());
    // SAFETY: as above, the other way round; the caller's size stays as it was.
    unsafe {
        args.byte_add(size_of::<usize>())
            .cast::<u8>()
            .copy_from_nonoverlapping(ours.add(size_of::<usize>()), shared - size_of::<usize>())
    };
    result
}

/// Writes `struct_size`, the first field of every struct of the C API that has one.
pub fn set_struct_size<A: sys::CStruct>(args: &mut A, size: usize) {
    debug_assert!(size_of::<A>() >= size_of::<usize>());
    // SAFETY: a `CStruct` begins with its size in bytes, a `usize`, and is at least that long.
    unsafe { std::ptr::from_mut(args).cast::<usize>().write(size) };
}

macro_rules! args {
    ($($function:ident $args:ident;)*) => {$(
        // SAFETY: the struct and the slot stand beside each other in the C API, under the same name.
        unsafe impl Args for sys::$args {
            const FUNCTION: &'static str = stringify!($function);
            const SLOT: usize = offset_of!(sys::PJRT_Api, $function);
        }
    )*};
}

args! {
    PJRT_Error_Destroy PJRT_Error_Destroy_Args;
    PJRT_Error_Message PJRT_Error_Message_Args;
    PJRT_Error_GetCode PJRT_Error_GetCode_Args;
    PJRT_Plugin_Initialize PJRT_Plugin_Initialize_Args;
    PJRT_Plugin_Attributes PJRT_Plugin_Attributes_Args;
    PJRT_Event_Destroy PJRT_Event_Destroy_Args;
    PJRT_Event_IsReady PJRT_Event_IsReady_Args;
    PJRT_Event_Error PJRT_Event_Error_Args;
    PJRT_Event_Await PJRT_Event_Await_Args;
    PJRT_Event_OnReady PJRT_Event_OnReady_Args;
    PJRT_Client_Create PJRT_Client_Create_Args;
    PJRT_Client_Destroy PJRT_Client_Destroy_Args;
    PJRT_Client_PlatformName PJRT_Client_PlatformName_Args;
    PJRT_Client_ProcessIndex PJRT_Client_ProcessIndex_Args;
    PJRT_Client_PlatformVersion PJRT_Client_PlatformVersion_Args;
    PJRT_Client_Devices PJRT_Client_Devices_Args;
    PJRT_Client_AddressableDevices PJRT_Client_AddressableDevices_Args;
    PJRT_Client_LookupDevice PJRT_Client_LookupDevice_Args;
    PJRT_Client_LookupAddressableDevice PJRT_Client_LookupAddressableDevice_Args;
    PJRT_Client_AddressableMemories PJRT_Client_AddressableMemories_Args;
    PJRT_Client_Compile PJRT_Client_Compile_Args;
    PJRT_Client_DefaultDeviceAssignment PJRT_Client_DefaultDeviceAssignment_Args;
    PJRT_Client_BufferFromHostBuffer PJRT_Client_BufferFromHostBuffer_Args;
    PJRT_DeviceDescription_Id PJRT_DeviceDescription_Id_Args;
    PJRT_DeviceDescription_ProcessIndex PJRT_DeviceDescription_ProcessIndex_Args;
    PJRT_DeviceDescription_Attributes PJRT_DeviceDescription_Attributes_Args;
    PJRT_DeviceDescription_Kind PJRT_DeviceDescription_Kind_Args;
    PJRT_DeviceDescription_DebugString PJRT_DeviceDescription_DebugString_Args;
    PJRT_DeviceDescription_ToString PJRT_DeviceDescription_ToString_Args;
    PJRT_Device_GetDescription PJRT_Device_GetDescription_Args;
    PJRT_Device_IsAddressable PJRT_Device_IsAddressable_Args;
    PJRT_Device_LocalHardwareId PJRT_Device_LocalHardwareId_Args;
    PJRT_Device_AddressableMemories PJRT_Device_AddressableMemories_Args;
    PJRT_Device_DefaultMemory PJRT_Device_DefaultMemory_Args;
    PJRT_Device_MemoryStats PJRT_Device_MemoryStats_Args;
    PJRT_Memory_Id PJRT_Memory_Id_Args;
    PJRT_Memory_Kind PJRT_Memory_Kind_Args;
    PJRT_Memory_DebugString PJRT_Memory_DebugString_Args;
    PJRT_Memory_ToString PJRT_Memory_ToString_Args;
    PJRT_Memory_AddressableByDevices PJRT_Memory_AddressableByDevices_Args;
    PJRT_Executable_Destroy PJRT_Executable_Destroy_Args;
    PJRT_Executable_Name PJRT_Executable_Name_Args;
    PJRT_Executable_NumReplicas PJRT_Executable_NumReplicas_Args;
    PJRT_Executable_NumPartitions PJRT_Executable_NumPartitions_Args;
    PJRT_Executable_NumOutputs PJRT_Executable_NumOutputs_Args;
    PJRT_Executable_SizeOfGeneratedCodeInBytes PJRT_Executable_SizeOfGeneratedCodeInBytes_Args;
    PJRT_Executable_GetCostAnalysis PJRT_Executable_GetCostAnalysis_Args;
    PJRT_Executable_OutputMemoryKinds PJRT_Executable_OutputMemoryKinds_Args;
    PJRT_Executable_OptimizedProgram PJRT_Executable_OptimizedProgram_Args;
    PJRT_Executable_Serialize PJRT_Executable_Serialize_Args;
    PJRT_LoadedExecutable_Destroy PJRT_LoadedExecutable_Destroy_Args;
    PJRT_LoadedExecutable_GetExecutable PJRT_LoadedExecutable_GetExecutable_Args;
    PJRT_LoadedExecutable_AddressableDevices PJRT_LoadedExecutable_AddressableDevices_Args;
    PJRT_LoadedExecutable_Delete PJRT_LoadedExecutable_Delete_Args;
    PJRT_LoadedExecutable_IsDeleted PJRT_LoadedExecutable_IsDeleted_Args;
    PJRT_LoadedExecutable_Execute PJRT_LoadedExecutable_Execute_Args;
    PJRT_Executable_DeserializeAndLoad PJRT_Executable_DeserializeAndLoad_Args;
    PJRT_LoadedExecutable_Fingerprint PJRT_LoadedExecutable_Fingerprint_Args;
    PJRT_Buffer_Destroy PJRT_Buffer_Destroy_Args;
    PJRT_Buffer_ElementType PJRT_Buffer_ElementType_Args;
    PJRT_Buffer_Dimensions PJRT_Buffer_Dimensions_Args;
    PJRT_Buffer_UnpaddedDimensions PJRT_Buffer_UnpaddedDimensions_Args;
    PJRT_Buffer_DynamicDimensionIndices PJRT_Buffer_DynamicDimensionIndices_Args;
    PJRT_Buffer_GetMemoryLayout PJRT_Buffer_GetMemoryLayout_Args;
    PJRT_Buffer_OnDeviceSizeInBytes PJRT_Buffer_OnDeviceSizeInBytes_Args;
    PJRT_Buffer_Device PJRT_Buffer_Device_Args;
    PJRT_Buffer_Memory PJRT_Buffer_Memory_Args;
    PJRT_Buffer_Delete PJRT_Buffer_Delete_Args;
    PJRT_Buffer_IsDeleted PJRT_Buffer_IsDeleted_Args;
    PJRT_Buffer_CopyToDevice PJRT_Buffer_CopyToDevice_Args;
    PJRT_Buffer_ToHostBuffer PJRT_Buffer_ToHostBuffer_Args;
    PJRT_Buffer_IsOnCpu PJRT_Buffer_IsOnCpu_Args;
    PJRT_Buffer_ReadyEvent PJRT_Buffer_ReadyEvent_Args;
    PJRT_Buffer_UnsafePointer PJRT_Buffer_UnsafePointer_Args;
    PJRT_Buffer_IncreaseExternalReferenceCount PJRT_Buffer_IncreaseExternalReferenceCount_Args;
    PJRT_Buffer_DecreaseExternalReferenceCount PJRT_Buffer_DecreaseExternalReferenceCount_Args;
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args;
    PJRT_CopyToDeviceStream_Destroy PJRT_CopyToDeviceStream_Destroy_Args;
    PJRT_CopyToDeviceStream_AddChunk PJRT_CopyToDeviceStream_AddChunk_Args;
    PJRT_CopyToDeviceStream_TotalBytes PJRT_CopyToDeviceStream_TotalBytes_Args;
    PJRT_CopyToDeviceStream_GranuleSize PJRT_CopyToDeviceStream_GranuleSize_Args;
    PJRT_CopyToDeviceStream_CurrentBytes PJRT_CopyToDeviceStream_CurrentBytes_Args;
    PJRT_TopologyDescription_Create PJRT_TopologyDescription_Create_Args;
    PJRT_TopologyDescription_Destroy PJRT_TopologyDescription_Destroy_Args;
    PJRT_TopologyDescription_PlatformName PJRT_TopologyDescription_PlatformName_Args;
    PJRT_TopologyDescription_PlatformVersion PJRT_TopologyDescription_PlatformVersion_Args;
    PJRT_TopologyDescription_GetDeviceDescriptions PJRT_TopologyDescription_GetDeviceDescriptions_Args;
    PJRT_TopologyDescription_Serialize PJRT_TopologyDescription_Serialize_Args;
    PJRT_TopologyDescription_Attributes PJRT_TopologyDescription_Attributes_Args;
    PJRT_Compile PJRT_Compile_Args;
    PJRT_Executable_OutputElementTypes PJRT_Executable_OutputElementTypes_Args;
    PJRT_Executable_OutputDimensions PJRT_Executable_OutputDimensions_Args;
    PJRT_Buffer_CopyToMemory PJRT_Buffer_CopyToMemory_Args;
    PJRT_Client_CreateViewOfDeviceBuffer PJRT_Client_CreateViewOfDeviceBuffer_Args;
    PJRT_Executable_Fingerprint PJRT_Executable_Fingerprint_Args;
    PJRT_Client_TopologyDescription PJRT_Client_TopologyDescription_Args;
    PJRT_Executable_GetCompiledMemoryStats PJRT_Executable_GetCompiledMemoryStats_Args;
    PJRT_Memory_Kind_Id PJRT_Memory_Kind_Id_Args;
    PJRT_ExecuteContext_Create PJRT_ExecuteContext_Create_Args;
    PJRT_ExecuteContext_Destroy PJRT_ExecuteContext_Destroy_Args;
    PJRT_Buffer_CopyRawToHost PJRT_Buffer_CopyRawToHost_Args;
    PJRT_AsyncHostToDeviceTransferManager_Destroy PJRT_AsyncHostToDeviceTransferManager_Destroy_Args;
    PJRT_AsyncHostToDeviceTransferManager_TransferData PJRT_AsyncHostToDeviceTransferManager_TransferData_Args;
    PJRT_Client_CreateBuffersForAsyncHostToDevice PJRT_Client_CreateBuffersForAsyncHostToDevice_Args;
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args;
    PJRT_AsyncHostToDeviceTransferManager_Device PJRT_AsyncHostToDeviceTransferManager_Device_Args;
    PJRT_AsyncHostToDeviceTransferManager_BufferCount PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args;
    PJRT_AsyncHostToDeviceTransferManager_BufferSize PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args;
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args;
    PJRT_AsyncHostToDeviceTransferManager_AddMetadata PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args;
    PJRT_Client_DmaMap PJRT_Client_DmaMap_Args;
    PJRT_Client_DmaUnmap PJRT_Client_DmaUnmap_Args;
    PJRT_Client_CreateUninitializedBuffer PJRT_Client_CreateUninitializedBuffer_Args;
    PJRT_Client_UpdateGlobalProcessInfo PJRT_Client_UpdateGlobalProcessInfo_Args;
    PJRT_TopologyDescription_Deserialize PJRT_TopologyDescription_Deserialize_Args;
    PJRT_Client_CreateAliasBuffer PJRT_Client_CreateAliasBuffer_Args;
    PJRT_Client_FulfillAliasBuffer PJRT_Client_FulfillAliasBuffer_Args;
    PJRT_LoadedExecutable_GetDeviceAssignment PJRT_LoadedExecutable_GetDeviceAssignment_Args;
    PJRT_Client_CreateErrorBuffer PJRT_Client_CreateErrorBuffer_Args;
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args;
    PJRT_Buffer_CopyRawToHostFuture PJRT_Buffer_CopyRawToHostFuture_Args;
    PJRT_Device_PoisonExecution PJRT_Device_PoisonExecution_Args;
    PJRT_Device_CreateAsyncTrackingEvent PJRT_Device_CreateAsyncTrackingEvent_Args;
    PJRT_AsyncTrackingEvent_Destroy PJRT_AsyncTrackingEvent_Destroy_Args;
    PJRT_Executable_GetCompileOptions PJRT_Executable_GetCompileOptions_Args;
    PJRT_Buffer_DonateWithControlDependency PJRT_Buffer_DonateWithControlDependency_Args;
    PJRT_Event_Create PJRT_Event_Create_Args;
    PJRT_Event_Set PJRT_Event_Set_Args;
    PJRT_Device_GetAttributes PJRT_Device_GetAttributes_Args;
    PJRT_Client_Load PJRT_Client_Load_Args;
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args;
    PJRT_Buffer_Bitcast PJRT_Buffer_Bitcast_Args;
    PJRT_Error_ForEachPayload PJRT_Error_ForEachPayload_Args;
    PJRT_TopologyDescription_Fingerprint PJRT_TopologyDescription_Fingerprint_Args;
    PJRT_Executable_ParameterMemoryKinds PJRT_Executable_ParameterMemoryKinds_Args;
    PJRT_Device_ClearMemoryStats PJRT_Device_ClearMemoryStats_Args;
    PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args;
    PJRT_TopologyDescription_GetMemorySpaceKindIds PJRT_TopologyDescription_GetMemorySpaceKindIds_Args;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::CStruct;

    type Args = sys::PJRT_Device_PoisonExecution_Args;
    const GUARD: u8 = 0xA5;
    const WRITTEN: u8 = 0x11;

    /// Memory of a caller whose struct has `size` bytes, after a body that sees `seen` bytes and writes all of them.
    fn after(size: usize, sizes: impl RangeBounds<usize>, seen: usize) -> Vec<u8> {
        let mut words = vec![u64::from_ne_bytes([GUARD; 8]); 32];
        words[0] = size as u64;
        let args = words.as_mut_ptr().cast::<Args>();
        // SAFETY: the memory is longer than every size below, and the body writes what it was told there is.
        unsafe {
            fitted(args, sizes, seen, |args| {
                let bytes = args.cast::<u8>();
                let shown = args.cast::<usize>().read();
                assert!((seen..=size.max(seen)).contains(&shown), "{shown} bytes are shown");
                if shown > size {
                    assert!((size..shown).all(|at| bytes.add(at).read() == 0), "zeros behind the caller's fields");
                }
                bytes.add(8).write_bytes(WRITTEN, shown - 8);
            });
        }
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_struct_comes_back_as_long_as_it_was() {
        let ours = Args::STRUCT_SIZE;
        for size in [Args::MIN_SIZE, Args::MIN_SIZE + 8, ours, ours + 7, ours + 64] {
            for (sizes, seen) in [(ours..=ours, ours), (ours..=usize::MAX, ours), (160..=usize::MAX, 160)] {
                let bytes = after(size, sizes.clone(), seen);
                assert_eq!(bytes[..8], size.to_ne_bytes(), "struct_size stays the caller's");
                let written = if sizes.contains(&size) { size } else { size.min(seen) };
                assert!(bytes[8..written].iter().all(|&byte| byte == WRITTEN), "{size} of {seen}");
                assert!(bytes[written..].iter().all(|&byte| byte == GUARD), "{size} of {seen}: {bytes:?}");
            }
        }
    }
}

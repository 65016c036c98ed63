//! `GetPjrtApi`: the table of the 138 functions.
//!
//! The table has the engine's minor version, or the newest that this library knows if that is older, and as many
//! functions as the engine's: a framework must not be promised more. Words of zero follow it, because frameworks
//! probe for newer functions by NULL without looking at the size first (engine behaviour T1).

use std::{
    mem::offset_of,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use once_cell::sync::OnceCell;

use crate::{
    api::{
        child,
        control::track,
        entry::{entry, padded, pass},
        event::of_event,
        extensions,
        own_error::{error_destroy, error_message},
        plugin,
    },
    engine::{Engine, process},
    fork,
    runtime::{client, device_memory::origins, executable::registry},
    sys::{self, CStruct},
};

/// The table's version while there is no engine.
const MINOR_WITHOUT_ENGINE: i32 = 81;

// Tables live until the process ends, and are not written once they are here.
static TABLE: OnceCell<AtomicPtr<sys::PJRT_Api>> = OnceCell::new();
static WITHOUT_ENGINE: OnceCell<AtomicPtr<sys::PJRT_Api>> = OnceCell::new();

/// The plugin's function table. Finds and loads the engine. Without one every function answers with an error that
/// says so, and the next call tries again.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const sys::PJRT_Api {
    let table = std::panic::catch_unwind(|| match process::engine() {
        Ok(engine) => TABLE.get_or_init(|| build(Some(engine))),
        Err(error) => {
            log::debug!("{error}");
            WITHOUT_ENGINE.get_or_init(|| build(None))
        }
    });
    table.map_or(ptr::null(), |table| table.load(Ordering::Relaxed).cast_const())
}

/// The table in front of `engine`.
fn build(engine: Option<&'static Engine>) -> AtomicPtr<sys::PJRT_Api> {
    let mut api = sys::PJRT_Api::default();
    let size = engine.map_or(offset_of!(sys::PJRT_Api, PJRT_Client_CreateErrorBuffer), Engine::table_size);
    api.struct_size = size.min(sys::PJRT_Api::STRUCT_SIZE);
    api.extension_start = engine.map_or(ptr::null_mut(), extensions::rebuild);
    api.pjrt_api_version = sys::PJRT_Api_Version {
        struct_size: size_of::<sys::PJRT_Api_Version>(),
        major_version: sys::PJRT_API_MAJOR as i32,
        minor_version: engine.map_or(MINOR_WITHOUT_ENGINE, Engine::minor).min(sys::PJRT_API_MINOR as i32),
        ..Default::default()
    };
    api.PJRT_Error_Destroy = Some(error_destroy);
    api.PJRT_Error_Message = Some(error_message);
    api.PJRT_Plugin_Attributes = Some(plugin::attributes);
    fill(&mut api, engine);
    fork::in_children(in_child);
    AtomicPtr::new(padded(api))
}

/// In a child after fork, which has one thread: replaces functions of the table, and leaves its parent's tables behind.
fn in_child() {
    if let Some(table) = TABLE.get()
        && !client::is_none_open()
    {
        // SAFETY: the table lives until the process ends. This thread is the only one, and in the middle of `fork`:
        // none reads the table.
        child::replace(unsafe { &mut *table.load(Ordering::Relaxed) });
    }
    client::leave_parents();
    registry::leave_parents();
    origins::leave_parents();
    track::leave_parents();
}

/// Whether the table has the function at `offset`: it reaches that far, and the engine has it.
fn has(api: &sys::PJRT_Api, engine: Option<&Engine>, offset: usize) -> bool {
    offset < api.struct_size && engine.is_none_or(|engine| engine.slot(offset).is_some())
}

macro_rules! fill {
    ($($kind:ident { $($function:ident $args:ident)* })*) => {
        /// Fills in all functions except those that [`build`] names.
        fn fill(api: &mut sys::PJRT_Api, engine: Option<&Engine>) {
            $($(
                if has(api, engine, offset_of!(sys::PJRT_Api, $function)) {
                    api.$function = Some($kind::<sys::$args>);
                }
            )*)*
        }
    };
}

fill! {
    // Implemented here, most with the engine's help.
    entry {
        PJRT_Error_GetCode PJRT_Error_GetCode_Args
        PJRT_Plugin_Initialize PJRT_Plugin_Initialize_Args
        PJRT_Client_Create PJRT_Client_Create_Args
        PJRT_Client_Destroy PJRT_Client_Destroy_Args
        PJRT_Client_PlatformVersion PJRT_Client_PlatformVersion_Args
        PJRT_Client_Compile PJRT_Client_Compile_Args
        PJRT_Client_BufferFromHostBuffer PJRT_Client_BufferFromHostBuffer_Args
        PJRT_Device_MemoryStats PJRT_Device_MemoryStats_Args
        PJRT_Executable_Destroy PJRT_Executable_Destroy_Args
        PJRT_Executable_OptimizedProgram PJRT_Executable_OptimizedProgram_Args
        PJRT_Executable_Serialize PJRT_Executable_Serialize_Args
        PJRT_LoadedExecutable_Destroy PJRT_LoadedExecutable_Destroy_Args
        PJRT_LoadedExecutable_GetExecutable PJRT_LoadedExecutable_GetExecutable_Args
        PJRT_LoadedExecutable_Execute PJRT_LoadedExecutable_Execute_Args
        PJRT_Executable_DeserializeAndLoad PJRT_Executable_DeserializeAndLoad_Args
        PJRT_Buffer_Destroy PJRT_Buffer_Destroy_Args
        PJRT_Buffer_ElementType PJRT_Buffer_ElementType_Args
        PJRT_Buffer_Dimensions PJRT_Buffer_Dimensions_Args
        PJRT_Buffer_UnpaddedDimensions PJRT_Buffer_UnpaddedDimensions_Args
        PJRT_Buffer_DynamicDimensionIndices PJRT_Buffer_DynamicDimensionIndices_Args
        PJRT_Buffer_GetMemoryLayout PJRT_Buffer_GetMemoryLayout_Args
        PJRT_Buffer_OnDeviceSizeInBytes PJRT_Buffer_OnDeviceSizeInBytes_Args
        PJRT_Buffer_Device PJRT_Buffer_Device_Args
        PJRT_Buffer_Memory PJRT_Buffer_Memory_Args
        PJRT_Buffer_Delete PJRT_Buffer_Delete_Args
        PJRT_Buffer_IsDeleted PJRT_Buffer_IsDeleted_Args
        PJRT_Buffer_CopyToDevice PJRT_Buffer_CopyToDevice_Args
        PJRT_Buffer_ToHostBuffer PJRT_Buffer_ToHostBuffer_Args
        PJRT_Buffer_IsOnCpu PJRT_Buffer_IsOnCpu_Args
        PJRT_Buffer_ReadyEvent PJRT_Buffer_ReadyEvent_Args
        PJRT_Buffer_UnsafePointer PJRT_Buffer_UnsafePointer_Args
        PJRT_Buffer_IncreaseExternalReferenceCount PJRT_Buffer_IncreaseExternalReferenceCount_Args
        PJRT_Buffer_DecreaseExternalReferenceCount PJRT_Buffer_DecreaseExternalReferenceCount_Args
        PJRT_Buffer_OpaqueDeviceMemoryDataPointer PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args
        PJRT_Compile PJRT_Compile_Args
        PJRT_Buffer_CopyToMemory PJRT_Buffer_CopyToMemory_Args
        PJRT_Client_CreateViewOfDeviceBuffer PJRT_Client_CreateViewOfDeviceBuffer_Args
        PJRT_Executable_GetCostAnalysis PJRT_Executable_GetCostAnalysis_Args
        PJRT_Executable_GetCompiledMemoryStats PJRT_Executable_GetCompiledMemoryStats_Args
        PJRT_ExecuteContext_Create PJRT_ExecuteContext_Create_Args
        PJRT_ExecuteContext_Destroy PJRT_ExecuteContext_Destroy_Args
        PJRT_Buffer_CopyRawToHost PJRT_Buffer_CopyRawToHost_Args
        PJRT_Client_CreateBuffersForAsyncHostToDevice PJRT_Client_CreateBuffersForAsyncHostToDevice_Args
        PJRT_AsyncHostToDeviceTransferManager_Destroy PJRT_AsyncHostToDeviceTransferManager_Destroy_Args
        PJRT_AsyncHostToDeviceTransferManager_TransferData PJRT_AsyncHostToDeviceTransferManager_TransferData_Args
        PJRT_AsyncHostToDeviceTransferManager_Device PJRT_AsyncHostToDeviceTransferManager_Device_Args
        PJRT_AsyncHostToDeviceTransferManager_BufferCount PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args
        PJRT_AsyncHostToDeviceTransferManager_BufferSize PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args
        PJRT_AsyncHostToDeviceTransferManager_SetBufferError PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args
        PJRT_AsyncHostToDeviceTransferManager_AddMetadata PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args
        PJRT_AsyncHostToDeviceTransferManager_TransferLiteral PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args
        PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args
        PJRT_Client_CreateUninitializedBuffer PJRT_Client_CreateUninitializedBuffer_Args
        PJRT_Client_CreateAliasBuffer PJRT_Client_CreateAliasBuffer_Args
        PJRT_Client_FulfillAliasBuffer PJRT_Client_FulfillAliasBuffer_Args
        PJRT_Client_CreateErrorBuffer PJRT_Client_CreateErrorBuffer_Args
        PJRT_Buffer_CopyRawToHostFuture PJRT_Buffer_CopyRawToHostFuture_Args
        PJRT_Executable_GetCompileOptions PJRT_Executable_GetCompileOptions_Args
        PJRT_Buffer_DonateWithControlDependency PJRT_Buffer_DonateWithControlDependency_Args
        PJRT_Client_Load PJRT_Client_Load_Args
        PJRT_Buffer_Bitcast PJRT_Buffer_Bitcast_Args
        PJRT_Error_ForEachPayload PJRT_Error_ForEachPayload_Args
        PJRT_Executable_OutputMemoryKinds PJRT_Executable_OutputMemoryKinds_Args
        PJRT_Executable_ParameterMemoryKinds PJRT_Executable_ParameterMemoryKinds_Args
        PJRT_Device_ClearMemoryStats PJRT_Device_ClearMemoryStats_Args
    }
    // Passed to the engine by the edge, but for the event that has happened.
    of_event {
        PJRT_Event_Destroy PJRT_Event_Destroy_Args
        PJRT_Event_IsReady PJRT_Event_IsReady_Args
        PJRT_Event_Error PJRT_Event_Error_Args
        PJRT_Event_Await PJRT_Event_Await_Args
        PJRT_Event_OnReady PJRT_Event_OnReady_Args
    }
    // Passed to the engine by the edge.
    pass {
        PJRT_Client_PlatformName PJRT_Client_PlatformName_Args
        PJRT_Client_ProcessIndex PJRT_Client_ProcessIndex_Args
        PJRT_Client_Devices PJRT_Client_Devices_Args
        PJRT_Client_AddressableDevices PJRT_Client_AddressableDevices_Args
        PJRT_Client_LookupDevice PJRT_Client_LookupDevice_Args
        PJRT_Client_LookupAddressableDevice PJRT_Client_LookupAddressableDevice_Args
        PJRT_Client_AddressableMemories PJRT_Client_AddressableMemories_Args
        PJRT_Client_DefaultDeviceAssignment PJRT_Client_DefaultDeviceAssignment_Args
        PJRT_DeviceDescription_Id PJRT_DeviceDescription_Id_Args
        PJRT_DeviceDescription_ProcessIndex PJRT_DeviceDescription_ProcessIndex_Args
        PJRT_DeviceDescription_Attributes PJRT_DeviceDescription_Attributes_Args
        PJRT_DeviceDescription_Kind PJRT_DeviceDescription_Kind_Args
        PJRT_DeviceDescription_DebugString PJRT_DeviceDescription_DebugString_Args
        PJRT_DeviceDescription_ToString PJRT_DeviceDescription_ToString_Args
        PJRT_Device_GetDescription PJRT_Device_GetDescription_Args
        PJRT_Device_IsAddressable PJRT_Device_IsAddressable_Args
        PJRT_Device_LocalHardwareId PJRT_Device_LocalHardwareId_Args
        PJRT_Device_AddressableMemories PJRT_Device_AddressableMemories_Args
        PJRT_Device_DefaultMemory PJRT_Device_DefaultMemory_Args
        PJRT_Memory_Id PJRT_Memory_Id_Args
        PJRT_Memory_Kind PJRT_Memory_Kind_Args
        PJRT_Memory_DebugString PJRT_Memory_DebugString_Args
        PJRT_Memory_ToString PJRT_Memory_ToString_Args
        PJRT_Memory_AddressableByDevices PJRT_Memory_AddressableByDevices_Args
        PJRT_Executable_Name PJRT_Executable_Name_Args
        PJRT_Executable_NumReplicas PJRT_Executable_NumReplicas_Args
        PJRT_Executable_NumPartitions PJRT_Executable_NumPartitions_Args
        PJRT_Executable_NumOutputs PJRT_Executable_NumOutputs_Args
        PJRT_Executable_SizeOfGeneratedCodeInBytes PJRT_Executable_SizeOfGeneratedCodeInBytes_Args
        PJRT_LoadedExecutable_AddressableDevices PJRT_LoadedExecutable_AddressableDevices_Args
        PJRT_LoadedExecutable_Delete PJRT_LoadedExecutable_Delete_Args
        PJRT_LoadedExecutable_IsDeleted PJRT_LoadedExecutable_IsDeleted_Args
        PJRT_LoadedExecutable_Fingerprint PJRT_LoadedExecutable_Fingerprint_Args
        PJRT_CopyToDeviceStream_Destroy PJRT_CopyToDeviceStream_Destroy_Args
        PJRT_CopyToDeviceStream_AddChunk PJRT_CopyToDeviceStream_AddChunk_Args
        PJRT_CopyToDeviceStream_TotalBytes PJRT_CopyToDeviceStream_TotalBytes_Args
        PJRT_CopyToDeviceStream_GranuleSize PJRT_CopyToDeviceStream_GranuleSize_Args
        PJRT_CopyToDeviceStream_CurrentBytes PJRT_CopyToDeviceStream_CurrentBytes_Args
        PJRT_TopologyDescription_Create PJRT_TopologyDescription_Create_Args
        PJRT_TopologyDescription_Destroy PJRT_TopologyDescription_Destroy_Args
        PJRT_TopologyDescription_PlatformName PJRT_TopologyDescription_PlatformName_Args
        PJRT_TopologyDescription_PlatformVersion PJRT_TopologyDescription_PlatformVersion_Args
        PJRT_TopologyDescription_GetDeviceDescriptions PJRT_TopologyDescription_GetDeviceDescriptions_Args
        PJRT_TopologyDescription_Serialize PJRT_TopologyDescription_Serialize_Args
        PJRT_TopologyDescription_Attributes PJRT_TopologyDescription_Attributes_Args
        PJRT_Executable_OutputElementTypes PJRT_Executable_OutputElementTypes_Args
        PJRT_Executable_OutputDimensions PJRT_Executable_OutputDimensions_Args
        PJRT_Executable_Fingerprint PJRT_Executable_Fingerprint_Args
        PJRT_Client_TopologyDescription PJRT_Client_TopologyDescription_Args
        PJRT_Memory_Kind_Id PJRT_Memory_Kind_Id_Args
        PJRT_Client_DmaMap PJRT_Client_DmaMap_Args
        PJRT_Client_DmaUnmap PJRT_Client_DmaUnmap_Args
        PJRT_Client_UpdateGlobalProcessInfo PJRT_Client_UpdateGlobalProcessInfo_Args
        PJRT_TopologyDescription_Deserialize PJRT_TopologyDescription_Deserialize_Args
        PJRT_LoadedExecutable_GetDeviceAssignment PJRT_LoadedExecutable_GetDeviceAssignment_Args
        PJRT_Device_PoisonExecution PJRT_Device_PoisonExecution_Args
        PJRT_Device_CreateAsyncTrackingEvent PJRT_Device_CreateAsyncTrackingEvent_Args
        PJRT_AsyncTrackingEvent_Destroy PJRT_AsyncTrackingEvent_Destroy_Args
        PJRT_Event_Create PJRT_Event_Create_Args
        PJRT_Event_Set PJRT_Event_Set_Args
        PJRT_Device_GetAttributes PJRT_Device_GetAttributes_Args
        PJRT_LoadedExecutable_AddressableDeviceLogicalIds PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args
        PJRT_TopologyDescription_Fingerprint PJRT_TopologyDescription_Fingerprint_Args
        PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args
        PJRT_TopologyDescription_GetMemorySpaceKindIds PJRT_TopologyDescription_GetMemorySpaceKindIds_Args
    }
}

// The PJRT C ABI that pjrt-arena speaks, minor versions 0.81 to 0.115: the function table, and the rest included.
//
//   pjrt_base.h        versions, extensions, errors, events, element types, layouts
//   pjrt_client.h      the client, devices, memories
//   pjrt_topology.h    topologies
//   pjrt_buffer.h      buffers and the ways into and out of them
//   pjrt_executable.h  compiling, executables, executing
//   pjrt_c_api_extensions.h  the extensions (not included here)
//
// Names, order, types and layout are those of OpenXLA's header (Apache-2.0), so that source written for it compiles
// against this one too; the text is ours. A mark such as [0.76] names the minor version in which a function or a field
// appeared; what has no mark was there in 0.57, when the table was last reordered. README.md says how this file is
// checked and how a new version is added.
#ifndef PJRT_ARENA_PJRT_C_API_H
#define PJRT_ARENA_PJRT_C_API_H

#include "pjrt_executable.h"

#ifdef __cplusplus
extern "C" {
#endif

// What a plugin's only exported symbol, `const PJRT_Api *GetPjrtApi(void)`, gives. Functions are only ever added at the
// end: read a slot only when struct_size covers it.
typedef struct PJRT_Api {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Api_Version pjrt_api_version;

  PJRT_SLOT(PJRT_Error_Destroy);
  PJRT_SLOT(PJRT_Error_Message);
  PJRT_SLOT(PJRT_Error_GetCode);

  PJRT_SLOT(PJRT_Plugin_Initialize);
  PJRT_SLOT(PJRT_Plugin_Attributes);

  PJRT_SLOT(PJRT_Event_Destroy);
  PJRT_SLOT(PJRT_Event_IsReady);
  PJRT_SLOT(PJRT_Event_Error);
  PJRT_SLOT(PJRT_Event_Await);
  PJRT_SLOT(PJRT_Event_OnReady);

  PJRT_SLOT(PJRT_Client_Create);
  PJRT_SLOT(PJRT_Client_Destroy);
  PJRT_SLOT(PJRT_Client_PlatformName);
  PJRT_SLOT(PJRT_Client_ProcessIndex);
  PJRT_SLOT(PJRT_Client_PlatformVersion);
  PJRT_SLOT(PJRT_Client_Devices);
  PJRT_SLOT(PJRT_Client_AddressableDevices);
  PJRT_SLOT(PJRT_Client_LookupDevice);
  PJRT_SLOT(PJRT_Client_LookupAddressableDevice);
  PJRT_SLOT(PJRT_Client_AddressableMemories);
  PJRT_SLOT(PJRT_Client_Compile);
  PJRT_SLOT(PJRT_Client_DefaultDeviceAssignment);
  PJRT_SLOT(PJRT_Client_BufferFromHostBuffer);

  PJRT_SLOT(PJRT_DeviceDescription_Id);
  PJRT_SLOT(PJRT_DeviceDescription_ProcessIndex);
  PJRT_SLOT(PJRT_DeviceDescription_Attributes);
  PJRT_SLOT(PJRT_DeviceDescription_Kind);
  PJRT_SLOT(PJRT_DeviceDescription_DebugString);
  PJRT_SLOT(PJRT_DeviceDescription_ToString);

  PJRT_SLOT(PJRT_Device_GetDescription);
  PJRT_SLOT(PJRT_Device_IsAddressable);
  PJRT_SLOT(PJRT_Device_LocalHardwareId);
  PJRT_SLOT(PJRT_Device_AddressableMemories);
  PJRT_SLOT(PJRT_Device_DefaultMemory);
  PJRT_SLOT(PJRT_Device_MemoryStats);

  PJRT_SLOT(PJRT_Memory_Id);
  PJRT_SLOT(PJRT_Memory_Kind);
  PJRT_SLOT(PJRT_Memory_DebugString);
  PJRT_SLOT(PJRT_Memory_ToString);
  PJRT_SLOT(PJRT_Memory_AddressableByDevices);

  PJRT_SLOT(PJRT_Executable_Destroy);
  PJRT_SLOT(PJRT_Executable_Name);
  PJRT_SLOT(PJRT_Executable_NumReplicas);
  PJRT_SLOT(PJRT_Executable_NumPartitions);
  PJRT_SLOT(PJRT_Executable_NumOutputs);
  PJRT_SLOT(PJRT_Executable_SizeOfGeneratedCodeInBytes);
  PJRT_SLOT(PJRT_Executable_GetCostAnalysis);
  PJRT_SLOT(PJRT_Executable_OutputMemoryKinds);
  PJRT_SLOT(PJRT_Executable_OptimizedProgram);
  PJRT_SLOT(PJRT_Executable_Serialize);

  PJRT_SLOT(PJRT_LoadedExecutable_Destroy);
  PJRT_SLOT(PJRT_LoadedExecutable_GetExecutable);
  PJRT_SLOT(PJRT_LoadedExecutable_AddressableDevices);
  PJRT_SLOT(PJRT_LoadedExecutable_Delete);
  PJRT_SLOT(PJRT_LoadedExecutable_IsDeleted);
  PJRT_SLOT(PJRT_LoadedExecutable_Execute);

  PJRT_SLOT(PJRT_Executable_DeserializeAndLoad);

  PJRT_SLOT(PJRT_LoadedExecutable_Fingerprint);

  PJRT_SLOT(PJRT_Buffer_Destroy);
  PJRT_SLOT(PJRT_Buffer_ElementType);
  PJRT_SLOT(PJRT_Buffer_Dimensions);
  PJRT_SLOT(PJRT_Buffer_UnpaddedDimensions);
  PJRT_SLOT(PJRT_Buffer_DynamicDimensionIndices);
  PJRT_SLOT(PJRT_Buffer_GetMemoryLayout);
  PJRT_SLOT(PJRT_Buffer_OnDeviceSizeInBytes);
  PJRT_SLOT(PJRT_Buffer_Device);
  PJRT_SLOT(PJRT_Buffer_Memory);
  PJRT_SLOT(PJRT_Buffer_Delete);
  PJRT_SLOT(PJRT_Buffer_IsDeleted);
  PJRT_SLOT(PJRT_Buffer_CopyToDevice);
  PJRT_SLOT(PJRT_Buffer_ToHostBuffer);
  PJRT_SLOT(PJRT_Buffer_IsOnCpu);
  PJRT_SLOT(PJRT_Buffer_ReadyEvent);
  PJRT_SLOT(PJRT_Buffer_UnsafePointer);
  PJRT_SLOT(PJRT_Buffer_IncreaseExternalReferenceCount);
  PJRT_SLOT(PJRT_Buffer_DecreaseExternalReferenceCount);
  PJRT_SLOT(PJRT_Buffer_OpaqueDeviceMemoryDataPointer);

  PJRT_SLOT(PJRT_CopyToDeviceStream_Destroy);
  PJRT_SLOT(PJRT_CopyToDeviceStream_AddChunk);
  PJRT_SLOT(PJRT_CopyToDeviceStream_TotalBytes);
  PJRT_SLOT(PJRT_CopyToDeviceStream_GranuleSize);
  PJRT_SLOT(PJRT_CopyToDeviceStream_CurrentBytes);

  PJRT_SLOT(PJRT_TopologyDescription_Create);
  PJRT_SLOT(PJRT_TopologyDescription_Destroy);
  PJRT_SLOT(PJRT_TopologyDescription_PlatformName);
  PJRT_SLOT(PJRT_TopologyDescription_PlatformVersion);
  PJRT_SLOT(PJRT_TopologyDescription_GetDeviceDescriptions);
  PJRT_SLOT(PJRT_TopologyDescription_Serialize);
  PJRT_SLOT(PJRT_TopologyDescription_Attributes);

  PJRT_SLOT(PJRT_Compile);

  // From here on, in the order of their arrival.
  PJRT_SLOT(PJRT_Executable_OutputElementTypes);
  PJRT_SLOT(PJRT_Executable_OutputDimensions);
  PJRT_SLOT(PJRT_Buffer_CopyToMemory);
  PJRT_SLOT(PJRT_Client_CreateViewOfDeviceBuffer);
  PJRT_SLOT(PJRT_Executable_Fingerprint);
  PJRT_SLOT(PJRT_Client_TopologyDescription);
  PJRT_SLOT(PJRT_Executable_GetCompiledMemoryStats);
  PJRT_SLOT(PJRT_Memory_Kind_Id);  // [0.48]
  PJRT_SLOT(PJRT_ExecuteContext_Create);  // [0.52]
  PJRT_SLOT(PJRT_ExecuteContext_Destroy);  // [0.52]
  PJRT_SLOT(PJRT_Buffer_CopyRawToHost);  // [0.56]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_Destroy);  // [0.60]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_TransferData);  // [0.60]
  PJRT_SLOT(PJRT_Client_CreateBuffersForAsyncHostToDevice);  // [0.60]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer);  // [0.62]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_Device);  // [0.62]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_BufferCount);  // [0.62]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_BufferSize);  // [0.62]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_SetBufferError);  // [0.62]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_AddMetadata);  // [0.62]
  PJRT_SLOT(PJRT_Client_DmaMap);  // [0.67]
  PJRT_SLOT(PJRT_Client_DmaUnmap);  // [0.67]
  PJRT_SLOT(PJRT_Client_CreateUninitializedBuffer);  // [0.69]
  PJRT_SLOT(PJRT_Client_UpdateGlobalProcessInfo);  // [0.73]
  PJRT_SLOT(PJRT_TopologyDescription_Deserialize);  // [0.75]
  PJRT_SLOT(PJRT_Client_CreateAliasBuffer);  // [0.77]
  PJRT_SLOT(PJRT_Client_FulfillAliasBuffer);  // [0.77]
  PJRT_SLOT(PJRT_LoadedExecutable_GetDeviceAssignment);  // [0.79]
  PJRT_SLOT(PJRT_Client_CreateErrorBuffer);  // [0.82]
  PJRT_SLOT(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral);  // [0.83]
  PJRT_SLOT(PJRT_Buffer_CopyRawToHostFuture);  // [0.84]
  PJRT_SLOT(PJRT_Device_PoisonExecution);  // [0.85]
  PJRT_SLOT(PJRT_Device_CreateAsyncTrackingEvent);  // [0.86]
  PJRT_SLOT(PJRT_AsyncTrackingEvent_Destroy);  // [0.86]
  PJRT_SLOT(PJRT_Executable_GetCompileOptions);  // [0.87]
  PJRT_SLOT(PJRT_Buffer_DonateWithControlDependency);  // [0.88]
  PJRT_SLOT(PJRT_Event_Create);  // [0.89]
  PJRT_SLOT(PJRT_Event_Set);  // [0.89]
  PJRT_SLOT(PJRT_Device_GetAttributes);  // [0.92]
  PJRT_SLOT(PJRT_Client_Load);  // [0.95]
  PJRT_SLOT(PJRT_LoadedExecutable_AddressableDeviceLogicalIds);  // [0.96]
  PJRT_SLOT(PJRT_Buffer_Bitcast);  // [0.98]
  PJRT_SLOT(PJRT_Error_ForEachPayload);  // [0.99]
  PJRT_SLOT(PJRT_TopologyDescription_Fingerprint);  // [0.101]
  PJRT_SLOT(PJRT_Executable_ParameterMemoryKinds);  // [0.102]
  PJRT_SLOT(PJRT_Device_ClearMemoryStats);  // [0.106]
  PJRT_SLOT(PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace);  // [0.109]
  PJRT_SLOT(PJRT_TopologyDescription_GetMemorySpaceKindIds);  // [0.110]
} PJRT_Api;
PJRT_STRUCT_GREW(PJRT_Api, PJRT_Client_CreateUninitializedBuffer, PJRT_TopologyDescription_GetMemorySpaceKindIds)

#ifdef __cplusplus
}
#endif

#endif  // PJRT_ARENA_PJRT_C_API_H

// PJRT C ABI, part 4: how buffers come into being, what can be asked of them, and how bytes go in and out.
#ifndef PJRT_ARENA_PJRT_BUFFER_H
#define PJRT_ARENA_PJRT_BUFFER_H

#include "pjrt_topology.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PJRT_Buffer PJRT_Buffer;
typedef struct PJRT_AsyncHostToDeviceTransferManager PJRT_AsyncHostToDeviceTransferManager;
typedef struct PJRT_FulfillAliasBufferCallback PJRT_FulfillAliasBufferCallback;

// ---- Making buffers: the caller destroys what comes back --------------------------------------------------------

// Copies an array of the host to a device, or lets the buffer alias it.
struct PJRT_Client_BufferFromHostBuffer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  const void *data;
  PJRT_Buffer_Type type;
  const int64_t *dims; size_t num_dims;
  const int64_t *byte_strides; size_t num_byte_strides;  // none: dense, row major
  PJRT_HostBufferSemantics host_buffer_semantics;
  PJRT_Device *device;
  PJRT_Memory *memory;  // NULL: device's default memory
  PJRT_Buffer_MemoryLayout *device_layout;  // NULL: dense, row major
  PJRT_Event *done_with_host_buffer;  // out: when the host may change `data` again; the caller destroys it
  PJRT_Buffer *buffer;  // out
};
PJRT_FN(PJRT_Client_BufferFromHostBuffer, buffer)

// A buffer over memory that somebody else owns. Donating it lets a program write there.
struct PJRT_Client_CreateViewOfDeviceBuffer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  void *device_buffer_ptr;
  const int64_t *dims; size_t num_dims;
  PJRT_Buffer_Type element_type;
  PJRT_Buffer_MemoryLayout *layout;  // NULL is allowed on CPU only
  PJRT_Device *device;  // deprecated: memory says it
  // NULL, or called once when the buffer needs the memory no more
  void (*on_delete_callback)(void *device_buffer_ptr, void *user_arg);
  void *on_delete_callback_arg;
  intptr_t stream;  // 0, or a stream on which the contents become ready
  PJRT_Buffer *buffer;  // out
  PJRT_Memory *memory;  // [0.66]
};
PJRT_FN_GREW(PJRT_Client_CreateViewOfDeviceBuffer, buffer, memory)

// [0.69] Memory with no defined contents.
struct PJRT_Client_CreateUninitializedBuffer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  const int64_t *shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout *shape_layout;
  PJRT_Device *device;
  PJRT_Memory *memory;  // NULL: device's default memory
  PJRT_Buffer *buffer;  // out
};
PJRT_FN(PJRT_Client_CreateUninitializedBuffer, buffer)

// [0.82] A buffer without memory; whatever uses it fails with this error.
struct PJRT_Client_CreateErrorBuffer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_Error_Code error_code;
  const char *error_message; size_t error_message_size;
  const int64_t *shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout *shape_layout;
  PJRT_Memory *memory;
  PJRT_Buffer *buffer;  // out
  const PJRT_NamedValue *payload; size_t num_payload;  // [0.103]
};
PJRT_FN_GREW(PJRT_Client_CreateErrorBuffer, buffer, num_payload)

// [0.77] A buffer whose contents another buffer provides later, through the callback.
struct PJRT_Client_CreateAliasBuffer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_Memory *memory;
  const int64_t *shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout *shape_layout;
  PJRT_Buffer *alias_buffer;  // out
  PJRT_FulfillAliasBufferCallback *fulfill_alias_buffer_cb;  // out
};
PJRT_FN(PJRT_Client_CreateAliasBuffer, fulfill_alias_buffer_cb)

// [0.77] Provides them, or the error.
struct PJRT_Client_FulfillAliasBuffer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_Buffer *buffer;  // when status_code is OK
  PJRT_Error_Code status_code;
  const char *error_message; size_t error_message_size;
  PJRT_FulfillAliasBufferCallback *fulfill_alias_buffer_cb;
};
PJRT_FN(PJRT_Client_FulfillAliasBuffer, fulfill_alias_buffer_cb)

// ---- Filling several buffers piece by piece ---------------------------------------------------------------------

// [0.60] Makes the buffers, undefined until their transfers end.
struct PJRT_Client_CreateBuffersForAsyncHostToDevice_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_ShapeSpec *shape_specs; size_t num_shape_specs;
  PJRT_Buffer_MemoryLayout **device_layouts; size_t num_device_layouts;  // may be NULL
  PJRT_Memory *memory;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;  // out
};
PJRT_FN(PJRT_Client_CreateBuffersForAsyncHostToDevice, transfer_manager)

// [0.60] NULL is allowed. Buffers that were not filled become errors.
struct PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_Destroy, transfer_manager)

// [0.60] Copies bytes into a buffer; the last transfer makes it ready.
struct PJRT_AsyncHostToDeviceTransferManager_TransferData_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
  int buffer_index;
  const void *data;
  int64_t offset;
  int64_t transfer_size;
  bool is_last_transfer;
  PJRT_Event *done_with_h2d_transfer;  // out
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_TransferData, done_with_h2d_transfer)

// [0.83] Copies a whole array into a buffer, in the layout given.
struct PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
  int buffer_index;
  const void *data;
  const int64_t *shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout *shape_layout;
  PJRT_Event *done_with_h2d_transfer;  // out
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral, done_with_h2d_transfer)

// [0.62] Hands a buffer over, once; it need not be ready.
struct PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
  int buffer_index;
  PJRT_Buffer *buffer_out;  // out
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer, buffer_out)

// [0.62]
struct PJRT_AsyncHostToDeviceTransferManager_Device_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
  PJRT_Device *device_out;  // out
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_Device, device_out)

// [0.62]
struct PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
  size_t buffer_count;  // out
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_BufferCount, buffer_count)

// [0.62] In bytes, on the device.
struct PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
  int buffer_index;
  size_t buffer_size;  // out
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_BufferSize, buffer_size)

// [0.62] Makes a buffer an error instead.
struct PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
  int buffer_index;
  PJRT_Error_Code error_code;
  const char *error_message; size_t error_message_size;
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_SetBufferError, error_message_size)

// [0.62]
struct PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncHostToDeviceTransferManager *transfer_manager;
  const PJRT_NamedValue *transfer_metadata; size_t num_metadata;
};
PJRT_FN(PJRT_AsyncHostToDeviceTransferManager_AddMetadata, num_metadata)

// ---- Buffers ----------------------------------------------------------------------------------------------------
// What the getters give is the buffer's own and lives as long as it.

// Deletes if need be, and gives the handle back; NULL is allowed.
struct PJRT_Buffer_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
};
PJRT_FN(PJRT_Buffer_Destroy, buffer)

struct PJRT_Buffer_ElementType_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Buffer_Type type;  // out
};
PJRT_FN(PJRT_Buffer_ElementType, type)

struct PJRT_Buffer_Dimensions_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  const int64_t *dims; size_t num_dims;  // out
};
PJRT_FN(PJRT_Buffer_Dimensions, num_dims)

// Smaller than the dimensions where one is dynamic.
struct PJRT_Buffer_UnpaddedDimensions_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  const int64_t *unpadded_dims; size_t num_dims;  // out
};
PJRT_FN(PJRT_Buffer_UnpaddedDimensions, num_dims)

struct PJRT_Buffer_DynamicDimensionIndices_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  const size_t *dynamic_dim_indices; size_t num_dynamic_dims;  // out
};
PJRT_FN(PJRT_Buffer_DynamicDimensionIndices, num_dynamic_dims)

// Deprecated [0.54]: the Layouts extension.
struct PJRT_Buffer_GetMemoryLayout_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Buffer_MemoryLayout layout;  // out
};
PJRT_FN(PJRT_Buffer_GetMemoryLayout, layout)

struct PJRT_Buffer_OnDeviceSizeInBytes_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  size_t on_device_size_in_bytes;  // out
};
PJRT_FN(PJRT_Buffer_OnDeviceSizeInBytes, on_device_size_in_bytes)

struct PJRT_Buffer_Device_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Device *device;  // out
};
PJRT_FN(PJRT_Buffer_Device, device)

struct PJRT_Buffer_Memory_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Memory *memory;  // out
};
PJRT_FN(PJRT_Buffer_Memory, memory)

// Whether the host can read the memory directly.
struct PJRT_Buffer_IsOnCpu_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  bool is_on_cpu;  // out
};
PJRT_FN(PJRT_Buffer_IsOnCpu, is_on_cpu)

// Lets go of the memory once running work is done with it. The handle stays valid.
struct PJRT_Buffer_Delete_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
};
PJRT_FN(PJRT_Buffer_Delete, buffer)

// Also true after a donation.
struct PJRT_Buffer_IsDeleted_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  bool is_deleted;  // out
};
PJRT_FN(PJRT_Buffer_IsDeleted, is_deleted)

// When the contents are there, or an error; at once an error if the buffer is deleted already.
struct PJRT_Buffer_ReadyEvent_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Event *event;  // out
};
PJRT_FN(PJRT_Buffer_ReadyEvent, event)

// Copies to the host. Called with dst NULL it only writes the bytes needed to dst_size.
struct PJRT_Buffer_ToHostBuffer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *src;
  PJRT_Buffer_MemoryLayout *host_layout;  // NULL: the buffer's
  void *dst; size_t dst_size;  // in/out
  PJRT_Event *event;  // out: when the copy is done
};
PJRT_FN(PJRT_Buffer_ToHostBuffer, event)

// [0.56] Copies transfer_size bytes from offset on, in the device's layout.
struct PJRT_Buffer_CopyRawToHost_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  void *dst;
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event *event;  // out
};
PJRT_FN(PJRT_Buffer_CopyRawToHost, event)

// [0.84]
struct PJRT_Buffer_CopyRawToHostFuture_Callback_Args {
  size_t struct_size;
  void *callback_data;  // the one that PJRT_Buffer_CopyRawToHostFuture gave
  PJRT_Error_Code error_code;
  const char *error_message; size_t error_message_size;  // only with an error
  void *dst;  // only without one
};
PJRT_STRUCT(PJRT_Buffer_CopyRawToHostFuture_Callback_Args, dst)

// [0.84] The same, to a place that the caller names later, by calling the callback.
struct PJRT_Buffer_CopyRawToHostFuture_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event *event;  // out
  void *callback_data;  // out
  void (*future_ready_callback)(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args);  // out
};
PJRT_FN(PJRT_Buffer_CopyRawToHostFuture, future_ready_callback)

// A copy on another device of the client, which the caller destroys.
struct PJRT_Buffer_CopyToDevice_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Device *dst_device;
  PJRT_Buffer *dst_buffer;  // out
};
PJRT_FN(PJRT_Buffer_CopyToDevice, dst_buffer)

// A copy in another memory of the client, which the caller destroys.
struct PJRT_Buffer_CopyToMemory_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Memory *dst_memory;
  PJRT_Buffer *dst_buffer;  // out
};
PJRT_FN(PJRT_Buffer_CopyToMemory, dst_buffer)

// [0.98] The same bytes as another type or shape; the buffer is used up.
struct PJRT_Buffer_Bitcast_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Buffer_Type element_type;
  const int64_t *dims; size_t num_dims;
  PJRT_Buffer_MemoryLayout *device_layout;  // NULL: the default one, not the buffer's
  PJRT_Buffer *out_buffer;  // out
};
PJRT_FN(PJRT_Buffer_Bitcast, out_buffer)

// [0.88]
struct PJRT_Buffer_DonateWithControlDependency_Callback_Args {
  size_t struct_size;
  void *callback_data;
  PJRT_Error_Code error_code;
  const char *error_message; size_t error_message_size;
};
PJRT_STRUCT(PJRT_Buffer_DonateWithControlDependency_Callback_Args, error_message_size)

// [0.88] The same memory as a new buffer, which is not ready before the callback is called; the old one is
// used up.
struct PJRT_Buffer_DonateWithControlDependency_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  void *callback_data;  // out
  void (*dependency_ready_callback)(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args);  // out
  PJRT_Buffer *out_buffer;  // out
};
PJRT_FN(PJRT_Buffer_DonateWithControlDependency, out_buffer)

// The address, with no promise how long it holds.
struct PJRT_Buffer_UnsafePointer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  uintptr_t buffer_pointer;  // out
};
PJRT_FN(PJRT_Buffer_UnsafePointer, buffer_pointer)

// An outsider shares the memory: it must not be moved or freed until the count drops again.
struct PJRT_Buffer_IncreaseExternalReferenceCount_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
};
PJRT_FN(PJRT_Buffer_IncreaseExternalReferenceCount, buffer)

// An error when the count is 0.
struct PJRT_Buffer_DecreaseExternalReferenceCount_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
};
PJRT_FN(PJRT_Buffer_DecreaseExternalReferenceCount, buffer)

// The address; it holds while the external reference count is above 0.
struct PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  void *device_memory_ptr;  // out
};
PJRT_FN(PJRT_Buffer_OpaqueDeviceMemoryDataPointer, device_memory_ptr)

// ---- Streams into a receive of a running program ----------------------------------------------------------------

// Bytes together with the way to free them.
struct PJRT_Chunk {
  void *data; size_t size;
  void (*deleter)(void *data, void *deleter_arg);
  void *deleter_arg;
};
PJRT_STRUCT(PJRT_Chunk, deleter_arg)

typedef struct PJRT_CopyToDeviceStream PJRT_CopyToDeviceStream;
// NULL is allowed.
struct PJRT_CopyToDeviceStream_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_CopyToDeviceStream *stream;
};
PJRT_FN(PJRT_CopyToDeviceStream_Destroy, stream)

// Starts the transfer of a chunk, whose deleter the plugin calls.
struct PJRT_CopyToDeviceStream_AddChunk_Args {
  PJRT_ARGS_HEAD;
  PJRT_CopyToDeviceStream *stream;
  PJRT_Chunk *chunk;
  // out: also fails on too many bytes, or on a chunk that is no multiple of the granule
  PJRT_Event *transfer_complete;
};
PJRT_FN(PJRT_CopyToDeviceStream_AddChunk, transfer_complete)

// What the program expects.
struct PJRT_CopyToDeviceStream_TotalBytes_Args {
  PJRT_ARGS_HEAD;
  PJRT_CopyToDeviceStream *stream;
  int64_t total_bytes;  // out
};
PJRT_FN(PJRT_CopyToDeviceStream_TotalBytes, total_bytes)

// Chunks are multiples of this.
struct PJRT_CopyToDeviceStream_GranuleSize_Args {
  PJRT_ARGS_HEAD;
  PJRT_CopyToDeviceStream *stream;
  int64_t granule_size_in_bytes;  // out
};
PJRT_FN(PJRT_CopyToDeviceStream_GranuleSize, granule_size_in_bytes)

// Sent or queued so far.
struct PJRT_CopyToDeviceStream_CurrentBytes_Args {
  PJRT_ARGS_HEAD;
  PJRT_CopyToDeviceStream *stream;
  int64_t current_bytes;  // out
};
PJRT_FN(PJRT_CopyToDeviceStream_CurrentBytes, current_bytes)

#ifdef __cplusplus
}
#endif

#endif  // PJRT_ARENA_PJRT_BUFFER_H

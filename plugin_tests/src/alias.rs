//! Alias buffers: handed out first, given their contents by another buffer later.

use std::ptr;

use crate::{
    Plugin,
    buffer::{Buffer, ElementType},
    call,
    client::{Client, Memory},
    raw::{Failure, Result},
    sys,
};

/// The promise behind an alias buffer; it must be kept exactly once.
pub struct Promise {
    plugin: &'static Plugin,
    client: *mut sys::PJRT_Client,
    raw: *mut sys::PJRT_FulfillAliasBufferCallback,
}

/// `PJRT_Client_CreateAliasBuffer` in the first device's default memory.
///
/// # Errors
/// The plugin's.
pub fn create(client: &Client, element_type: ElementType, dims: &[i64]) -> Result<(Buffer, Promise)> {
    create_in(client, client.device().default_memory(), element_type, dims)
}

/// The same in `memory`.
///
/// # Errors
/// The plugin's.
pub fn create_in(
    client: &Client,
    memory: Memory,
    element_type: ElementType,
    dims: &[i64],
) -> Result<(Buffer, Promise)> {
    let args = call!(
        client.plugin(),
        PJRT_Client_CreateAliasBuffer {
            client: client.raw(),
            memory: memory.raw(),
            shape_dims: dims.as_ptr(),
            shape_num_dims: dims.len(),
            shape_element_type: element_type.raw(),
        }
    )?;
    let promise = Promise { plugin: client.plugin(), client: client.raw(), raw: args.fulfill_alias_buffer_cb };
    Ok((Buffer::own(client.plugin(), args.alias_buffer), promise))
}

impl Promise {
    /// `PJRT_Client_FulfillAliasBuffer` with a buffer or an error.
    ///
    /// # Errors
    /// The plugin's.
    pub fn keep(self, outcome: std::result::Result<&Buffer, &Failure>) -> Result<()> {
        let (code, message) = outcome.err().map_or((0, ""), |failure| (failure.code.0, failure.message.as_str()));
        call!(
            self.plugin,
            PJRT_Client_FulfillAliasBuffer {
                client: self.client,
                buffer: outcome.map_or(ptr::null_mut(), Buffer::raw),
                status_code: sys::PJRT_Error_Code(code),
                error_message: message.as_ptr().cast(),
                error_message_size: message.len(),
                fulfill_alias_buffer_cb: self.raw,
            }
        )
        .map(drop)
    }
}

//! What callers ask a transfer manager for: arrays to create, and the shape of a literal.
//!
//! Everything is checked here, before the engine sees it: the engine of PJRT 0.81 aborts the process on an element type
//! that it does not know and on dimensions whose product overflows, and reads past a layout that is too short.

use smallvec::SmallVec;

use crate::{
    error::{Error, Result},
    runtime::{
        shape::{Shape, element_bytes},
        transfer::caller_layout::CallerLayout,
    },
    sys::{self, slice},
};

const CREATE: &str = "PJRT_Client_CreateBuffersForAsyncHostToDevice";
const LITERAL: &str = "PJRT_AsyncHostToDeviceTransferManager_TransferLiteral";

/// One array to create, checked.
pub struct Spec<'a> {
    /// The caller's struct.
    raw: sys::PJRT_ShapeSpec,
    /// Sizes of the dimensions.
    pub dims: &'a [i64],
    /// The caller's layout; NULL for the default one, or valid for `'a`.
    layout: *mut sys::PJRT_Buffer_MemoryLayout,
}

impl Spec<'_> {
    /// The caller's struct and layout, which is NULL for the default one.
    pub fn raw(&self) -> (sys::PJRT_ShapeSpec, *mut sys::PJRT_Buffer_MemoryLayout) {
        (self.raw, self.layout)
    }

    /// The type of an element.
    pub fn element_type(&self) -> sys::PJRT_Buffer_Type {
        self.raw.element_type
    }

    /// Whether the layout is the default one.
    pub fn has_default_layout(&self) -> bool {
        // SAFETY: the layout is NULL or valid, as `specs` asked.
        unsafe { CallerLayout::read(self.layout) }.is_default()
    }
}

/// The newest element type that an engine of this minor version knows (its header's last enumerator).
fn newest_type(minor: i32) -> sys::PJRT_Buffer_Type {
    match minor {
        ..94 => sys::PJRT_Buffer_Type_F4E2M1FN,
        94..114 => sys::PJRT_Buffer_Type_U1,
        _ => sys::PJRT_Buffer_Type_F6E3M2FN,
    }
}

/// The arrays that the caller describes.
///
/// # Errors
/// INVALID_ARGUMENT for an absent list, another number of layouts than of shapes, an element type without bytes, a
/// negative dimension, more elements than 2^63 - 1, or a layout of another rank; it names the array by its index.
///
/// # Safety
/// The arrays must be as long as the caller says and live for `'a`; layouts must be NULL or valid.
pub unsafe fn specs<'a>(
    args: &sys::PJRT_Client_CreateBuffersForAsyncHostToDevice_Args,
    minor: i32,
) -> Result<Vec<Spec<'a>>> {
    let refuse = |why: String| Err(Error::invalid_argument(format!("{CREATE}: {why}")));
    let count = args.num_shape_specs;
    if args.shape_specs.is_null() && count > 0 {
        return refuse(format!("shape_specs is NULL, num_shape_specs is {count}"));
    }
    if args.device_layouts.is_null() && args.num_device_layouts > 0 {
        return refuse(format!("device_layouts is NULL, num_device_layouts is {}", args.num_device_layouts));
    }
    if args.num_device_layouts != 0 && args.num_device_layouts != count {
        return refuse(format!(
            "{} layouts for {count} shapes; there must be none or one for each",
            args.num_device_layouts
        ));
    }
    // SAFETY: the lists are as long as the caller says, as this function asks.
    let (shapes, layouts) =
        unsafe { (slice(args.shape_specs, count), slice(args.device_layouts, args.num_device_layouts)) };
    let mut specs = Vec::with_capacity(count);
    for (index, &raw) in shapes.iter().enumerate() {
        if raw.dims.is_null() && raw.num_dims > 0 {
            return refuse(format!("shape {index}: dims is NULL, num_dims is {}", raw.num_dims));
        }
        let (kind, newest) = (raw.element_type, newest_type(minor));
        if kind == sys::PJRT_Buffer_Type_INVALID || kind == sys::PJRT_Buffer_Type_TOKEN || kind.0 > newest.0 {
            return refuse(format!(
                "shape {index}: element type {} has no bytes to transfer; known are 1 to {}, without {}",
                kind.0,
                newest.0,
                sys::PJRT_Buffer_Type_TOKEN.0
            ));
        }
        let layout = layouts.get(index).copied().unwrap_or(std::ptr::null_mut());
        // SAFETY: the dimensions are as many as the caller says, and the layout NULL or valid, as this function asks.
        let (dims, asked_for): (&[i64], _) = unsafe { (slice(raw.dims, raw.num_dims), CallerLayout::read(layout)) };
        if let Some(dim) = dims.iter().find(|&&dim| dim < 0) {
            return refuse(format!("shape {index}: dimension {dim} of {dims:?} is negative"));
        }
        // A type narrower than a byte still takes a byte an element on the host.
        let bytes = i64::from(element_bytes(kind).unwrap_or(1));
        if dims.iter().try_fold(bytes, |product, &dim| product.checked_mul(dim)).is_none() {
            return refuse(format!("shape {index}: {dims:?} is more than {} bytes", i64::MAX));
        }
        if let CallerLayout::Tiled { minor_to_major: order, .. } = asked_for
            && !is_permutation(order, dims.len())
        {
            return refuse(format!("shape {index}: layout {order:?} does not order {} dimensions", dims.len()));
        }
        specs.push(Spec { raw, dims, layout });
    }
    Ok(specs)
}

/// Whether `order` names each of `rank` dimensions once.
fn is_permutation(order: &[i64], rank: usize) -> bool {
    let mut sorted: SmallVec<[i64; 6]> = SmallVec::from_slice(order);
    sorted.sort_unstable();
    sorted.into_iter().eq(0..rank as i64)
}

/// The byte strides of a dense array whose dimensions lie in `order`, the fastest first.
fn strides_of(order: &[i64], dims: &[i64], element: i64) -> SmallVec<[i64; 6]> {
    let mut strides = SmallVec::from_elem(0, dims.len());
    let mut step = element;
    for &dim in order {
        strides[dim as usize] = step;
        step = step.saturating_mul(dims[dim as usize]);
    }
    strides
}

/// The byte strides of the literal that the caller passes for an array of `shape`; `None` if it is dense in the default
/// layout.
///
/// # Errors
/// INVALID_ARGUMENT for another element type, other dimensions, or a layout that does not order them; UNIMPLEMENTED for
/// tiles and for types narrower than a byte.
///
/// # Safety
/// The arrays must be as long as the caller says; the layout must be NULL or valid.
pub unsafe fn literal_strides(
    args: &sys::PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args,
    shape: &Shape,
) -> Result<Option<SmallVec<[i64; 6]>>> {
    // SAFETY: the dimensions are as many as the caller says, and the layout is NULL or valid, as this function asks.
    let (dims, layout): (&[i64], _) =
        unsafe { (slice(args.shape_dims, args.shape_num_dims), CallerLayout::read(args.shape_layout)) };
    if args.shape_element_type != shape.element_type || dims != &*shape.dims {
        return Err(Error::invalid_argument(format!(
            "{LITERAL}: a literal of element type {} and dimensions {dims:?} for a buffer of element type {} and \
             dimensions {:?}",
            args.shape_element_type.0, shape.element_type.0, &*shape.dims
        )));
    }
    let (order, tiles) = match layout {
        CallerLayout::Default => return Ok(None),
        CallerLayout::Tiled { minor_to_major, tiles } => (minor_to_major, tiles),
        // XLA: a literal has a tiled layout, strides make none.
        CallerLayout::Other => {
            return Err(Error::invalid_argument(format!("{LITERAL}: the layout of a literal must be of type Tiled")));
        }
    };
    if tiles != 0 {
        return Err(Error::unimplemented(format!("{LITERAL}: the layout has {tiles} tiles; a literal must have none")));
    }
    if !is_permutation(order, dims.len()) {
        return Err(Error::invalid_argument(format!(
            "{LITERAL}: layout {order:?} does not order {} dimensions",
            dims.len()
        )));
    }
    let element = element_bytes(shape.element_type)
        .ok_or_else(|| Error::unimplemented(format!("{LITERAL}: element type {}", shape.element_type.0)))?;
    Ok(Some(strides_of(order, dims, i64::from(element))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(order: &[i64], tiles: usize) -> sys::PJRT_Buffer_MemoryLayout {
        let mut layout =
            sys::PJRT_Buffer_MemoryLayout { type_: sys::PJRT_Buffer_MemoryLayout_Type_Tiled, ..Default::default() };
        layout.__bindgen_anon_1.tiled = sys::PJRT_Buffer_MemoryLayout_Tiled {
            minor_to_major: order.as_ptr(),
            minor_to_major_size: order.len(),
            num_tiles: tiles,
            ..Default::default()
        };
        layout
    }

    fn strides(dims: &[i64], kind: sys::PJRT_Buffer_Type, layout: Option<(&[i64], usize)>) -> Result<Option<Vec<i64>>> {
        let shape = Shape::new(sys::PJRT_Buffer_Type_F32, &[2, 3, 5], 120);
        let mut layout = layout.map(|(order, tiles)| self::layout(order, tiles));
        let args = sys::PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args {
            shape_dims: dims.as_ptr(),
            shape_num_dims: dims.len(),
            shape_element_type: kind,
            shape_layout: layout.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut),
            ..Default::default()
        };
        // SAFETY: the arrays and the layout live until the end of this function.
        unsafe { literal_strides(&args, &shape) }.map(|strides| strides.map(SmallVec::into_vec))
    }

    #[test]
    fn a_literals_layout_becomes_strides() {
        let f32 = sys::PJRT_Buffer_Type_F32;
        assert_eq!(strides(&[2, 3, 5], f32, None), Ok(None));
        assert_eq!(strides(&[2, 3, 5], f32, Some((&[2, 1, 0], 0))), Ok(Some(vec![60, 20, 4])));
        assert_eq!(strides(&[2, 3, 5], f32, Some((&[0, 1, 2], 0))), Ok(Some(vec![4, 8, 24])));
        assert_eq!(strides(&[2, 3, 5], f32, Some((&[1, 2, 0], 0))), Ok(Some(vec![60, 4, 12])));
    }

    #[test]
    fn a_literal_of_another_shape_is_refused_with_both_shapes() {
        let f32 = sys::PJRT_Buffer_Type_F32;
        let other = strides(&[2, 3, 6], f32, None).unwrap_err().message;
        assert!(other.contains("[2, 3, 6]") && other.contains("[2, 3, 5]"), "{other}");
        assert!(strides(&[2, 3, 5], sys::PJRT_Buffer_Type_S32, None).is_err());
        for order in [&[0, 1][..], &[0, 1, 1], &[1, 2, 3], &[-1, 0, 1], &[0, 1, 2, 3]] {
            let message = strides(&[2, 3, 5], f32, Some((order, 0))).unwrap_err().message;
            assert!(message.contains(&format!("{order:?}")), "{message}");
        }
        assert_eq!(
            strides(&[2, 3, 5], f32, Some((&[2, 1, 0], 1))).unwrap_err().code,
            crate::error::Code::Unimplemented
        );
    }
}

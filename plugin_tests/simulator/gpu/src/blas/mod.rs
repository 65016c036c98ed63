//! cuBLAS, as far as XLA uses it: products of matrices by cublasLt, which the host computes when the stream comes to
//! them.
//!
//! ```text
//!  cublasLtMatmulDescCreate, cublasLtMatrixLayoutCreate ...    objects with attributes, here
//!        |
//!        v
//!  cublasLtMatmul        matmul: what the attributes say, checked, as a Product with its memory looked up
//!        |
//!        v
//!  the stream            an operation: it reads A, B, C and the bias, and writes D, what lies before the activation and the
//!        |               workspace. Captured, it is a node of a graph
//!        v
//!  product               a plain loop over numbers of the formats in `number`
//! ```

use std::collections::BTreeMap;

pub use matmul::{Matmul, check, multiply};
pub use number::Format;
pub use product::Product;

use crate::{
    KnownParts,
    state::{Driver, State},
    status::{self, Answer, misuse},
};

pub mod matmul;
mod number;
mod product;

/// What a `cublasLt...Create` or `cublasCreate` gave.
#[derive(Debug)]
pub struct Object {
    kind: Kind,
    /// The bytes of each attribute that was set.
    attributes: BTreeMap<u32, Vec<u8>>,
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cublasHandle_t`.
    Handle,
    /// `cublasLtHandle_t`.
    LightHandle,
    /// `cublasLtMatmulDesc_t`.
    Operation,
    /// `cublasLtMatrixLayout_t`.
    Layout,
    /// `cublasLtMatmulPreference_t`.
    Preference,
}

/// A type of attributes, which C has as bytes.
pub trait Value: Sized {
    /// Of so many bytes as there are; none if those are too few.
    fn read(bytes: &[u8]) -> Option<Self>;
}

macro_rules! values {
    ($($name:ident)*) => {$(
        impl Value for $name {
            fn read(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(|bytes| Self::from_le_bytes(*bytes))
            }
        }
    )*};
}

values! { i32 u32 i64 u64 }

impl Object {
    /// An attribute, or what it is before it is set.
    fn get<V: Value>(&self, attribute: u32, unset: V) -> V {
        self.attributes.get(&attribute).and_then(|bytes| V::read(bytes)).unwrap_or(unset)
    }
}

fn find(driver: &State, kind: Kind, handle: u64) -> Answer<&Object> {
    let unknown =
        || misuse(status::NOT_INITIALIZED, format!("{handle:#x} is no {kind:?} of cuBLAS, or was destroyed before"));
    driver.parts.known().blas.get(&handle).filter(|object| object.kind == kind).ok_or_else(unknown)
}

/// Makes an object with these attributes.
pub fn create(driver: &mut Driver, kind: Kind, attributes: &[(u32, &[u8])]) -> Answer<u64> {
    driver.working()?;
    let handle = driver.number() << 8;
    let attributes = attributes.iter().map(|(attribute, bytes)| (*attribute, bytes.to_vec())).collect();
    driver.parts.known_mut().blas.insert(handle, Object { kind, attributes });
    Ok(handle)
}

/// Forgets an object.
pub fn destroy(driver: &mut State, kind: Kind, handle: u64) -> Answer {
    find(driver, kind, handle)?;
    driver.parts.known_mut().blas.remove(&handle);
    Ok(())
}

/// Sets an attribute.
pub fn set(driver: &mut State, kind: Kind, handle: u64, attribute: u32, bytes: Vec<u8>) -> Answer {
    find(driver, kind, handle)?;
    if let Some(object) = driver.parts.known_mut().blas.get_mut(&handle) {
        object.attributes.insert(attribute, bytes);
    }
    Ok(())
}

/// The bytes of an attribute, which must be `size`.
pub fn get(driver: &State, kind: Kind, handle: u64, attribute: u32, size: usize) -> Answer<Vec<u8>> {
    let bytes = find(driver, kind, handle)?.attributes.get(&attribute).filter(|bytes| bytes.len() == size);
    let wrong = || {
        misuse(status::INVALID_VALUE, format!("the attribute {attribute} of {handle:#x} was not set with {size} bytes"))
    };
    Ok(bytes.ok_or_else(wrong)?.clone())
}

/// Refuses what is no object of this kind.
pub fn known(driver: &State, kind: Kind, handle: u64) -> Answer {
    find(driver, kind, handle).map(|_| ())
}

/// How many bytes a preference allows for a workspace.
pub fn workspace(driver: &State, preference: u64) -> Answer<usize> {
    /// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
    const MOST: u32 = 1;
    Ok(usize::try_from(find(driver, Kind::Preference, preference)?.get(MOST, 0u64)).unwrap_or(usize::MAX))
}

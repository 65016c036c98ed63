//! Where blocks come from, in words: the table behind the arena's [`OriginId`]s.
//!
//! ```text
//!  row   kind      program         result  shape            in words
//!  0     unknown                                            unknown
//!  1     result    jit_train_step  3       f32[8192,8192]   jit_train_step output 3 f32[8192,8192]
//!  2     host                              bf16[4,4]        from host bf16[4,4]
//! ```
//!
//! A program's results get their rows when it is compiled, so that an execution makes no text and looks nothing up.
//! Other origins are looked up by kind and shape; and, while
//! `memory.record` is on, each by the Python stack as well, which has a row of its own. Rows are never removed, because
//! an old event may name one; a full table uses one row of each kind for all that come later.

use std::{fmt, sync::Arc};

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::{
    fork::PerProcess,
    handlers::python::stacks,
    memory::OriginId,
    report::{
        snapshot::{Origin, OriginKind},
        stacks::StackId,
    },
    runtime::shape::Shape,
    sys,
};

/// Rows of results at most: a hundred programs of a hundred results, a hundred times over.
const MOST_RESULTS: usize = 1 << 20;
/// Rows of other shapes at most.
const MOST_SHAPES: usize = 1 << 14;

/// A shape as a key: no text is made to look for it.
type ShapeKey = (OriginKind, sys::PJRT_Buffer_Type, smallvec::SmallVec<[i64; 6]>);

#[derive(Default)]
struct Rows {
    list: Vec<Origin>,
    results: FxHashMap<(Arc<str>, usize, Arc<str>), OriginId>,
    shapes: FxHashMap<ShapeKey, OriginId>,
    /// Rows of another row and a Python stack.
    made_by: FxHashMap<(OriginId, StackId), OriginId>,
}

/// A table of origins.
pub struct Origins {
    rows: RwLock<Rows>,
    most_results: usize,
    most_shapes: usize,
}

/// The one table: ids mean the same for all clients of the process. A child after fork begins anew, as it does with
/// the clients: none of its blocks has an id of its parent's.
pub static ORIGINS: PerProcess<Origins> = PerProcess::empty();

impl Default for Origins {
    fn default() -> Self {
        Self::new(MOST_RESULTS, MOST_SHAPES)
    }
}

/// In a child after fork: its parent's origins are none of its own. Takes no lock.
pub fn leave_parents() {
    ORIGINS.renew();
}

/// A shape as XLA writes it: `bf16[4,4]`.
pub struct Written<'a>(pub &'a Shape);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", element_name(self.0.element_type))?;
        for (number, dim) in self.0.dims.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

/// XLA's name of an element type.
fn element_name(kind: sys::PJRT_Buffer_Type) -> &'static str {
    match kind {
        sys::PJRT_Buffer_Type_PRED => "pred",
        sys::PJRT_Buffer_Type_S8 => "s8",
        sys::PJRT_Buffer_Type_S16 => "s16",
        sys::PJRT_Buffer_Type_S32 => "s32",
        sys::PJRT_Buffer_Type_S64 => "s64",
        sys::PJRT_Buffer_Type_U8 => "u8",
        sys::PJRT_Buffer_Type_U16 => "u16",
        sys::PJRT_Buffer_Type_U32 => "u32",
        sys::PJRT_Buffer_Type_U64 => "u64",
        sys::PJRT_Buffer_Type_F16 => "f16",
        sys::PJRT_Buffer_Type_BF16 => "bf16",
        sys::PJRT_Buffer_Type_F32 => "f32",
        sys::PJRT_Buffer_Type_F64 => "f64",
        sys::PJRT_Buffer_Type_C64 => "c64",
        sys::PJRT_Buffer_Type_C128 => "c128",
        sys::PJRT_Buffer_Type_F8E5M2 => "f8e5m2",
        sys::PJRT_Buffer_Type_F8E4M3FN => "f8e4m3fn",
        sys::PJRT_Buffer_Type_F8E4M3B11FNUZ => "f8e4m3b11fnuz",
        sys::PJRT_Buffer_Type_F8E5M2FNUZ => "f8e5m2fnuz",
        sys::PJRT_Buffer_Type_F8E4M3FNUZ => "f8e4m3fnuz",
        sys::PJRT_Buffer_Type_F8E4M3 => "f8e4m3",
        sys::PJRT_Buffer_Type_F8E3M4 => "f8e3m4",
        sys::PJRT_Buffer_Type_F8E8M0FNU => "f8e8m0fnu",
        _ => "?",
    }
}

impl Origins {
    /// A table for so many rows of results and of other shapes.
    fn new(most_results: usize, most_shapes: usize) -> Self {
        let list = OriginKind::ALL.into_iter().map(Origin::plain).collect();
        Self { rows: RwLock::new(Rows { list, ..Rows::default() }), most_results, most_shapes }
    }

    /// The rows of a program's results, in order.
    pub fn of_results(&self, program: &str, shapes: &[Arc<Shape>]) -> Box<[OriginId]> {
        let program: Arc<str> = program.into();
        let rows = &mut *self.rows.write();
        let row = |(result, shape): (usize, &Arc<Shape>)| {
            let written: Arc<str> = Written(shape).to_string().into();
            let key = (Arc::clone(&program), result, written);
            if let Some(&known) = rows.results.get(&key) {
                return known;
            }
            if rows.results.len() >= self.most_results {
                return OriginKind::Result.origin();
            }
            let (program, shape) = (Arc::clone(&key.0), Arc::clone(&key.2));
            let id = OriginId::new(rows.list.len() as u32);
            rows.list.push(Origin { kind: OriginKind::Result, program, result: Some(result), shape, made_by: None });
            rows.results.insert(key, id);
            id
        };
        shapes.iter().enumerate().map(row).collect()
    }

    /// The row of an array of `shape` and of this kind.
    pub fn of_shape(&self, kind: OriginKind, shape: &Shape) -> OriginId {
        let key = (kind, shape.element_type, shape.dims.clone());
        if let Some(&known) = self.rows.read().shapes.get(&key) {
            return known;
        }
        let rows = &mut *self.rows.write();
        if let Some(&known) = rows.shapes.get(&key) {
            return known;
        }
        if rows.shapes.len() >= self.most_shapes {
            return kind.origin();
        }
        let id = OriginId::new(rows.list.len() as u32);
        let shape = Written(shape).to_string().into();
        rows.list.push(Origin { shape, ..Origin::plain(kind) });
        rows.shapes.insert(key, id);
        id
    }

    /// The row for what is as in `origin`, made by the Python code of `stack`; `origin` itself without one, or where
    /// the table is full.
    #[inline(always)]
    pub fn made_by(&self, origin: OriginId, stack: StackId) -> OriginId {
        if stack == StackId::NONE { origin } else { self.made_by_stack(origin, stack) }
    }

    #[cold]
    fn made_by_stack(&self, origin: OriginId, stack: StackId) -> OriginId {
        if let Some(&known) = self.rows.read().made_by.get(&(origin, stack)) {
            return known;
        }
        let Some(place) = stacks::with_stacks(|stacks| stacks.place(stack)) else { return origin };
        let rows = &mut *self.rows.write();
        if let Some(&known) = rows.made_by.get(&(origin, stack)) {
            return known;
        }
        let Some(plain) = rows.list.get(origin.row() as usize) else { return origin };
        if rows.made_by.len() >= self.most_results {
            return origin;
        }
        let row = Origin { made_by: Some((stack, place.into())), ..plain.clone() };
        let id = OriginId::new(rows.list.len() as u32);
        rows.list.push(row);
        rows.made_by.insert((origin, stack), id);
        id
    }

    /// The same row without a Python stack, of a program's result.
    pub fn plain(&self, id: OriginId) -> OriginId {
        let rows = self.rows.read();
        let row = rows.list.get(id.row() as usize).filter(|row| row.made_by.is_some());
        let key = row.and_then(|row| Some((Arc::clone(&row.program), row.result?, Arc::clone(&row.shape))));
        key.and_then(|key| rows.results.get(&key).copied()).unwrap_or(id)
    }

    /// The Python stack of a row.
    pub fn stack(&self, id: OriginId) -> StackId {
        self.rows.read().list.get(id.row() as usize).map_or(StackId::NONE, Origin::stack)
    }

    /// All rows, the first of them "unknown". O(rows); texts are shared.
    pub fn rows(&self) -> Vec<Origin> {
        self.rows.read().list.clone()
    }

    /// The row of `id` in words.
    pub fn label(&self, id: OriginId) -> String {
        self.rows.read().list.get(id.row() as usize).map_or_else(|| "unknown".to_owned(), ToString::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[i64]) -> Arc<Shape> {
        Arc::new(Shape::new(sys::PJRT_Buffer_Type_F32, dims, 4))
    }

    #[test]
    fn rows_are_shared_and_read_well() {
        let table = Origins::new(10, 10);
        let first = table.of_results("jit_step", &[shape(&[]), shape(&[2, 3])]);
        let again = table.of_results("jit_step", &[shape(&[]), shape(&[2, 3])]);
        assert_eq!(first, again);
        assert_eq!(table.label(first[1]), "jit_step output 1 f32[2,3]");
        assert_ne!(table.of_results("jit_other", &[shape(&[])])[0], first[0]);
        let host = table.of_shape(OriginKind::Host, &shape(&[7]));
        assert_eq!(host, table.of_shape(OriginKind::Host, &shape(&[7])));
        assert_eq!(table.label(host), "from host f32[7]");
        assert_eq!(table.label(table.of_shape(OriginKind::Copy, &shape(&[7]))), "copy of f32[7]");
        assert_eq!(table.label(OriginId::UNKNOWN), "unknown");
        assert_eq!(table.label(OriginId::new(999)), "unknown");
    }

    #[test]
    fn a_full_table_gives_one_row_to_all_that_come_later() {
        let table = Origins::new(2, 1);
        let shapes: Vec<_> = (0..4).map(|dim| shape(&[dim])).collect();
        let rows = table.of_results("f", &shapes);
        assert_eq!((table.label(rows[1]).as_str(), rows[2]), ("f output 1 f32[1]", rows[3]));
        assert_eq!(table.label(rows[2]), "a program's result");
        assert_eq!(table.of_results("f", &shapes), rows, "what has a row keeps it");
        let known = table.of_shape(OriginKind::Host, &shapes[0]);
        assert_eq!(table.label(table.of_shape(OriginKind::Host, &shapes[1])), "from host");
        assert_eq!(table.of_shape(OriginKind::Host, &shapes[0]), known);
    }
}

//! Everything about the arenas at one instant, and the files that show it.
//!
//! ```text
//!   api fills --> Snapshot --+--> x.json            the documented schema, version 1
//!                            +--> x.html            the same JSON in one page that shows it
//!                            +--> x.perfetto.json   counters, slices and failures on a trace viewer's time line
//!                            `--> x.pickle          what PyTorch's memory viewer opens
//! ```
//!
//! A snapshot holds names, shapes, sizes and times, never the contents of an array.

mod file;
mod html;
mod json;
mod model;
mod perfetto;
mod pickle;
#[cfg(test)]
mod testing;

use std::path::Path;

use crate::error::Result;
pub use crate::report::snapshot::file::Format;
pub use crate::report::snapshot::file::write;
pub use crate::report::snapshot::model::Device;
pub use crate::report::snapshot::model::Origin;
pub use crate::report::snapshot::model::OriginKind;
pub use crate::report::snapshot::model::Snapshot;

/// The page that shows the snapshot whose JSON this is.
pub fn page(json: &str) -> String {
    html::page(json)
}

impl Snapshot {
    /// What the file of `format` holds.
    pub fn encode(&self, format: Format) -> Vec<u8> {
        match format {
            Format::Json => json::encode(self),
            Format::Html => html::encode(self),
            Format::Perfetto => perfetto::encode(self),
            Format::Pickle => pickle::encode(self),
        }
    }

    /// Writes the file `path`, in the format that its name's end says.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for another end; otherwise what the file system said, with the path.
    pub fn save(&self, path: &Path) -> Result<()> {
        let format = Format::of(path)?;
        write(path, &self.encode(format))
    }
}

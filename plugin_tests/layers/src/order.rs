//! The order of the layers, in one place.

/// The layers from the top down. A file may name what stands in its own row or in a lower one. A layer is a top folder
/// of `src`, or a file that stands directly in `src`.
pub const ORDER: &[&[&str]] = &[
    &["lib"],
    &["api"],
    &["runtime"],
    &["handlers"],
    &["engine", "program", "report", "device", "group", "config", "logging"],
    &["memory"],
    &["region"],
    &["fork", "sync", "error", "units", "sys"],
];

/// A file with more lines than this is listed.
pub const LONG_FILE: usize = 500;

/// How many of the longest functions are listed.
pub const LONGEST_FUNCTIONS: usize = 10;

/// The row of `layer` in [`ORDER`], counted from the top; none for a layer that the order does not know.
#[must_use]
pub fn row(layer: &str) -> Option<usize> {
    ORDER.iter().position(|row| row.contains(&layer))
}

/// The layer of a file, by its path relative to `src`.
#[must_use]
pub fn layer(file: &str) -> &str {
    let top = file.split('/').next().unwrap_or(file);
    top.strip_suffix(".rs").unwrap_or(top)
}

/// Whether an arrow between two files points up, from a lower layer to a higher one.
#[must_use]
pub fn points_up(from: &str, to: &str) -> bool {
    match (row(layer(from)), row(layer(to))) {
        (Some(from), Some(to)) => from > to,
        _ => false,
    }
}

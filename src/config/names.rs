//! The names that mean something to us, and what a user who wrote another one may have meant.

use crate::config::{
    environment::Environment,
    row::{Row, Source},
};

/// Variables that carry our prefix and are read elsewhere: the Python package finds this library by the first.
const READ_ELSEWHERE: [&str; 7] = [
    "PJRT_ARENA_LIBRARY_PATH",
    "PJRT_ARENA_PLATFORM_TAG",
    "PJRT_ARENA_PREBUILT",
    "PJRT_ARENA_TEST_CHILD",
    "PJRT_ARENA_TEST_CUDA_ENGINE",
    "PJRT_ARENA_TEST_ENGINE",
    "PJRT_ARENA_TEST_LIBRARY",
];

/// What our variables begin with.
const PREFIX: &str = "PJRT_ARENA_";

/// Every variable with our prefix that means something.
fn known_variables(table: &[&'static Row]) -> impl Iterator<Item = &'static str> {
    let ours = table.iter().flat_map(|row| row.names).filter_map(|name| match name {
        Source::Environment(name) if name.starts_with(PREFIX) => Some(*name),
        _ => None,
    });
    ours.chain(READ_ELSEWHERE)
}

/// Whether `name` is a client option of ours.
pub(super) fn is_our_option(table: &[&'static Row], name: &str) -> bool {
    our_options(table).any(|ours| ours == name)
}

/// The client options that we read.
pub(super) fn our_options(table: &[&'static Row]) -> impl Iterator<Item = &'static str> {
    table.iter().flat_map(|row| row.names).filter_map(|name| match name {
        Source::Option(name) => Some(*name),
        _ => None,
    })
}

/// A warning for each variable with our prefix that means nothing to us.
pub(super) fn unknown_variables(table: &[&'static Row], environment: &Environment) -> Vec<String> {
    // The prefix is common to all names and would drown the difference.
    let bare = |name: &'static str| name.trim_start_matches(PREFIX);
    environment
        .names()
        .filter(|name| !known_variables(table).any(|known| known == *name))
        .filter_map(|name| Some((name, name.strip_prefix(PREFIX)?)))
        .map(|(name, rest)| {
            let hint = nearest(rest, known_variables(table).map(bare))
                .map(|known| format!("; did you mean {PREFIX}{known}?"))
                .unwrap_or_default();
            format!("the environment variable {name} means nothing to pjrt-arena{hint}")
        })
        .collect()
}

/// The member of `known` that a user who wrote `word` most likely meant, if one is near: one typing error, or two in
/// five letters of a longer word (Damerau-Levenshtein: a pair of exchanged letters is one error).
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let far = (word.chars().count() * 2 / 5).max(1);
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&word, &name.to_ascii_lowercase()), name))
        .filter(|(distance, name)| *distance <= far && *distance < name.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// `; did you mean X?`, or nothing.
pub(super) fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

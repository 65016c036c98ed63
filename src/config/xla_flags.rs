//! One flag out of `XLA_FLAGS`, by the rules of XLA's `parse_flags_from_env.cc`.
//!
//! The text is a list of `--name=value`, separated by white space; the value may stand in single quotes (taken as it
//! is) or double quotes (a backslash takes the next character as it is). Reading stops at the first word that is no
//! flag, and the last value of a name counts. A text whose first word is no flag is the name of a file that holds the
//! flags.

use std::borrow::Cow;
use std::ffi::OsStr;

use crate::error::{Error, Result};

/// What XLA takes for white space.
const WHITE: [char; 4] = [' ', '\t', '\r', '\n'];

/// The value of `--name` in `flags`, the contents of `XLA_FLAGS`. A flag without `=` has the value `""`.
///
/// # Errors
/// `INVALID_ARGUMENT` when `flags` names a file that cannot be read; XLA would end the process.
pub(super) fn value(flags: &OsStr, name: &str) -> Result<Option<String>> {
    let text = flags.to_string_lossy();
    let inline = text.trim_start_matches(WHITE);
    let text = if inline.is_empty() || inline.starts_with('-') {
        text
    } else {
        let contents = std::fs::read(flags).map_err(|error| {
            Error::invalid_argument(format!(
                "XLA_FLAGS={} is not valid: it does not begin with --, so it names a file of flags, and reading that \
                 file fails: {error}",
                flags.to_string_lossy()
            ))
        })?;
        Cow::Owned(String::from_utf8_lossy(&contents).into_owned())
    };
    Ok(last_value(&text, name))
}

/// The value of the last `--name` in `text`.
fn last_value(text: &str, name: &str) -> Option<String> {
    let mut found = None;
    let mut rest = text.trim_start_matches(WHITE);
    while rest.starts_with('-') {
        let name_end = rest.find(|c: char| !(c == '-' || c == '_' || c.is_ascii_alphanumeric())).unwrap_or(rest.len());
        let (flag, tail) = rest.split_at(name_end);
        let (value, tail) = match tail.strip_prefix('=').and_then(|quoted| quoted.strip_prefix(['\'', '"'])) {
            Some(_) => quoted(tail),
            None => {
                let (word, tail) = tail.split_at(tail.find(WHITE).unwrap_or(tail.len()));
                (word.strip_prefix('=').unwrap_or(word).to_owned(), tail)
            }
        };
        if flag.strip_prefix("--") == Some(name) {
            found = Some(value);
        }
        rest = tail.trim_start_matches(WHITE);
    }
    found
}

/// Splits `="value" tail`, in either kind of quotes, into the value and the tail.
fn quoted(text: &str) -> (String, &str) {
    let mut characters = text.char_indices().skip(1);
    let quote = characters.next().map(|(_, quote)| quote);
    let mut value = String::new();
    while let Some((at, c)) = characters.next() {
        match c {
            c if Some(c) == quote => return (value, &text[at + c.len_utf8()..]),
            '\\' if quote == Some('"') => value.extend(characters.next().map(|(_, escaped)| escaped).or(Some('\\'))),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME: &str = "xla_force_host_platform_device_count";

    fn count(flags: &str) -> Option<String> {
        value(OsStr::new(flags), NAME).unwrap()
    }

    #[test]
    fn flags_are_read_as_xla_reads_them() {
        for (flags, expected) in [
            ("", None),
            ("   ", None),
            ("--xla_force_host_platform_device_count=8", Some("8")),
            (" \t--xla_cpu_x=1\n--xla_force_host_platform_device_count=8 --y", Some("8")),
            ("--xla_force_host_platform_device_count=2 --xla_force_host_platform_device_count=4", Some("4")),
            ("--xla_force_host_platform_device_count='2' --xla_y=\"a b\"", Some("2")),
            ("--xla_y='--xla_force_host_platform_device_count=9'", None),
            ("--xla_y=\"\\\" --xla_force_host_platform_device_count=9\"", None),
            ("--xla_y=1 stop --xla_force_host_platform_device_count=9", None),
            ("--xla_force_host_platform_device_count", Some("")),
            ("-xla_force_host_platform_device_count=3", None),
            ("--xla_force_host_platform_device_count_more=3", None),
        ] {
            assert_eq!(count(flags).as_deref(), expected, "{flags:?}");
        }
    }

    #[test]
    fn a_text_without_flags_names_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("flags");
        std::fs::write(&file, format!("--a=1\n--{NAME}=3\n")).unwrap();
        assert_eq!(value(file.as_os_str(), NAME).unwrap().as_deref(), Some("3"));
        let missing = folder.path().join("missing");
        let error = value(missing.as_os_str(), NAME).unwrap_err();
        assert!(error.message.contains("XLA_FLAGS") && error.message.contains("missing"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_can_be_read(text in "[-_=a-z'\" \\\\\u{e9}\n]{0,40}") {
            last_value(&text, "a");
        }

        #[test]
        fn a_flag_in_front_is_found(text in "-[-_=a-z'\" \\\\]{0,30}", n in 0u32..100) {
            let before = format!("--n={n} --m='{}'", text.replace('\'', ""));
            prop_assert_eq!(last_value(&before, "n"), Some(n.to_string()));
        }
    }
}

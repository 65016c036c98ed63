//! Writing a report: for the user alone, and never through a link that somebody else planted.
//!
//! ```text
//!   folder/.x.json.4711.0   created anew (O_EXCL, O_NOFOLLOW), mode 0600, written
//!        `-- renamed --> folder/x.json    replaced if it is a regular file, refused if it is a link or anything else
//! ```
//!
//! A reader never sees half a file, and a report that cannot be written leaves nothing behind.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::error::{Code, Error, Result};

/// What a report can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The documented schema.
    Json,
    /// A page that shows it.
    Html,
    /// The Chrome trace event format.
    Perfetto,
    /// PyTorch's memory snapshot.
    Pickle,
}

impl Format {
    /// The ends of file names, as errors name them.
    pub const ALLOWED: &'static str = ".html, .json, .perfetto.json, .pickle";

    /// The format that the end of the name asks for.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for any other end.
    pub fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        // The longer end first.
        let ends = [
            (".perfetto.json", Self::Perfetto),
            (".json", Self::Json),
            (".html", Self::Html),
            (".pickle", Self::Pickle),
        ];
        let format = ends.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| format);
        format.ok_or_else(|| {
            let allowed = Self::ALLOWED;
            Error::invalid_argument(format!(
                "a report's file name ends in one of {allowed}; {} does not",
                path.display()
            ))
        })
    }
}

/// Writes `contents` to `path`, whole or not at all.
///
/// # Errors
/// `FAILED_PRECONDITION` where something other than a regular file is there; otherwise what the system said.
pub fn write(path: &Path, contents: &[u8]) -> Result<()> {
    check_target(path)?;
    let failed = |what: &str, error: &io::Error| {
        Error::new(Code::FailedPrecondition, format!("{} could not be {what}: {error}", path.display()))
    };
    let (temporary, mut file) = create_beside(path).map_err(|error| failed("written", &error))?;
    let written = file.write_all(contents).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        // Whether that succeeds or not, the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
        failed("written", &error)
    })
}

/// Refuses what must not be replaced. A rename would put the report in the link's place and not follow it, but a user
/// who made the link expects the report elsewhere, so they are told.
fn check_target(path: &Path) -> Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(there) => there.file_type(),
        Err(_) => return Ok(()),
    };
    let what = if kind.is_symlink() {
        "a symbolic link, which a report is never written through"
    } else if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a folder"
    } else {
        "no regular file"
    };
    Err(Error::failed_precondition(format!("{} is {what}; give the path of a file", path.display())))
}

/// A new file in the folder of `path`, which no other user can read.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.{number}", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let created =
            OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&temporary);
        match created {
            // Left over by a process that had our number.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < 100_000 => {}
            created => return Ok((temporary, created?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn the_end_of_the_name_says_the_format() {
        let of = |name: &str| Format::of(Path::new(name));
        assert_eq!(of("/x/a.perfetto.json"), Ok(Format::Perfetto));
        assert_eq!(
            (of("a.json"), of("A.HTML"), of("a.b.pickle")),
            (Ok(Format::Json), Ok(Format::Html), Ok(Format::Pickle))
        );
        for name in ["a", "a.txt", "json", "a.json.gz", "/", "a.perfetto"] {
            let message = of(name).expect_err(name).message;
            assert!(message.contains(Format::ALLOWED) && message.contains(name), "{message}");
        }
    }

    #[test]
    fn a_file_is_for_its_user_alone_and_replaced_as_a_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.json");
        fs::write(&path, "before, and longer").expect("writable");
        let other = folder.path().join("other");
        fs::hard_link(&path, &other).expect("a link");
        assert_eq!(write(&path, b"now"), Ok(()));
        assert_eq!(fs::read(&path).expect("readable"), b"now");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o600);
        assert_eq!(fs::read(&other).expect("readable"), b"before, and longer", "nothing was written through");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "no temporary file is left");
    }

    #[test]
    fn a_link_is_refused_and_what_it_points_to_untouched() {
        let folder = tempfile::tempdir().expect("a folder");
        let (victim, path) = (folder.path().join("victim"), folder.path().join("x.json"));
        fs::write(&victim, "mine").expect("writable");
        for target in [victim.as_path(), Path::new("/nowhere/at/all")] {
            symlink(target, &path).expect("a link");
            let message = write(&path, b"now").expect_err("a link").message;
            assert!(message.contains("symbolic link") && message.contains("x.json"), "{message}");
            fs::remove_file(&path).expect("there");
        }
        assert_eq!(fs::read(&victim).expect("readable"), b"mine");
        let message = write(folder.path(), b"now").expect_err("a folder").message;
        assert!(message.contains("is a folder"), "{message}");
    }

    #[test]
    fn a_path_that_cannot_be_written_is_an_error_that_names_it() {
        let message = write(Path::new("/nowhere/at/all/x.json"), b"now").expect_err("no folder").message;
        assert!(message.contains("/nowhere/at/all/x.json") && message.contains("No such file"), "{message}");
    }
}

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use super::*;
use crate::units::Bytes;

/// A folder that goes with the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pjrt-arena-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn address<T>(of: &[T]) -> Address {
    Address::new(of.as_ptr().expose_provenance() as u64)
}

fn file_of(backing: &FolderBacking, region: &Region) -> Arc<RegionFile> {
    backing.folder.file_at(region.address).unwrap().0
}

#[test]
fn bytes_go_to_a_file_without_a_name_and_come_back() {
    let folder = Temporary::new("folder-copy");
    let backing = FolderBacking::open(&folder.0).unwrap();
    let region = backing.reserve(Bytes::mib(1)).unwrap();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "the file has a name");
    let mode = file_of(&backing, &region).file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let written: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
    let bytes = Bytes::new(written.len() as u64);
    let mut read = vec![0_u8; written.len()];
    let place = region.address + Bytes::new(4097);
    // SAFETY: the source is there, and the destination is in the region, or `read`, which nothing else refers to.
    unsafe {
        backing.copy(address(&written), place, bytes).unwrap();
        backing.copy(place, Address::new(read.as_mut_ptr().expose_provenance() as u64), bytes).unwrap();
    }
    assert!(read == written, "by pread");
    backing.check_readable(place, bytes).unwrap();
    // SAFETY: the bytes are in the region, which is mapped, and nothing writes to them.
    let mapped =
        unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(place.get() as usize), written.len()) };
    assert!(mapped == written, "in place");
    let file = file_of(&backing, &region);
    backing.release(region).unwrap();
    assert_eq!(Arc::strong_count(&file), 1, "the file stays open");
}

#[test]
fn what_the_disk_does_not_have_is_an_error_with_the_numbers() {
    let folder = Temporary::new("folder-full");
    let backing = FolderBacking::open(&folder.0).unwrap();
    let error = backing.reserve(Bytes::gib(1 << 14)).unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted);
    let path = folder.0.display().to_string();
    assert!(error.message.contains(&path) && error.message.contains("are free there"), "{error:?}");
    assert!(backing.folder.files.lock().is_empty());
    assert!(!backing.free_space().unwrap().is_zero());
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_no_signal() {
    let folder = Temporary::new("folder-damaged");
    let backing = FolderBacking::open(&folder.0).unwrap();
    let region = backing.reserve(Bytes::mib(1)).unwrap();
    let bytes = Bytes::kib(64);
    let mut memory = vec![7_u8; bytes.get() as usize];
    let memory = Address::new(memory.as_mut_ptr().expose_provenance() as u64);
    // SAFETY: as above; `memory` outlives the copies.
    unsafe { backing.copy(memory, region.address, bytes).unwrap() };
    // As a disk that lost the blocks: the mapping has no pages any more.
    file_of(&backing, &region).file.set_len(4096).unwrap();
    // SAFETY: as above.
    let read = unsafe { backing.copy(region.address, memory, bytes) }.unwrap_err();
    assert_eq!(read.code, Code::DataLoss);
    assert!(read.message.starts_with("reading 64.0KiB of a spilled array failed in "), "{read:?}");
    assert_eq!(backing.check_readable(region.address, bytes).unwrap_err().code, Code::DataLoss);
    backing.check_readable(region.address, Bytes::new(100)).unwrap();
    backing.release(region).unwrap();
}

#[test]
fn what_is_no_folder_is_refused_by_name() {
    let folder = Temporary::new("folder-wrong");
    let refused = |path: &Path, why: &str| {
        let error = FolderBacking::open(path).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains(why) && error.message.contains("allowed is a folder"), "{error:?}");
        assert!(error.message.contains(&path.display().to_string()), "{error:?}");
    };
    refused(&folder.0.join("missing"), "No such file");
    let file = folder.0.join("file");
    fs::write(&file, "").unwrap();
    refused(&file, "it is no folder");
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(&folder.0, &link).unwrap();
    refused(&link, "it is a link");
    // Nobody makes files there, root neither.
    refused(Path::new("/proc/self/task"), "");
}

//! Files as memory, on the file system of the folder for temporary files.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
};

use rustix::fs::{fstat, ftruncate};
use tempfile::TempDir;

use super::*;
use crate::{
    device::host::HostBacking,
    error::Code,
    memory::{Arena, Strategy},
};

const SIZE: Bytes = Bytes::mib(5);

/// A folder of a test's own, and the device.
fn device() -> (TempDir, FolderBacking) {
    let folder = tempfile::tempdir().expect("room for a folder");
    let device = FolderBacking::open(folder.path()).expect("a folder of our own");
    (folder, device)
}

/// So many bytes, no two pages of which are alike.
fn pattern(bytes: Bytes) -> Vec<u8> {
    (0..bytes.get()).map(|at| (at ^ (at >> 8).wrapping_mul(31) ^ (at >> 16)) as u8).collect()
}

fn address_of(bytes: &[u8]) -> Address {
    Address::new(bytes.as_ptr().expose_provenance() as u64)
}

fn length_of(bytes: &[u8]) -> Bytes {
    Bytes::new(bytes.len() as u64)
}

/// Copies bytes of the test's to a region.
fn bring(device: &FolderBacking, from: &[u8], to: Address) -> Result<()> {
    // SAFETY: a slice, and a place in a region that is the test's own, apart from it.
    unsafe { device.copy(address_of(from), to, length_of(from)) }
}

/// Copies bytes of a region to the test's.
fn fetch(device: &FolderBacking, from: Address, bytes: Bytes) -> Result<Vec<u8>> {
    let mut to = vec![0xa5_u8; bytes.get() as usize];
    let start = Address::new(to.as_mut_ptr().expose_provenance() as u64);
    // SAFETY: the range lies in a region that is the test's own; the vector is as long, and nobody else's.
    unsafe { device.copy(from, start, bytes) }.map(|()| to)
}

/// What is mapped there.
fn mapped(at: Address, bytes: Bytes) -> Vec<u8> {
    // SAFETY: the callers name a range of a live region, its margins included, that nothing writes to meanwhile.
    unsafe { bytes_at(at, bytes) }.to_vec()
}

/// The file of a region.
fn file_of(device: &FolderBacking, region: &Region) -> Arc<FileRegion> {
    device.own_place(region.address, region.bytes).expect("a region of the device").file
}

/// Where the files that this process has open in a folder are, as the kernel names them.
fn open_files(folder: &Path) -> Vec<PathBuf> {
    let open = fs::read_dir("/proc/self/fd").expect("a running kernel").flatten();
    let paths = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    paths.filter(|path| path.starts_with(folder) && path != folder).collect()
}

/// The mappings of files in a folder.
fn mappings(folder: &Path) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("a running kernel");
    maps.lines().filter(|line| line.contains(folder.to_str().expect("UTF-8"))).count()
}

/// What of the mapping that begins at an address is in the process's memory.
fn resident(start: Address) -> Bytes {
    let text = fs::read_to_string("/proc/self/smaps").expect("a running kernel");
    let head = format!("{:x}-", start.get());
    let lines = text.lines().skip_while(|line| !line.starts_with(&head));
    let kib = lines.filter_map(|line| line.strip_prefix("Rss:")).next().expect("the mapping is there");
    Bytes::kib(kib.trim().trim_end_matches(" kB").parse().expect("a number"))
}

#[test]
fn bytes_go_to_a_file_and_come_back() {
    let (_folder, device) = device();
    let region = device.reserve(SIZE).expect("room");
    let bytes = pattern(Bytes::new(3_000_001));
    let to = region.address + Bytes::new(256);
    assert_eq!(bring(&device, &bytes, to), Ok(()));
    assert_eq!(resident(region.address), Bytes::ZERO, "a copy goes by the file");
    assert!(fetch(&device, to, length_of(&bytes)).expect("readable") == bytes);
    assert_eq!(resident(region.address), Bytes::ZERO, "a copy goes by the file");
    assert!(mapped(to, length_of(&bytes)) == bytes);
    assert!(resident(region.address) >= Bytes::mib(2));
    // The engine loads a bit of what lies beside an array.
    assert_eq!(mapped(Address::new(region.address.get() - 8), Bytes::new(8)), [0; 8]);
    assert_eq!(mapped(region.address + region.bytes, Bytes::new(8)), [0; 8]);
    assert_eq!(device.check_readable(to, length_of(&bytes)), Ok(()));
    assert_eq!(file_of(&device, &region).check_by_reading(Bytes::ZERO, SIZE), Ok(()));
    // What is written by the mapping is the file's as well.
    // SAFETY: a place in the region, which is this test's own.
    let first = unsafe { space_at(to, Bytes::new(1)) };
    first[0].write(!bytes[0]);
    assert_eq!(fetch(&device, to, Bytes::new(2)), Ok(vec![!bytes[0], bytes[1]]));
    assert_eq!(device.release(region), Ok(()));
}

#[test]
fn bytes_go_between_files_and_between_devices() {
    let ((_one, device), (_other, elsewhere)) = (device(), self::device());
    let (first, second) = (device.reserve(SIZE).expect("room"), device.reserve(SIZE).expect("room"));
    let far = elsewhere.reserve(SIZE).expect("room");
    let bytes = pattern(Bytes::new((3 << 20) + 77));
    let length = length_of(&bytes);
    assert_eq!(bring(&device, &bytes, first.address), Ok(()));
    let (to, there) = (second.address + Bytes::new(512), far.address + Bytes::kib(4));
    // SAFETY: regions of this test's own, of different files.
    unsafe {
        assert_eq!(device.copy(first.address, to, length), Ok(()));
        assert_eq!(elsewhere.copy(to, there, length), Ok(()));
        assert_eq!(device.copy(first.address, to, Bytes::ZERO), Ok(()));
    }
    assert!(fetch(&device, to, length).expect("readable") == bytes);
    assert!(fetch(&elsewhere, there, length).expect("readable") == bytes);
    // Memory to memory, as any device of the host.
    assert!(fetch(&device, address_of(&bytes), length).expect("memory") == bytes);
    // SAFETY: as above; the first range ends where the second one begins.
    unsafe {
        let half = Bytes::kib(1024);
        assert_eq!(device.relocate(first.address, first.address + half, half), Ok(()));
        let refused = device.relocate(first.address, first.address + Bytes::kib(4), half).expect_err("they overlap");
        assert_eq!(refused.code, Code::Unimplemented, "{refused}");
        assert_eq!(device.relocate(first.address, first.address, half), Ok(()));
        assert_eq!(device.discard(first.address, SIZE), Ok(Bytes::ZERO));
    }
    let twice = fetch(&device, first.address, Bytes::mib(2)).expect("readable");
    assert!(twice[..1 << 20] == bytes[..1 << 20] && twice[1 << 20..] == bytes[..1 << 20]);
    for (device, region) in [(&device, first), (&device, second), (&elsewhere, far)] {
        assert_eq!(device.release(region), Ok(()));
    }
}

#[test]
fn arrays_are_uploaded_dense_or_not() {
    let (_folder, device) = device();
    let region = device.reserve(SIZE).expect("room");
    let bytes = pattern(Bytes::new(300 * 500 * 4));
    let upload = |dims: &[i64], strides: Option<&[i64]>| {
        // SAFETY: the elements lie in the vector, and so many bytes fit into the region, which is this test's own.
        unsafe { device.upload(HostArray::new(bytes.as_ptr(), dims, strides, 4), region.address) }
    };
    assert_eq!(upload(&[300, 500], None), Ok(()));
    assert!(fetch(&device, region.address, length_of(&bytes)).expect("readable") == bytes);
    // Transposed: element (i, j) is the array's (j, i).
    assert_eq!(upload(&[500, 300], Some(&[4, 2000])), Ok(()));
    let there = fetch(&device, region.address, length_of(&bytes)).expect("readable");
    let right = |at: usize| there[4 * at..4 * at + 4] == bytes[4 * (at % 300 * 500 + at / 300)..][..4];
    assert!((0..300 * 500).all(right));
    assert_eq!(upload(&[0, 500], None), Ok(()));
    assert_eq!(device.release(region), Ok(()));
}

#[test]
fn a_file_has_no_name_and_is_nobody_elses() {
    let (folder, device) = device();
    let region = device.reserve(SIZE).expect("room");
    let named = device.0.folder.make_named_file().expect("room");
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    for file in [&file_of(&device, &region).file, &named] {
        let status = fstat(file).expect("open");
        assert_eq!((status.st_mode & 0o7777, status.st_nlink), (0o600, 0));
        assert!(rustix::io::fcntl_getfd(file).expect("open").contains(rustix::io::FdFlags::CLOEXEC));
    }
    let status = fstat(&file_of(&device, &region).file).expect("open");
    assert_eq!(status.st_size as u64, SIZE.get());
    assert!(status.st_blocks as u64 * 512 >= SIZE.get(), "all of its space is taken");
    assert_eq!(device.release(region), Ok(()));
}

#[test]
fn a_region_that_is_released_is_closed_and_unmapped() {
    let (folder, device) = device();
    let path = folder.path();
    assert_eq!((open_files(path).len(), mappings(path)), (0, 0), "what was tried out is gone");
    let (one, other) = (device.reserve(SIZE).expect("room"), device.reserve(SIZE).expect("room"));
    assert_eq!((open_files(path).len(), mappings(path)), (2, 2));
    let at = one.address;
    assert_eq!(device.release(one), Ok(()));
    assert_eq!((open_files(path).len(), mappings(path)), (1, 1));
    let gone = device.check_readable(at, SIZE).expect_err("released");
    assert_eq!(gone.code, Code::Internal, "{gone}");
    // Another thread may be about to check its pages.
    let held = file_of(&device, &other);
    assert_eq!(device.release(other), Ok(()));
    assert_eq!((open_files(path).len(), held.check_readable(Bytes::ZERO, SIZE)), (1, Ok(())));
    drop(held);
    assert_eq!((open_files(path).len(), mappings(path)), (0, 0));
    let host = HostBacking::new();
    let foreign = host.reserve(SIZE).expect("room");
    let range = *foreign;
    assert!(device.release(foreign).is_err());
    // SAFETY: the token is gone, and the region is still the host's.
    assert_eq!(host.release(unsafe { Region::new(range) }), Ok(()));
}

#[test]
fn what_is_no_folder_to_write_to_is_refused() {
    let home = tempfile::tempdir().expect("room for a folder");
    let at = |name: &str| home.path().join(name);
    fs::write(at("file"), "").expect("writable");
    fs::create_dir(at("folder")).expect("writable");
    symlink(at("folder"), at("link")).expect("writable");
    let cases = [
        (at("missing"), "No such file"),
        (PathBuf::new(), "No such file"),
        (at("file"), "not a folder"),
        (at("link"), "symbolic link"),
        (at("link/"), "symbolic link"),
        (at("link/."), "symbolic link"),
        // Nobody makes a file there.
        ("/proc".into(), "failed: open"),
    ];
    for (path, why) in cases {
        let error = FolderBacking::open(&path).expect_err("no folder to write to");
        let named = path.components().as_path().to_str().expect("UTF-8");
        assert_eq!(error.code, Code::InvalidArgument);
        assert!([why, named, "allowed"].iter().all(|part| error.message.contains(part)), "{error}");
    }
    fs::set_permissions(at("folder"), Permissions::from_mode(0o500)).expect("ours");
    if rustix::process::geteuid().is_root() {
        println!("skipped: root may write to every folder");
    } else {
        let error = FolderBacking::open(&at("folder")).expect_err("not writable");
        assert!(error.message.contains("Permission denied"), "{error}");
    }
}

#[test]
fn a_folder_that_is_exchanged_for_a_link_stays_the_folder() {
    let home = tempfile::tempdir().expect("room for a folder");
    let at = |name: &str| home.path().join(name);
    fs::create_dir(at("folder")).expect("writable");
    fs::create_dir(at("trap")).expect("writable");
    let device = FolderBacking::open(&at("folder")).expect("a folder of our own");
    fs::rename(at("folder"), at("moved")).expect("writable");
    symlink(at("trap"), at("folder")).expect("writable");
    let region = device.reserve(SIZE).expect("room");
    assert_eq!((open_files(&at("moved")).len(), open_files(&at("trap")).len()), (1, 0));
    assert_eq!(device.release(region), Ok(()));
}

#[test]
fn more_than_the_disk_has_is_refused_with_numbers() {
    let (folder, device) = device();
    let left = device.free_space().expect("a file system");
    if left == Bytes::MAX {
        println!("skipped: the file system does not know its size");
        return;
    }
    let asked = Bytes::new(left.get() * 2).checked_round_up(Bytes::gib(1)).expect("a disk") + Bytes::gib(1);
    for asked in [asked, Bytes::new(u64::MAX).round_down(device.granularity())] {
        let error = device.reserve(asked).expect_err("no room");
        assert_eq!(error.code, Code::ResourceExhausted);
        let parts = [asked.get().to_string(), folder.path().display().to_string(), "bytes) left".into()];
        assert!(parts.iter().all(|part| error.message.contains(part)), "{error}");
        assert_eq!((open_files(folder.path()).len(), mappings(folder.path())), (0, 0));
    }
    let region = device.reserve(SIZE).expect("room for little");
    assert_eq!(device.release(region), Ok(()));
}

/// As a disk that fails: reading beyond the end through the mapping would be a SIGBUS.
#[test]
fn a_file_that_is_cut_is_an_error() {
    let (folder, device) = device();
    let region = device.reserve(SIZE).expect("room");
    let bytes = pattern(SIZE);
    assert_eq!(bring(&device, &bytes, region.address), Ok(()));
    ftruncate(&file_of(&device, &region).file, 1 << 20).expect("open");
    let path = folder.path().to_str().expect("UTF-8");
    let fails = |done: Result<()>| {
        let error = done.expect_err("the file ends before");
        let text = format!("reading {} bytes of a spilled array from {path} failed: ", SIZE.get());
        assert!(error.code == Code::DataLoss && error.message.starts_with(&text), "{error}");
        assert!(error.message.contains("it was cut (after 1048576 bytes"), "{error}");
    };
    fails(fetch(&device, region.address, SIZE).map(|_| ()));
    let piecewise = file_of(&device, &region).check_by_reading(Bytes::ZERO, SIZE).expect_err("the file ends before");
    assert!(piecewise.message.contains("it was cut"), "{piecewise}");
    let checked = device.check_readable(region.address, SIZE).expect_err("the file ends before");
    assert!(checked.code == Code::DataLoss && checked.message.contains("it was cut"), "{checked}");
    assert_eq!(device.check_readable(region.address, Bytes::mib(1)), Ok(()));
    assert!(fetch(&device, region.address, Bytes::mib(1)).expect("what is left") == bytes[..1 << 20]);
    // A copy from the mapping, as of a file of another device, is an error as well.
    let (_other, elsewhere) = self::device();
    let far = elsewhere.reserve(SIZE).expect("room");
    // SAFETY: regions of this test's own.
    let copied = unsafe { elsewhere.copy(region.address, far.address, SIZE) }.expect_err("the source ends before");
    assert!(copied.message.starts_with("writing 5242880 bytes of a spilled array to "), "{copied}");
    assert_eq!(elsewhere.release(far), Ok(()));
    assert_eq!(device.release(region), Ok(()));
}

#[test]
fn a_range_that_leaves_its_region_is_an_error() {
    let (_folder, device) = device();
    let region = device.reserve(SIZE).expect("room");
    let bytes = pattern(Bytes::kib(8));
    let error = bring(&device, &bytes, region.address + (SIZE - Bytes::kib(4))).expect_err("half of it is outside");
    assert!(error.code == Code::Internal && error.message.contains("5242880"), "{error}");
    assert_eq!(device.check_readable(region.address + SIZE, Bytes::ZERO), Ok(()));
    assert!(device.check_readable(region.address + SIZE, Bytes::new(1)).is_err());
    assert_eq!(device.release(region), Ok(()));
}

#[test]
fn a_child_leaves_its_parents_files_alone() {
    let (_folder, device) = device();
    let region = device.reserve(SIZE).expect("room");
    // What a child finds: another generation than that of the files.
    let folder = Arc::clone(&device.0.folder);
    let inherited = FolderBacking(Arc::new(Device { folder, files: Mutex::default(), generation: u32::MAX }));
    let bytes = pattern(SIZE);
    let refused = [
        bring(&inherited, &bytes, region.address),
        fetch(&inherited, region.address, SIZE).map(|_| ()),
        inherited.check_readable(region.address, SIZE),
    ];
    for error in refused.map(|done| done.expect_err("the parent's")) {
        assert!(error.code == Code::FailedPrecondition && error.message.contains("parent"), "{error}");
    }
    assert_eq!(device.release(region), Ok(()));
}

#[test]
fn an_arena_lives_on_files() {
    let (folder, device) = device();
    let arena =
        Arena::new("files".into(), Strategy::Growing, Bytes::mib(64), Box::new(device.clone())).expect("none yet");
    let blocks: Vec<_> = (1..=8_u8)
        .map(|number| {
            let block = arena.allocate(Bytes::kib(u64::from(number) * 700)).unwrap_or_else(|oom| panic!("{oom}"));
            let bytes = vec![number; block.size.get() as usize];
            assert_eq!(bring(&device, &bytes, block.address), Ok(()));
            (block, bytes)
        })
        .collect();
    for (block, bytes) in blocks {
        assert!(fetch(&device, block.address, block.size).expect("readable") == bytes);
        assert_eq!(arena.free(block.id), Ok(()));
    }
    drop(arena);
    assert_eq!((open_files(folder.path()).len(), mappings(folder.path())), (0, 0));
}

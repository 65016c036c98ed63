//! Files and folders that are not as they should be.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt, PermissionsExt, chown, symlink},
};

use crate::member::{Member, Place};

/// Words before the first slot of a file.
const HEADER: usize = 23;

/// A folder for groups in which a test has put something.
fn prepared() -> Place {
    let place = Place::new();
    fs::create_dir(place.folder()).expect("a new folder");
    fs::set_permissions(place.folder(), fs::Permissions::from_mode(0o700)).expect("its owner");
    place
}

fn refusal(place: &Place) -> String {
    Member::new(place).tell("join 100")
}

fn put(place: &Place, contents: &[u8], mode: u32) {
    fs::write(place.file(), contents).expect("writing");
    fs::set_permissions(place.file(), fs::Permissions::from_mode(mode)).expect("its owner");
}

#[test]
fn a_file_that_is_not_the_users_own_is_refused() {
    let place = prepared();
    symlink("/etc/passwd", place.file()).expect("a link");
    let said = refusal(&place);
    assert!(said.contains("the group `team`") && said.contains("it is a symbolic link"), "{said}");
    fs::remove_file(place.file()).expect("its owner");

    put(&place, b"", 0o640);
    let said = refusal(&place);
    assert!(said.contains("others may use it (mode 0640)"), "{said}");
    fs::set_permissions(place.file(), fs::Permissions::from_mode(0o600)).expect("its owner");

    fs::hard_link(place.file(), place.folder().join("other")).expect("a second name");
    let said = refusal(&place);
    assert!(said.contains("it has 2 names (hard links), and one is allowed"), "{said}");
    fs::remove_file(place.folder().join("other")).expect("its owner");

    if chown(place.file(), Some(1), None).is_ok() {
        let said = refusal(&place);
        assert!(said.contains("it belongs to the user with the number 1"), "{said}");
    } else {
        eprintln!("not tested: only root can give a file away");
    }
    fs::remove_file(place.file()).expect("its owner");

    fs::create_dir(place.file()).expect("a folder");
    let said = refusal(&place);
    assert!(said.contains("Is a directory"), "{said}");
}

#[test]
fn a_folder_that_others_may_enter_is_refused() {
    let place = prepared();
    fs::set_permissions(place.folder(), fs::Permissions::from_mode(0o750)).expect("its owner");
    let said = refusal(&place);
    assert!(said.contains("cannot hold groups: others may use it (mode 0750)"), "{said}");
    fs::remove_dir(place.folder()).expect("empty");
    symlink("/tmp", place.folder()).expect("a link");
    let said = refusal(&place);
    assert!(said.contains("it is a symbolic link, or no directory"), "{said}");
}

/// Garbage of which nobody is a member is written over, and what members have is not.
#[test]
fn a_damaged_file_is_taken_over_only_if_it_has_no_members() {
    for garbage in [&b""[..], b"short", &[0xa5; 100_000]] {
        let place = prepared();
        put(&place, garbage, 0o600);
        let mut member = Member::joined(&place);
        assert_eq!(member.tell("take 100"), "taken");
    }

    let place = Place::new();
    let mut member = Member::joined(&place);
    let file = OpenOptions::new().read(true).write(true).open(place.file()).expect("the file");
    let mut header = [0; 32];
    file.read_exact_at(&mut header, 0).expect("a header");
    // Where the words of the header are; the magic number, the version, the devices.
    for (at, value, why) in [
        (0, 1, "it is damaged: it does not begin as the file of a group does"),
        (8, 7, "its layout is version 7, and this library has version 2"),
        (16, 17, "it has 17 devices, and 1 to 16 are allowed"),
    ] {
        file.write_all_at(&u64::to_le_bytes(value), at).expect("writing");
        let said = refusal(&place);
        assert!(said.contains(why) && said.contains("end its members first"), "{said}");
        file.write_all_at(&header, 0).expect("writing");
    }
    assert_eq!(member.tell("take 100"), "taken");
    Member::joined(&place).end();
}

/// Every word of the file is replaced by numbers that cannot be, one after the other, under two members. There may be
/// an error; there is no panic, and nobody hangs.
#[test]
fn numbers_that_cannot_be_are_errors() {
    let place = Place::new();
    let (mut first, mut second) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(first.tell("take 10"), "taken");
    let file = OpenOptions::new().read(true).write(true).open(place.file()).expect("the file");
    let sound = fs::read(place.file()).expect("reading");
    let mut refused = 0;
    // The header, and what the members have of their first device.
    let slot = (sound.len() - HEADER * 8) / 64;
    let header = (0..HEADER).map(|word| word * 8);
    let slots = [HEADER * 8, HEADER * 8 + slot].into_iter().flat_map(|slot| (0..15).map(move |word| slot + word * 8));
    for at in header.chain(slots) {
        for value in [0, 1 << 40, u64::MAX] {
            file.write_all_at(&u64::to_le_bytes(value), at as u64).expect("writing");
            for member in [&mut first, &mut second] {
                refused += u32::from(member.tell("take 20") != "taken");
                member.tell("give");
                member.tell("available");
                member.tell("wanted");
                member.tell("members");
            }
            file.write_all_at(&sound, 0).expect("writing");
        }
    }
    assert!(refused > 20, "{refused}");
    let at = (HEADER * 8 + 8 * 8) as u64;
    file.write_all_at(&u64::to_le_bytes(101), at).expect("writing");
    let said = second.tell("take 20");
    assert!(said.contains("has a holding of 101 on device 0, and at most 100 is possible"), "{said}");
}

#[test]
fn a_disk_that_is_full_is_an_error() {
    let place = Place::new();
    let own = |script: &str| Member::through(&place, &["sh", "-c", script, "sh"]);
    let said = own("ulimit -f 8; exec \"$@\"").tell("join 100");
    assert!(said.contains("cannot be made there: File too large"), "{said}");
    let mount = format!("mount -t tmpfs -o size=16k,mode=700 none {}", place.runtime().display());
    let before = ["unshare", "--map-root-user", "--mount", "sh", "-c"];
    let works = std::process::Command::new(before[0]).args(&before[1..]).arg(&mount).status();
    if !works.is_ok_and(|status| status.success()) {
        eprintln!("not tested: a small file system cannot be mounted here");
        return;
    }
    let script = format!("{mount} && exec \"$@\"");
    let said = Member::through(&place, &[&before[..], &[&script, "sh"]].concat()).tell("join 100");
    assert!(said.contains("cannot be made there: No space left on device"), "{said}");
}

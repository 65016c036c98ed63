//! The import table of a loaded library: where it keeps the addresses of functions that it calls in others.
//!
//! ```text
//!  PT_DYNAMIC ---> DT_SYMTAB, DT_STRTAB   names
//!             \--> DT_JMPREL, DT_RELA     relocations: (slot, kind, symbol); of those that bind a function, the slot
//!                                         holds the function's address: calls go through it
//!  PT_GNU_RELRO    slots in here were made read-only after they were filled in
//! ```
//!
//! Source: System V ABI, "Dynamic Linking", and its supplements for x86-64 and AArch64.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr, slice,
};

use rustix::mm::{MprotectFlags, mprotect};

use crate::error::{Error, Result};

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// A relocation with addend.
#[repr(C)]
struct Rela {
    offset: u64,
    info: u64,
    addend: i64,
}

/// Kinds of relocation that put a function's address into a slot: GLOB_DAT, JUMP_SLOT, and a plain pointer in data.
#[cfg(target_arch = "x86_64")]
const BINDS: [u32; 3] = [6, 7, 1];
#[cfg(target_arch = "aarch64")]
const BINDS: [u32; 3] = [1025, 1026, 257];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const BINDS: [u32; 0] = [];

/// What is needed of a loaded library.
struct Library {
    /// What its addresses are counted from.
    base: usize,
    dynamic: *const Dynamic,
    /// Addresses that are read-only after loading.
    sealed: std::ops::Range<usize>,
}

/// A function by name, with what takes its place.
pub type Replacement<'a> = (&'a CStr, *const c_void);

/// Lets the library that `inside` belongs to call other functions than those it imports.
///
/// # Errors
/// `NOT_FOUND`, with nothing changed, where it does not import one of them; `INTERNAL` where its table cannot be
/// written, and the functions before it are replaced then.
///
/// # Safety
/// `inside` must lie in a library that is never unloaded and whose imports no other thread is resolving. The functions
/// must have the types of those that they replace.
pub unsafe fn redirect(inside: *const c_void, functions: &[Replacement<'_>]) -> Result<()> {
    let library = find(inside).ok_or_else(|| Error::not_found(format!("no loaded library holds {inside:p}")))?;
    // SAFETY: the library is loaded, and stays.
    let slots = unsafe { library.slots(functions)? };
    for (slot, function) in slots {
        // SAFETY: the slot is one that the loader filled in; the types are the caller's promise.
        unsafe { library.write(slot, function)? };
    }
    Ok(())
}

/// The loaded library that an address lies in.
fn find(inside: *const c_void) -> Option<Library> {
    struct Search {
        address: usize,
        found: Option<Library>,
    }

    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader passes a description of a library, and what `find` gave it.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        let base = info.dlpi_addr as usize;
        // SAFETY: as above: so many headers.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let span = |header: &libc::Elf64_Phdr| {
            let start = base + header.p_vaddr as usize;
            start..start + header.p_memsz as usize
        };
        let holds =
            |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && span(header).contains(&search.address);
        if !headers.iter().any(|header| holds(&header)) {
            return 0;
        }
        let of_type = |wanted| headers.iter().find(|header| header.p_type == wanted).map(span);
        search.found = of_type(libc::PT_DYNAMIC).map(|dynamic| Library {
            base,
            dynamic: ptr::with_exposed_provenance(dynamic.start),
            sealed: of_type(libc::PT_GNU_RELRO).map_or(0..0, |span| page_of(span.start)..page_of(span.end)),
        });
        1
    }

    let mut search = Search { address: inside.addr(), found: None };
    // SAFETY: the callback takes the type that is passed, and the search outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// The page that an address lies in: the loader seals whole pages, the last one only if all of it is to be sealed.
fn page_of(address: usize) -> usize {
    address & !(rustix::param::page_size() - 1)
}

impl Library {
    /// Every slot that holds the address of one of the functions, with what is to replace it; in the functions' order.
    ///
    /// # Safety
    /// The library must be loaded.
    unsafe fn slots(&self, functions: &[Replacement<'_>]) -> Result<Vec<(usize, *const c_void)>> {
        // SAFETY: the caller's promise: the tables are as long as the dynamic section says.
        let (names, symbols, tables) = unsafe {
            let names = self.table(DT_STRTAB).map(ptr::with_exposed_provenance::<c_char>);
            let symbols = self.table(DT_SYMTAB).map(ptr::with_exposed_provenance::<libc::Elf64_Sym>);
            let tables = [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)].map(|(start, size)| {
                match self.table(start).zip(self.entry(size)) {
                    Some((start, size)) => {
                        slice::from_raw_parts(ptr::with_exposed_provenance::<Rela>(start), size / size_of::<Rela>())
                    }
                    None => &[],
                }
            });
            (names, symbols, tables)
        };
        let (Some(names), Some(symbols)) = (names, symbols) else {
            return Err(Error::not_found("the library has no table of symbols"));
        };
        let mut slots: Vec<Vec<usize>> = vec![Vec::new(); functions.len()];
        for relocation in tables.into_iter().flatten() {
            let (symbol, kind) = ((relocation.info >> 32) as usize, relocation.info as u32);
            if symbol == 0 || !BINDS.contains(&kind) || relocation.addend != 0 {
                continue;
            }
            // SAFETY: the relocation names a symbol of the table, and the symbol a C string of the other one.
            let name = unsafe { CStr::from_ptr(names.add((*symbols.add(symbol)).st_name as usize)) };
            if let Some(number) = functions.iter().position(|(wanted, _)| *wanted == name) {
                slots[number].push(self.base + relocation.offset as usize);
            }
        }
        if let Some(number) = slots.iter().position(Vec::is_empty) {
            let name = functions[number].0.to_string_lossy();
            return Err(Error::not_found(format!("the library does not import {name}")));
        }
        let with = |(slots, &(_, function)): (Vec<usize>, &Replacement<'_>)| {
            slots.into_iter().map(move |slot| (slot, function)).collect::<Vec<_>>()
        };
        Ok(slots.into_iter().zip(functions).flat_map(with).collect())
    }

    /// The value of an entry of the dynamic section.
    ///
    /// # Safety
    /// The library must be loaded.
    unsafe fn entry(&self, tag: i64) -> Option<usize> {
        // SAFETY: the section ends with an entry of tag 0.
        unsafe {
            let mut at = self.dynamic;
            while (*at).tag != 0 {
                if (*at).tag == tag {
                    return Some((*at).value);
                }
                at = at.add(1);
            }
        }
        None
    }

    /// The address of a table: loaders write addresses over the offsets that the file has, or leave them.
    ///
    /// # Safety
    /// The library must be loaded.
    unsafe fn table(&self, tag: i64) -> Option<usize> {
        // SAFETY: the caller's promise.
        let value = unsafe { self.entry(tag)? };
        Some(if value < self.base { self.base + value } else { value })
    }

    /// Writes one slot.
    ///
    /// # Safety
    /// `slot` must be a slot of the table, and `function` have the type of what it holds.
    unsafe fn write(&self, slot: usize, function: *const c_void) -> Result<()> {
        let page = rustix::param::page_size();
        let first = ptr::with_exposed_provenance_mut::<c_void>(page_of(slot));
        let protect = |flags| {
            // SAFETY: the page of the slot; it is made writable, or as the loader left it.
            unsafe { mprotect(first, page, flags) }
                .map_err(|errno| Error::internal(format!("mprotect of the import table at {first:p} failed: {errno}")))
        };
        let sealed = self.sealed.contains(&slot);
        if sealed {
            protect(MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        // SAFETY: the slot is aligned, and now writable. Who calls through it at this moment finds the old function or
        // the new one.
        unsafe { ptr::with_exposed_provenance_mut::<*const c_void>(slot).write_volatile(function) };
        if sealed {
            protect(MprotectFlags::READ)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn nobody() -> libc::pid_t {
        -7
    }

    #[test]
    fn a_function_is_replaced_and_put_back() {
        let inside = a_function_is_replaced_and_put_back as *const c_void;
        // SAFETY: no arguments. Nothing else of this program asks for its parent.
        let parent = || unsafe { libc::getppid() };
        let before = parent();
        // SAFETY: the test's own executable, fully bound; the types are the same.
        unsafe { redirect(inside, &[(c"getppid", nobody as *const c_void)]) }.unwrap();
        assert_eq!(parent(), -7);
        // SAFETY: a C string; the loader's own answer to the same question.
        let original = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getppid".as_ptr()) };
        // SAFETY: as above.
        unsafe { redirect(inside, &[(c"getppid", original)]) }.unwrap();
        assert_eq!(parent(), before);
    }

    #[test]
    fn all_or_nothing_where_one_is_not_imported() {
        let inside = all_or_nothing_where_one_is_not_imported as *const c_void;
        let both = [(c"getpgrp", nobody as *const c_void), (c"pjrt_arena_no_such_function", nobody as *const c_void)];
        // SAFETY: nothing is to be replaced.
        let (error, group) = unsafe {
            let error = redirect(inside, &both).unwrap_err();
            (error, libc::getpgrp())
        };
        assert!(error.message.contains("pjrt_arena_no_such_function"), "{error}");
        assert!(group > 0);
        // SAFETY: as above.
        assert!(unsafe { redirect(ptr::without_provenance(8), &both) }.is_err(), "no library");
    }
}

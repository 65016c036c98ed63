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
    ffi::{CStr, c_int, c_void},
    ops::Range,
    ptr, slice,
};

use rustix::mm::{MprotectFlags, mprotect};

use crate::error::{Error, Result};

const DT_PLTRELSZ: usize = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_JMPREL: usize = 23;

/// Bytes of an entry of the dynamic section (a tag, a value), of a relocation with addend (a place, a kind below a
/// symbol's number, an addend) and of a symbol (its name's place in four bytes, and more).
const DYNAMIC: usize = 16;
const RELA: usize = 24;
const SYMBOL: usize = 24;

/// Kinds of relocation that put a function's address into a slot: GLOB_DAT, JUMP_SLOT, and a plain pointer in data.
#[cfg(target_arch = "x86_64")]
const BINDS: [u32; 3] = [6, 7, 1];
#[cfg(target_arch = "aarch64")]
const BINDS: [u32; 3] = [1025, 1026, 257];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const BINDS: [u32; 0] = [];

/// What is needed of a library that stays loaded.
struct Library {
    /// What its addresses are counted from.
    base: usize,
    /// The addresses of its readable segments.
    segments: Vec<Range<usize>>,
    dynamic: Range<usize>,
    /// Addresses that are read-only after loading.
    sealed: Range<usize>,
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
/// must have the types of those that they replace, and do for the library what those do.
pub unsafe fn redirect(inside: *const c_void, functions: &[Replacement<'_>]) -> Result<()> {
    // SAFETY: the library is never unloaded, as this function asks.
    let library =
        unsafe { find(inside) }.ok_or_else(|| Error::not_found(format!("no loaded library holds {inside:p}")))?;
    let page = rustix::param::page_size();
    let names: Vec<&CStr> = functions.iter().map(|(name, _)| *name).collect();
    let slots = library.slots(&names)?;
    if let Some(number) = slots.iter().position(Vec::is_empty) {
        let name = names[number].to_string_lossy();
        return Err(Error::not_found(format!("the library does not import {name}")));
    }
    let with = |(slots, &(_, function)): (Vec<usize>, &Replacement<'_>)| {
        slots.into_iter().map(move |slot| (slot, function)).collect::<Vec<_>>()
    };
    for (slot, function) in slots.into_iter().zip(functions).flat_map(with) {
        let first = ptr::with_exposed_provenance_mut::<c_void>(page_of(slot));
        let failed = |errno| Error::internal(format!("mprotect of the import table at {first:p} failed: {errno}"));
        let sealed = library.sealed.contains(&slot);
        // SAFETY: the loader filled the slot in, aligned and in a page of the library, which is made writable and
        // afterwards as the loader left it. The function does what the one that the slot held did, as this function
        // asks. Who calls through it at this moment finds the old one or the new one.
        unsafe {
            if sealed {
                mprotect(first, page, MprotectFlags::READ | MprotectFlags::WRITE).map_err(failed)?;
            }
            ptr::with_exposed_provenance_mut::<*const c_void>(slot).write_volatile(function);
            if sealed {
                mprotect(first, page, MprotectFlags::READ).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// The first of the functions that the library that `inside` belongs to imports.
///
/// # Errors
/// `NOT_FOUND` where there is no such library, or its table cannot be read.
///
/// # Safety
/// The library is never unloaded.
pub unsafe fn first_imported<'a>(inside: *const c_void, functions: &[&'a CStr]) -> Result<Option<&'a CStr>> {
    // SAFETY: the library is never unloaded, as this function asks.
    let library =
        unsafe { find(inside) }.ok_or_else(|| Error::not_found(format!("no loaded library holds {inside:p}")))?;
    let slots = library.slots(functions)?;
    Ok(functions.iter().zip(&slots).find(|(_, slots)| !slots.is_empty()).map(|(function, _)| *function))
}

/// The loaded library that an address lies in.
///
/// # Safety
/// It is never unloaded.
unsafe fn find(inside: *const c_void) -> Option<Library> {
    struct Search {
        address: usize,
        found: Option<Library>,
    }

    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader passes a description of a library with so many headers, and what `find` gave it.
        let (info, headers, search) = unsafe {
            let headers = slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
            (&*info, headers, &mut *search.cast::<Search>())
        };
        let base = info.dlpi_addr as usize;
        let span = |header: &libc::Elf64_Phdr| {
            let start = base + header.p_vaddr as usize;
            start..start + header.p_memsz as usize
        };
        let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        if !loaded().any(|header| span(header).contains(&search.address)) {
            return 0;
        }
        let of_type = |wanted| headers.iter().find(|header| header.p_type == wanted).map(span);
        search.found = of_type(libc::PT_DYNAMIC).map(|dynamic| Library {
            base,
            segments: loaded().filter(|header| header.p_flags & libc::PF_R != 0).map(span).collect(),
            dynamic,
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

/// The word at `at` of a table's entry.
fn word(entry: &[u8], at: usize) -> usize {
    entry[at * 8..].first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes))
}

impl Library {
    /// Of each of the functions the slots that hold its address.
    fn slots(&self, functions: &[&CStr]) -> Result<Vec<Vec<usize>>> {
        let (Some(names), Some(symbols)) = (self.table(DT_STRTAB), self.table(DT_SYMTAB)) else {
            return Err(Error::not_found("the library has no table of symbols"));
        };
        let tables = [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)]
            .map(|(start, size)| self.behind(self.table(start)?).get(..self.entry(size)?));
        let mut slots: Vec<Vec<usize>> = vec![Vec::new(); functions.len()];
        for relocation in tables.into_iter().flatten().flat_map(|table| table.chunks_exact(RELA)) {
            let (offset, info, addend) = (word(relocation, 0), word(relocation, 1), word(relocation, 2));
            let (symbol, kind) = (info >> 32, info as u32);
            if symbol == 0 || !BINDS.contains(&kind) || addend != 0 {
                continue;
            }
            let Some(name) = self.behind(symbols + symbol * SYMBOL).first_chunk() else { continue };
            let name = CStr::from_bytes_until_nul(self.behind(names + u32::from_ne_bytes(*name) as usize));
            if let Some(number) = functions.iter().position(|wanted| Ok(*wanted) == name) {
                slots[number].push(self.base + offset);
            }
        }
        Ok(slots)
    }

    /// The value of an entry of the dynamic section, which ends with one of tag 0.
    fn entry(&self, tag: usize) -> Option<usize> {
        let section = self.behind(self.dynamic.start).get(..self.dynamic.len())?;
        let entries = section.chunks_exact(DYNAMIC).map(|entry| (word(entry, 0), word(entry, 1)));
        entries.take_while(|&(tag, _)| tag != 0).find(|&(known, _)| known == tag).map(|(_, value)| value)
    }

    /// The address of a table: loaders write addresses over the offsets that the file has, or leave them.
    fn table(&self, tag: usize) -> Option<usize> {
        let value = self.entry(tag)?;
        Some(if value < self.base { self.base + value } else { value })
    }

    /// What lies from an address on, up to the end of its segment; nothing where no readable segment is.
    fn behind(&self, start: usize) -> &[u8] {
        let Some(segment) = self.segments.iter().find(|segment| segment.contains(&start)) else { return &[] };
        // SAFETY: the range is a part of a segment that the loader mapped, readable, and that stays (`find`). What is
        // looked at of it the loader wrote before this, and nobody writes it while the library is not being resolved.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(start), segment.end - start) }
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
    fn imports_are_found_by_name() {
        let inside = imports_are_found_by_name as *const c_void;
        // SAFETY: the test's own executable.
        let first = |names: &[&'static CStr]| unsafe { first_imported(inside, names) }.unwrap();
        // What a Rust program calls in any case.
        assert_eq!(first(&[c"pjrt_arena_no_such_function", c"free", c"malloc"]), Some(c"free"));
        assert_eq!(first(&[c"pjrt_arena_no_such_function"]), None);
        // SAFETY: no library is looked at.
        assert!(unsafe { first_imported(ptr::without_provenance(8), &[c"free"]) }.is_err(), "no library");
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

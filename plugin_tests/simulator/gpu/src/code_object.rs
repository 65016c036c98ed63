//! AMD's code objects, which `hipModuleLoadData` takes: ELF files of machine code. What they contain is known by name,
//! and their variables get memory with what is in them at first; nothing runs the code.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    KnownParts, memory, reach,
    state::{Driver, State},
    status::{self, Answer, Failure, Status, misuse},
};

/// `hipErrorInvalidImage`.
const INVALID_IMAGE: Status = 200;

/// The bytes that say how large a file is: the header of a 64-bit ELF file (`Elf64_Ehdr` in `elf.h`).
pub const HEADER: usize = 64;

/// `EM_AMDGPU`.
const MACHINE: u64 = 224;

/// The types of sections and symbols: `SHT_DYNSYM`, `SHT_NOBITS`, `STT_OBJECT`.
const SYMBOLS: u64 = 11;
const WITHOUT_BYTES: u64 = 8;
const OBJECT: u64 = 1;

/// What the symbol of a kernel's description ends with, after the kernel's name.
const DESCRIPTION: &str = ".kd";

/// What `hipModuleLoadData` gave.
#[derive(Debug)]
pub struct CodeObject {
    kernels: BTreeSet<String>,
    /// Where variables are, and how many bytes.
    variables: BTreeMap<String, (u64, u64)>,
}

/// A kernel of one.
#[derive(Debug)]
pub struct MachineKernel {
    object: u64,
    name: String,
}

/// A file's bytes.
struct File<'a>(&'a [u8]);

/// `Elf64_Shdr`, as far as it is used.
#[derive(Clone, Copy)]
struct Section {
    kind: u64,
    address: u64,
    offset: u64,
    bytes: u64,
    link: u64,
}

fn broken(why: &str) -> Failure {
    misuse(INVALID_IMAGE, format!("the image is no code object: {why}"))
}

impl<'a> File<'a> {
    fn part(&self, offset: u64, bytes: u64) -> Answer<&'a [u8]> {
        let end = offset.checked_add(bytes).and_then(|end| usize::try_from(end).ok());
        let part = end.and_then(|end| self.0.get(offset as usize..end));
        part.ok_or_else(|| broken(&format!("{bytes} bytes at {offset} are beyond its {}", self.0.len())))
    }

    /// A number of so many bytes.
    fn number(&self, offset: u64, bytes: u64) -> Answer<u64> {
        let mut all = [0; 8];
        all[..bytes as usize].copy_from_slice(self.part(offset, bytes)?);
        Ok(u64::from_le_bytes(all))
    }

    /// Where the table of sections is, how many bytes each takes in it, and how many there are.
    fn table(&self) -> Answer<(u64, u64, u64)> {
        if self.part(0, 5)? != b"\x7fELF\x02" || self.number(18, 2)? != MACHINE {
            return Err(broken("it is no ELF file for AMD's GPUs"));
        }
        Ok((self.number(40, 8)?, self.number(58, 2)?, self.number(60, 2)?))
    }

    fn section(&self, index: u64) -> Answer<Section> {
        let (table, each, _) = self.table()?;
        let at = table.saturating_add(each * index);
        let field = |offset, bytes| self.number(at.saturating_add(offset), bytes);
        Ok(Section {
            kind: field(4, 4)?,
            address: field(16, 8)?,
            offset: field(24, 8)?,
            bytes: field(32, 8)?,
            link: field(40, 4)?,
        })
    }

    /// The text that begins at an offset.
    fn text(&self, offset: u64) -> Answer<String> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let end = rest.iter().position(|&byte| byte == 0).ok_or_else(|| broken("a name has no end"))?;
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }

    /// The symbols that are objects (`Elf64_Sym`): the name, and what they hold at first.
    fn objects(&self) -> Answer<Vec<(String, Vec<u8>)>> {
        let (_, _, sections) = self.table()?;
        let mut all = Vec::new();
        for index in 0..sections {
            let Section { kind, offset, bytes, link, .. } = self.section(index)?;
            if kind != SYMBOLS {
                continue;
            }
            // That they are all there; then no offset of theirs is too large.
            self.part(offset, bytes)?;
            let names = self.section(link)?.offset;
            for symbol in (offset..offset + bytes).step_by(24) {
                let (home, address, size) =
                    (self.number(symbol + 6, 2)?, self.number(symbol + 8, 8)?, self.number(symbol + 16, 8)?);
                if self.number(symbol + 4, 1)? & 0xf != OBJECT || home == 0 || home >= sections {
                    continue;
                }
                let within = self.section(home)?;
                let first = match within.kind {
                    WITHOUT_BYTES => vec![0; size as usize],
                    _ => {
                        self.part(within.offset.saturating_add(address.saturating_sub(within.address)), size)?.to_vec()
                    }
                };
                all.push((self.text(names.saturating_add(self.number(symbol, 4)?))?, first));
            }
        }
        Ok(all)
    }
}

/// How many bytes a file has by its header: the table of sections ends it.
pub fn size(header: &[u8]) -> Answer<usize> {
    let (table, each, count) = File(header).table()?;
    let size = usize::try_from(table.saturating_add(each * count)).ok();
    size.filter(|&size| size <= isize::MAX as usize).ok_or_else(|| broken("it is larger than memory"))
}

/// `hipModuleLoadData`.
pub fn load(driver: &mut Driver, image: &[u8]) -> Answer<u64> {
    let (mut kernels, mut variables) = (BTreeSet::new(), BTreeMap::new());
    for (name, first) in File(image).objects()? {
        if let Some(kernel) = name.strip_suffix(DESCRIPTION) {
            kernels.insert(kernel.to_owned());
            continue;
        }
        let address = match memory::allocate(driver, (first.len() as u64).max(1)) {
            Ok(address) => address,
            Err(failure) => {
                variables.values().try_for_each(|&(address, _)| memory::free(driver, address))?;
                return Err(failure);
            }
        };
        reach::write(address, &first);
        variables.insert(name, (address, first.len() as u64));
    }
    let handle = driver.number() << 8;
    driver.parts.known_mut().code_objects.insert(handle, CodeObject { kernels, variables });
    Ok(handle)
}

fn object(driver: &State, handle: u64) -> Answer<&CodeObject> {
    let unknown = || misuse(status::INVALID_HANDLE, format!("{handle:#x} is no module, or was unloaded before"));
    driver.parts.known().code_objects.get(&handle).ok_or_else(unknown)
}

/// `hipModuleUnload`.
pub fn unload(driver: &mut Driver, handle: u64) -> Answer {
    object(driver, handle)?;
    let Some(gone) = driver.parts.known_mut().code_objects.remove(&handle) else { return Ok(()) };
    driver.parts.known_mut().machine_kernels.retain(|_, kernel| kernel.object != handle);
    gone.variables.values().try_for_each(|&(address, _)| memory::free(driver, address))
}

/// `hipModuleGetFunction`.
pub fn function(driver: &mut Driver, module: u64, name: &str) -> Answer<u64> {
    if !object(driver, module)?.kernels.contains(name) {
        return Err(status::NOT_FOUND.into());
    }
    let handle = driver.number() << 8;
    driver.parts.known_mut().machine_kernels.insert(handle, MachineKernel { object: module, name: name.to_owned() });
    Ok(handle)
}

/// `hipModuleGetGlobal`: where, and how many bytes.
pub fn global(driver: &State, module: u64, name: &str) -> Answer<(u64, u64)> {
    object(driver, module)?.variables.get(name).copied().ok_or_else(|| status::NOT_FOUND.into())
}

/// The name of a kernel.
pub fn name(driver: &State, function: u64) -> Answer<&str> {
    let unknown = || misuse(status::INVALID_HANDLE, format!("{function:#x} is no kernel, or its module was unloaded"));
    Ok(&driver.parts.known().machine_kernels.get(&function).ok_or_else(unknown)?.name)
}

/// Says that a kernel cannot be run. It is no mistake of the caller's, who gets an error: so it is told, and not
/// counted.
pub fn refuse(driver: &State, function: u64) -> Answer {
    let name = name(driver, function)?;
    eprintln!("fake_cuda: the kernel {name} is machine code of AMD's GPUs, which is not known here, and does not run");
    Ok(())
}

//! Weights as a static library: one object file with one symbol, so that rustc need not read them.
//!
//! In: bytes, a symbol and a format. Out: an archive in the form that ELF linkers read (System V, with a symbol table). Linking
//! 270 MB this way takes a third of a second, where the assembler's `.incbin` takes two (every build copies them then).

use object::write::{Object, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

/// An object format that is written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format(Architecture);

impl Format {
    /// That of the target of the build script which runs now; `None` for those that are not written here.
    pub(crate) fn of_build_script() -> Option<Self> {
        let of = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).ok();
        Self::of(&of("OS")?, &of("ARCH")?)
    }

    fn of(os: &str, arch: &str) -> Option<Self> {
        match (os, arch) {
            ("linux", "x86_64") => Some(Self(Architecture::X86_64)),
            ("linux", "aarch64") => Some(Self(Architecture::Aarch64)),
            _ => None,
        }
    }
}

/// The alignment of the weights in bytes.
const ALIGN: u64 = 64;
/// The length of an archive member's head.
const HEAD: u64 = 60;

/// Writes the archive, whole or not at all.
pub(crate) fn write(path: &Path, format: Format, symbol: &str, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let written = write_to(&partial, format, symbol, bytes).and_then(|()| std::fs::rename(&partial, path));
    written.inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })
}

fn write_to(path: &Path, format: Format, symbol: &str, bytes: &[u8]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(b"!<arch>\n")?;
    // The symbol table: how many, where each one's member starts, their names.
    let mut table = 1u32.to_be_bytes().to_vec();
    let names = symbol.len() as u64 + 1;
    let table_len = (4 + 4 + names).next_multiple_of(2);
    let member = 8 + HEAD + table_len;
    table.extend(u32::try_from(member).map_err(io::Error::other)?.to_be_bytes());
    table.extend(symbol.bytes());
    table.resize(table_len as usize, 0);
    file.write_all(&head("/", table_len))?;
    file.write_all(&table)?;
    // The object's length is known once it is written.
    file.write_all(&head("weights.o/", 0))?;
    object(format, symbol, bytes).write_stream(&mut file).map_err(|e| io::Error::other(e.to_string()))?;
    let length = file.stream_position()? - member - HEAD;
    if length % 2 == 1 {
        file.write_all(b"\n")?;
    }
    file.seek(SeekFrom::Start(member))?;
    file.write_all(&head("weights.o/", length))?;
    file.flush()
}

/// A member's head, without dates and owners: equal weights make equal archives.
fn head(name: &str, length: u64) -> Vec<u8> {
    format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{length:<10}`\n", 0, 0, 0, 644).into_bytes()
}

fn object<'a>(format: Format, symbol: &str, bytes: &'a [u8]) -> Object<'a> {
    let mut object = Object::new(BinaryFormat::Elf, format.0, Endianness::Little);
    let section = object.add_section(Vec::new(), format!(".rodata.{symbol}").into_bytes(), SectionKind::ReadOnlyData);
    object.set_section_data(section, bytes, ALIGN);
    object.add_symbol(Symbol {
        name: symbol.as_bytes().to_vec(),
        value: 0,
        size: bytes.len() as u64,
        kind: SymbolKind::Data,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    });
    // Without this section the linker takes the stack for executable.
    object.add_section(Vec::new(), b".note.GNU-stack".to_vec(), SectionKind::Other);
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_elf_targets_have_a_format() {
        assert!(Format::of("linux", "x86_64").is_some());
        assert!(Format::of("linux", "aarch64").is_some());
        assert!(Format::of("macos", "aarch64").is_none());
        assert!(Format::of("linux", "riscv64").is_none());
    }

    #[test]
    fn equal_weights_make_equal_archives() {
        let folder = std::env::temp_dir().join(format!("kiln-archive-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let of = |name: &str| {
            let file = folder.join(name);
            write(&file, Format(Architecture::X86_64), "kiln_weights_0", &[1, 2, 3]).expect("written");
            std::fs::read(file).expect("read")
        };
        let (a, b) = (of("a.a"), of("b.a"));
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(a.starts_with(b"!<arch>\n/               0"));
        assert_eq!(a.len() % 2, 0);
        assert_eq!(a, b);
        // The table's offset leads to the object's head.
        let at = u32::from_be_bytes(a[72..76].try_into().expect("four bytes")) as usize;
        assert!(a[at..].starts_with(b"weights.o/"));
        assert_eq!(&a[at + 60..at + 64], b"\x7fELF");
    }
}

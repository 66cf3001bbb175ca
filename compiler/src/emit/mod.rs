//! From a program to a Rust module and its weights: formatted, commented, straight-line.
//!
//! In: a verified [`Program`], nothing else. Out: source text without paths, time stamps or weight literals, and the
//! weights' bytes. The module calls `kiln`'s kernels with baked descriptors and contains no `unsafe` of its own.
//! Invariant: names from the model appear only in comments, docs and string literals, escaped.

mod device;
mod dims;
mod model;
mod names;
mod narrow;
mod ports;
mod states;
mod steps;
mod streams;
mod text;

pub(crate) use model::weights_symbol;
pub use names::{module_name, unique_idents};
pub use text::program_text;

use crate::error::{CompileError, Stage};
use crate::program::Program;
use proc_macro2::TokenStream;
use sha2::Digest;

/// Version of the interface between generated modules and `kiln`.
pub const ABI: u32 = 4;

/// What a compile writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The module's source, for `NAME.rs`.
    pub source: String,
    /// The weights, for `NAME.weights`. With [`WeightsFrom::File`] a trailer follows that says whose they are
    /// ([`kiln_kernels::weights_trailer`]).
    pub weights: Vec<u8>,
}

/// Where a module's weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightsFrom {
    /// The binary.
    #[default]
    Embed,
    /// A file, read when the model starts.
    File,
}

/// Prints the program. `per_step` adds a function for each step, for tools that time them.
pub fn emit(program: &Program, weights_from: WeightsFrom, per_step: bool) -> Result<Emitted, CompileError> {
    let mut weights = program.weights_blob();
    let head = model::header(program);
    let extents = dims::Extents::of(program);
    let shared = steps::Statics::of(program);
    let items = model::items(program, &extents, &weights, weights_from)?;
    let mut source = format!("{head}\n{}", formatted(items)?);
    if per_step {
        source.push_str(&formatted(model::step_items(program, &extents, &shared)?)?);
    }
    source.push_str(&steps::comments(&formatted(streams::items(program, &extents, &shared, &TokenStream::new())?)?));
    source.push_str(&steps::comments(&formatted(device::items(program, &extents)?)?));
    // One function at a time: the tokens of a long program would take gigabytes.
    steps::items(program, &extents, &shared, &mut |function| {
        source.push_str(&steps::comments(&formatted(function)?));
        Ok(())
    })?;
    source.push_str(&narrow::modules(program)?);
    if weights_from == WeightsFrom::File {
        let sha256 = sha2::Sha256::digest(&weights).into();
        weights.extend(kiln_kernels::weights_trailer(weights.len() as u64, sha256));
    }
    Ok(Emitted { source, weights })
}

fn formatted(items: TokenStream) -> Result<String, CompileError> {
    let file: syn::File = syn::parse2(items).map_err(|e| broken(&e.to_string()))?;
    Ok(prettyplease::unparse(&file))
}

fn broken(what: &str) -> CompileError {
    CompileError::new(Stage::Emit, format!("the generated module does not parse: {what} (a bug in the compiler)"))
}

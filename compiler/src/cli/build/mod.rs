//! From compiled modules to programs that run them: generated crates in the cache folder, built with cargo.
//!
//! In: modules on disk. Out: for each module a binary and its number in it, or the reason why it does not build.
//! Many small modules share a crate, a big one has its own. A binary is named by the hash of all that goes into it, so an
//! unchanged one is found without asking cargo. A module that rustc refuses is left out and the rest is built again.

mod cargo;
mod kiln;
mod krate;
mod tasks;

pub(super) use kiln::Kiln;
pub(super) use tasks::{Task, run_all};

use super::term::Progress;
use crate::artifact::Artifact;
use crate::prune;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A module in a binary.
#[derive(Clone, Debug)]
pub(super) struct Built {
    /// The program that holds it.
    pub(super) binary: PathBuf,
    /// Its number there.
    pub(super) module_idx: usize,
}

/// How to build.
pub(super) struct Builder<'a> {
    /// The cache folder.
    pub(super) cache: &'a Path,
    /// The crate that modules are linked with.
    pub(super) kiln: &'a Kiln,
    /// Builds at once.
    pub(super) jobs: usize,
    /// Optimisation of the generated crate itself (the kernels are always optimised).
    pub(super) opt_level: u8,
    /// Says how far it is.
    pub(super) progress: &'a Progress,
}

/// A module to build.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    /// Where it lies.
    pub(super) artifact: &'a Artifact,
    /// Whether it was emitted with a function for each step.
    pub(super) per_step: bool,
}

/// Modules in one crate: more cost more to build again when one of them changes, fewer cost a link each.
const MAX_MODULES: usize = 96;
/// Source text in one crate.
const MAX_SOURCE_BYTES: u64 = 1 << 20;
/// Weights in one crate, unless it has a single module.
const MAX_WEIGHT_BYTES: u64 = 64 << 20;

/// Builds all modules. The results are in the modules' order.
pub(super) fn build(modules: &[Source<'_>], builder: &Builder<'_>) -> Result<Vec<Result<Built, String>>, String> {
    let mut results: Vec<Option<Result<Built, String>>> = vec![None; modules.len()];
    let mut todo = batches(modules);
    while !todo.is_empty() {
        let mut crates = BTreeMap::new();
        for members in todo.drain(..) {
            let sources: Vec<_> = members.iter().map(|&m| modules[m]).collect();
            let text = krate::Text::new(&sources, builder);
            let binary = builder.cache.join("bin").join(&text.name);
            if binary.is_file() {
                prune::touch(&binary);
                place(&mut results, &members, &binary);
            } else {
                crates.insert(text.name.clone(), (text, members, binary));
            }
        }
        if crates.is_empty() {
            break;
        }
        let texts: Vec<_> = crates.values().map(|(text, ..)| text).collect();
        let mut outcomes = cargo::build(&texts, builder)?;
        for (name, (_, members, binary)) in &crates {
            match outcomes.remove(name).unwrap_or_else(|| Err(cargo::Refusal::default())) {
                Ok(()) => place(&mut results, members, binary),
                Err(refusal) => {
                    let retry = blame(modules, members, &refusal, &mut results);
                    todo.extend(retry);
                }
            }
        }
    }
    Ok(results.into_iter().map(|r| r.unwrap_or_else(|| Err("was not built".into()))).collect())
}

fn place(results: &mut [Option<Result<Built, String>>], members: &[usize], binary: &Path) {
    for (module_idx, &m) in members.iter().enumerate() {
        results[m] = Some(Ok(Built { binary: binary.to_owned(), module_idx }));
    }
}

/// Marks the modules that rustc's errors point into, and says which crates to try next.
fn blame(
    modules: &[Source<'_>],
    members: &[usize],
    refusal: &cargo::Refusal,
    results: &mut [Option<Result<Built, String>>],
) -> Vec<Vec<usize>> {
    let mut rest = Vec::new();
    for &m in members {
        let folder = modules[m].artifact.source.parent().unwrap_or(Path::new("")).to_string_lossy();
        match refusal.errors.iter().find(|e| e.files.iter().any(|f| f.contains(&*folder))) {
            Some(e) => results[m] = Some(Err(format!("the generated module does not compile: {}", e.message))),
            None => rest.push(m),
        }
    }
    if rest.len() < members.len() {
        return if rest.is_empty() { Vec::new() } else { vec![rest] };
    }
    if let [m] = members {
        let said = refusal.errors.first().map_or(refusal.output.as_str(), |e| e.message.as_str());
        results[*m] = Some(Err(format!("the generated crate does not build: {said}")));
        return Vec::new();
    }
    // No error names a module (the linker failed, or rustc died): find it by halves.
    let (a, b) = members.split_at(members.len() / 2);
    vec![a.to_vec(), b.to_vec()]
}

/// Which modules share a crate, in the modules' order.
fn batches(modules: &[Source<'_>]) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let (mut source_bytes, mut weight_bytes) = (0, 0);
    for (m, module) in modules.iter().enumerate() {
        let source = std::fs::metadata(&module.artifact.source).map_or(0, |meta| meta.len());
        let weights = module.artifact.facts.weight_bytes;
        if source > MAX_SOURCE_BYTES / 2 || weights > MAX_WEIGHT_BYTES / 2 {
            out.push(vec![m]);
            continue;
        }
        let full = open.len() >= MAX_MODULES
            || source_bytes + source > MAX_SOURCE_BYTES
            || weight_bytes + weights > MAX_WEIGHT_BYTES;
        if full && !open.is_empty() {
            out.push(std::mem::take(&mut open));
            (source_bytes, weight_bytes) = (0, 0);
        }
        open.push(m);
        source_bytes += source;
        weight_bytes += weights;
    }
    if !open.is_empty() {
        out.push(open);
    }
    out
}

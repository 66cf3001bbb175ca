//! Which version of each operator domain a model or function was written for.
//!
//! In: `opset_import`. Out: domain → version, `ai.onnx` under `""`. A domain given twice counts with
//! the highest version, as `onnx.proto` says.
//! Source: docs/Versioning.md of onnx.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::decode::{error, normal_domain};
use super::model::ONNX_DOMAIN;
use super::proto::OperatorSetIdProto;
use crate::error::{CompileError, CompileErrors, Quoted};

/// The newest version of ONNX's own operators that is understood.
pub const MAX_ONNX_OPSET: i64 = 28;

/// ONNX Runtime's own operators; its exporters often leave the import out.
const MICROSOFT_DOMAIN: &str = "com.microsoft";

/// The imported operator sets.
pub(super) struct Opsets {
    versions: BTreeMap<String, i64>,
    /// Domains already reported as missing.
    reported: RefCell<BTreeSet<String>>,
}

impl Opsets {
    /// Decodes `opset_import`; problems are recorded.
    pub(super) fn decode(imports: Vec<OperatorSetIdProto>, errors: &mut CompileErrors) -> Self {
        let mut versions = BTreeMap::new();
        for import in imports {
            let domain = normal_domain(import.domain);
            if let Err(e) = check_version(&domain, import.version) {
                errors.push(e);
            }
            let version = versions.entry(domain).or_insert(import.version);
            *version = import.version.max(*version);
        }
        Opsets { versions, reported: RefCell::default() }
    }

    /// Nothing is imported at all.
    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// The version of `domain`, if it is imported (or need not be).
    pub(super) fn version_of(&self, domain: &str) -> Option<i64> {
        let imported = self.versions.get(domain).copied();
        imported.or_else(|| (domain == MICROSOFT_DOMAIN).then_some(1))
    }

    /// The problem of a domain that is used but not imported; reported once for each. (Where nothing
    /// is imported at all, that is the one problem.)
    pub(super) fn not_imported(&self, domain: &str) -> Option<CompileError> {
        if self.is_empty() || !self.reported.borrow_mut().insert(domain.to_owned()) {
            return None;
        }
        let shown = if domain == ONNX_DOMAIN { "ai.onnx" } else { domain };
        Some(error(format!("operator domain {} is not in opset_import", Quoted(shown))))
    }

    /// Domain → version.
    pub(super) fn into_versions(self) -> BTreeMap<String, i64> {
        self.versions
    }
}

fn check_version(domain: &str, version: i64) -> Result<(), CompileError> {
    let place = |e: CompileError| e.at("opset_import");
    if domain == ONNX_DOMAIN && version > MAX_ONNX_OPSET {
        let message = format!("opset {version} is newer than {MAX_ONNX_OPSET}, the newest that is understood");
        return Err(place(error(message)));
    }
    let lowest = i64::from(domain == ONNX_DOMAIN);
    if version < lowest {
        let shown = if domain == ONNX_DOMAIN { "ai.onnx" } else { domain };
        return Err(place(error(format!("version {version} of {} is not one there is", Quoted(shown)))));
    }
    Ok(())
}

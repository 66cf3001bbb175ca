//! Measured times of nodes, in the place of predicted ones: what `kilnc bench --per-op --json` says of a module that was
//! compiled before with the same options.
//!
//! In: node names and nanoseconds on the host. Out: the costs of calls, for streams and for placement. Nodes that were not
//! measured keep their prediction.

use crate::json;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Larger files are no measurements.
const MAX_BYTES: u64 = 64 << 20;

/// Measured times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Nanoseconds on one thread of the host, by node name.
    pub node_ns: BTreeMap<String, u64>,
}

impl Profile {
    /// Measured times from what `kilnc bench MODEL --per-op --json` printed, or the problem in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = "expected what `kilnc bench MODEL --per-op --json` prints, with \"ops\"";
        let json = json::parse(text)?;
        let Some(json::Json::List(ops)) = json.get("ops") else { return Err(expected.into()) };
        let mut profile = Self::default();
        for op in ops {
            let (node, ns) = (op.get("node"), op.get("median_ns").and_then(json::Json::as_u64));
            let (Some(json::Json::Text(node)), Some(ns)) = (node, ns) else { return Err(expected.into()) };
            let sum = profile.node_ns.entry(node.clone()).or_default();
            *sum = sum.saturating_add(ns);
        }
        if profile.node_ns.is_empty() { Err(expected.into()) } else { Ok(profile) }
    }

    /// The same from a file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let size = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
        if size > MAX_BYTES {
            return Err(format!("{size} bytes are too many for measured times"));
        }
        Self::parse(&std::fs::read_to_string(path).map_err(|e| e.to_string())?)
    }

    /// A short name for the numbers: equal for equal ones.
    pub fn digest(&self) -> String {
        let lines: Vec<String> = self.node_ns.iter().map(|(node, ns)| format!("{ns} {node}")).collect();
        crate::sha256(lines.join("\n").as_bytes())[..12].to_owned()
    }

    /// What a node took, if it was measured.
    pub fn of(&self, node: &str) -> Option<u64> {
        self.node_ns.get(node).copied()
    }

    /// What is to be said of times of which none is of these nodes: they change nothing.
    pub fn warning<'n>(&self, mut nodes: impl Iterator<Item = &'n str>) -> Option<&'static str> {
        let idle = !nodes.any(|node| self.node_ns.contains_key(node));
        idle.then_some("no node of the model has one of the measured times' names: they change nothing")
    }

    /// Puts measured times into predicted ones. `nodes` are the names that the calls belong to; a node's time is shared by its
    /// calls as their predictions are.
    pub fn put(&self, nodes: &[&str], predicted_ns: &mut [u64]) {
        let mut sums: HashMap<&str, (u128, u128)> = HashMap::new();
        for (node, ns) in nodes.iter().zip(&*predicted_ns) {
            let (sum, n) = sums.entry(node).or_default();
            (*sum, *n) = (*sum + u128::from(*ns), *n + 1);
        }
        for (node, ns) in nodes.iter().zip(predicted_ns) {
            let (Some(measured), Some(&(sum, n))) = (self.of(node), sums.get(node)) else { continue };
            // Calls that are all predicted to take no time share evenly.
            let (share, of) = if sum == 0 { (1, n) } else { (u128::from(*ns), sum) };
            *ns = u64::try_from(u128::from(measured) * share / of.max(1)).unwrap_or(u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let text =
            "{\"ops\": [{\"node\": \"a\", \"median_ns\": 5, \"op\": \"Conv\"}, {\"node\": \"a\", \"median_ns\": 2}]}";
        assert_eq!(Profile::parse(text).unwrap().of("a"), Some(7));
        for wrong in [
            "{}",
            "{\"ops\": []}",
            "{\"ops\": [{\"node\": \"a\"}]}",
            "[",
            "{\"ops\": [{\"node\": 1, \"median_ns\": 1}]}",
        ] {
            assert!(Profile::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Profile::read(Path::new("no such file")).is_err());
    }

    #[test]
    fn measured_times_are_shared_as_predictions_are() {
        let node_ns = BTreeMap::from([("a".to_owned(), 900), ("z".to_owned(), 10)]);
        let profile = Profile { node_ns };
        let mut ns = [10, 7, 20, 0, 0];
        profile.put(&["a", "b", "a", "z", "z"], &mut ns);
        assert_eq!(ns, [300, 7, 600, 5, 5]);
        assert_ne!(profile.digest(), Profile::default().digest());
        assert_eq!(profile.warning(["b", "z"].into_iter()), None);
        assert!(profile.warning(["b"].into_iter()).is_some());
    }
}

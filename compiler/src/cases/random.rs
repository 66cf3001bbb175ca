//! Outputs that hang on random numbers: which they are, and what they are compared by.
//!
//! In: a model with the inputs of one run. Out: for each output the law that its elements follow, if any random operator
//! reaches it. Another library's numbers cannot be met, so type and extents, the values that can occur, and means are
//! compared: within [`SIGMAS`] standard deviations of what the law says, or of what the expected sample says.

use super::{Tolerance, values};
use crate::ir::Tensor;
use crate::onnx::model::{Attribute, Model, Node, TensorData};
use std::collections::{HashMap, HashSet};

/// How many standard deviations a mean may be off.
const SIGMAS: f64 = 4.0;

/// What is known of a random output.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// Each element is 1 with this probability, else 0.
    Bernoulli(Vec<f64>),
    /// Each element is 0 with the probability `ratio`, else this value.
    Dropout {
        /// The values, scaled.
        kept: Vec<f64>,
        /// Probability of 0.
        ratio: f64,
    },
    /// Only a sample is known: the expected output.
    Sample,
}

/// The law of each output of the model; `None` for those that no random operator reaches.
pub fn laws(model: &Model, inputs: &[Tensor]) -> Vec<Option<Law>> {
    let values = Values::of(model, inputs);
    let mut reached: HashSet<&str> = HashSet::new();
    let mut laws: HashMap<&str, Law> = HashMap::new();
    for node in &model.graph.nodes {
        let operands = node.inputs.iter().any(|i| reached.contains(i.as_str()));
        let inside = node.subgraphs().any(|(_, g)| {
            let random = |n: &Node| values.is_random(n) || n.inputs.iter().any(|i| reached.contains(i.as_str()));
            g.nodes.iter().any(random) || g.outputs.iter().any(|o| reached.contains(o.name.as_str()))
        });
        let own = values.is_random(node);
        if !operands && !inside && !own {
            continue;
        }
        for (i, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            reached.insert(name);
            if own && let Some(law) = values.law(node, i) {
                laws.insert(name, law);
            }
        }
    }
    let outputs = model.graph.outputs.iter().map(|o| o.name.as_str());
    outputs.map(|name| reached.contains(name).then(|| laws.remove(name).unwrap_or(Law::Sample))).collect()
}

/// What is known of values before the run: inputs and constants.
struct Values<'a>(HashMap<&'a str, Tensor>);

impl<'a> Values<'a> {
    fn of(model: &'a Model, inputs: &[Tensor]) -> Self {
        let given = model.graph.inputs.iter().zip(inputs).map(|(i, t)| (i.name.as_str(), t.clone()));
        let read = |t: &crate::onnx::model::Tensor| match &t.data {
            TensorData::Bytes(data) => Tensor::new(t.dtype, t.dims.clone(), data.clone()),
            TensorData::Strings(_) => None,
        };
        let stored = model.graph.initializers.iter().filter_map(|(name, t)| Some((name.as_str(), read(t)?)));
        let constants = model.graph.nodes.iter().filter_map(|n| match n.attributes.get("value") {
            Some(Attribute::Tensor(t)) if n.op_type == "Constant" => Some((n.outputs.first()?.as_str(), read(t)?)),
            _ => None,
        });
        Self(given.chain(stored).chain(constants).collect())
    }

    fn get(&self, node: &Node, i: usize) -> Option<Vec<f64>> {
        values(self.0.get(node.input(i)?)?)
    }

    /// Whether the node draws random numbers in this run.
    fn is_random(&self, node: &Node) -> bool {
        let (domain, op) = (node.domain.as_str(), node.op_type.as_str());
        match op {
            "RandomNormal" | "RandomNormalLike" | "RandomUniform" | "RandomUniformLike" | "Bernoulli"
            | "Multinomial" => domain.is_empty(),
            "Dropout" => domain.is_empty() && self.drops(node),
            _ => false,
        }
    }

    /// Whether a Dropout is in training mode with a ratio that is not known to be 0.
    fn drops(&self, node: &Node) -> bool {
        // Before opset 12 no operand says so, and models for inference leave elements alone.
        let training = node.version >= 12
            && node.input(2).is_some()
            && self.get(node, 2).is_none_or(|mode| mode.first() != Some(&0.0));
        training && self.ratio(node) != Some(0.0)
    }

    fn ratio(&self, node: &Node) -> Option<f64> {
        if node.input(1).is_some() { self.get(node, 1)?.first().copied() } else { Some(0.5) }
    }

    /// The law of result `i` of a random node, as far as its operands are known.
    fn law(&self, node: &Node, i: usize) -> Option<Law> {
        match (node.op_type.as_str(), i) {
            ("Bernoulli", 0) => Some(Law::Bernoulli(self.get(node, 0)?)),
            ("Dropout", 0) => {
                let ratio = self.ratio(node)?;
                let kept = self.get(node, 0)?.into_iter().map(|x| x / (1.0 - ratio)).collect();
                Some(Law::Dropout { kept, ratio })
            }
            ("Dropout", 1) => {
                let n = self.0.get(node.input(0)?)?.numel();
                Some(Law::Bernoulli(vec![1.0 - self.ratio(node)?; n]))
            }
            _ => None,
        }
    }
}

/// Compares an output that follows a law; `want` is another library's sample of it.
pub fn compare(got: &Tensor, want: &Tensor, law: &Law, tolerance: Tolerance) -> Result<(), String> {
    if got.dtype() != want.dtype() || got.dims() != want.dims() {
        return Err(format!("{got:?}, expected {want:?}"));
    }
    let (Some(g), Some(w)) = (values(got), values(want)) else {
        return Err(format!("no numbers to compare in {got:?}"));
    };
    match law {
        Law::Bernoulli(p) if p.len() == g.len() => of_bernoulli(&g, p),
        Law::Dropout { kept, ratio } if kept.len() == g.len() => of_dropout(&g, kept, *ratio, tolerance),
        _ => like_sample(&g, &w, tolerance),
    }
}

/// A sum of independent elements against its expectation.
fn close(sum: f64, expected: f64, variance: f64, what: &str) -> Result<(), String> {
    let bound = SIGMAS * variance.sqrt() + 1e-6 * expected.abs();
    if (sum - expected).abs() <= bound {
        return Ok(());
    }
    Err(format!("{what} {sum}, expected {expected} ± {bound}"))
}

fn of_bernoulli(g: &[f64], p: &[f64]) -> Result<(), String> {
    let can_be = |(&g, &p): (&f64, &f64)| (g == 0.0 && p < 1.0) || (g == 1.0 && p > 0.0);
    if let Some(i) = g.iter().zip(p).position(|pair| !can_be(pair)) {
        return Err(format!("element {i} is {} with probability {}", g[i], p[i]));
    }
    close(g.iter().sum(), p.iter().sum(), p.iter().map(|p| p * (1.0 - p)).sum(), "ones:")
}

fn of_dropout(g: &[f64], kept: &[f64], ratio: f64, tolerance: Tolerance) -> Result<(), String> {
    let near = |g: f64, k: f64| g == k || (g - k).abs() <= tolerance.atol + tolerance.rtol * k.abs();
    if let Some(i) = g.iter().zip(kept).position(|(&g, &k)| g != 0.0 && !near(g, k)) {
        return Err(format!("element {i} is {}, neither 0 nor {}", g[i], kept[i]));
    }
    let n = kept.iter().filter(|k| **k != 0.0).count() as f64;
    let zeros = g.iter().zip(kept).filter(|(g, k)| **g == 0.0 && **k != 0.0).count() as f64;
    close(zeros, n * ratio, n * ratio * (1.0 - ratio), "zeros:")
}

fn like_sample(g: &[f64], w: &[f64], tolerance: Tolerance) -> Result<(), String> {
    let is_bit = |v: &f64| *v == 0.0 || *v == 1.0;
    if w.iter().all(is_bit) && !g.iter().all(is_bit) {
        return Err("values other than 0 and 1".into());
    }
    if let Some(i) = g.iter().zip(w).position(|(g, w)| g.is_finite() != w.is_finite()) {
        return Err(format!("element {i} is {}, expected {}", g[i], w[i]));
    }
    let n = g.len() as f64;
    let moments = |v: &[f64]| {
        let mean = v.iter().sum::<f64>() / n;
        (mean, v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0).max(1.0))
    };
    let ((g_mean, g_var), (w_mean, w_var)) = (moments(g), moments(w));
    let bound = SIGMAS * ((g_var + w_var) / n).sqrt() + tolerance.atol + tolerance.rtol * w_mean.abs();
    if g.is_empty() || (g_mean - w_mean).abs() <= bound {
        return Ok(());
    }
    Err(format!("the mean is {g_mean}, expected {w_mean} ± {bound}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::model::{Graph, ValueInfo};

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Node {
        let names = |v: &[&str]| v.iter().map(|s| (*s).to_owned()).collect();
        let mut node = Node::default();
        (node.op_type, node.version) = (op.into(), 22);
        (node.inputs, node.outputs) = (names(inputs), names(outputs));
        node
    }

    fn model(nodes: Vec<Node>, inputs: &[&str], outputs: &[&str]) -> Model {
        let infos =
            |v: &[&str]| v.iter().map(|s| ValueInfo { name: (*s).into(), ty: None, doc: String::new() }).collect();
        let graph = Graph { nodes, inputs: infos(inputs), outputs: infos(outputs), ..Graph::default() };
        Model {
            ir_version: 10,
            opsets: [(String::new(), 22)].into(),
            producer: Default::default(),
            domain: String::new(),
            model_version: 0,
            doc: String::new(),
            metadata: Default::default(),
            graph,
        }
    }

    fn bools(values: &[u8]) -> Tensor {
        Tensor::new(kiln_kernels::Dtype::Bool, vec![], values.to_vec().into()).unwrap()
    }

    #[test]
    fn laws_follow_the_graph() {
        let x = || Tensor::from_f32s(&[2], &[0.25, 1.0]);
        let nodes = vec![node("Bernoulli", &["x"], &["b"]), node("Neg", &["b"], &["n"]), node("Neg", &["x"], &["m"])];
        let m = model(nodes, &["x"], &["b", "n", "m"]);
        let found = laws(&m, &[x()]);
        assert_eq!(found, [Some(Law::Bernoulli(vec![0.25, 1.0])), Some(Law::Sample), None]);
        let m = model(vec![node("Dropout", &["x", "r", "t"], &["y", "mask"])], &["x", "r", "t"], &["y", "mask"]);
        let half = || Tensor::from_f32s(&[], &[0.5]);
        let found = laws(&m, &[x(), half(), bools(&[1])]);
        assert_eq!(found[0], Some(Law::Dropout { kept: vec![0.5, 2.0], ratio: 0.5 }));
        assert_eq!(found[1], Some(Law::Bernoulli(vec![0.5, 0.5])));
        // Not training, and nothing dropped.
        assert_eq!(laws(&m, &[x(), half(), bools(&[0])]), [None, None]);
        assert_eq!(laws(&m, &[x(), Tensor::from_f32s(&[], &[0.0]), bools(&[1])]), [None, None]);
    }

    #[test]
    fn what_does_not_follow_its_law_is_found() {
        let t = |v: &[f32]| Tensor::from_f32s(&[v.len()], v);
        let alternating: Vec<f32> = (0..400).map(|i| (i % 2) as f32).collect();
        let ones = vec![1.0; 400];
        let check = |g: &[f32], w: &[f32], law: &Law| compare(&t(g), &t(w), law, Tolerance::default()).is_ok();
        let fair = Law::Bernoulli(vec![0.5; 400]);
        assert!(check(&alternating, &ones, &fair));
        assert!(!check(&ones, &alternating, &fair));
        assert!(!check(&[0.5; 400], &ones, &fair));
        assert!(!check(&alternating[..399], &ones, &fair));
        assert!(!check(&[1.0, 0.0], &[0.0, 0.0], &Law::Bernoulli(vec![0.0, 0.5])));
        let dropout = Law::Dropout { kept: vec![1.0; 400], ratio: 0.5 };
        assert!(check(&alternating, &ones, &dropout));
        assert!(!check(&ones, &alternating, &dropout));
        assert!(!check(&[0.0, 3.0], &[0.0, 2.0], &Law::Dropout { kept: vec![2.0; 2], ratio: 0.5 }));
        assert!(check(&alternating, &alternating, &Law::Sample));
        assert!(!check(&ones, &alternating, &Law::Sample));
        assert!(!check(&[f32::NAN; 4], &[0.0; 4], &Law::Sample));
    }
}

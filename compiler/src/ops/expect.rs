//! `kiln.Expect`: a graph input that must have the value that the module was compiled for.
//!
//! The import makes it where a value at hand stands in for an operand that inference needs. The run fails on another one.

use super::view::Result;
use super::{InferCx, OpDef};
use crate::lower::LowerCx;
use kiln_kernels::{CheckEqual, Dtype};

pub(super) static OPS: &[OpDef] = &[OpDef::new("kiln", "Expect", &[1], infer, lower)];

fn infer(cx: &mut InferCx<'_>) -> Result<()> {
    cx.expect_same_dtype(1, 0)
}

fn lower(cx: &mut LowerCx<'_>) -> Result<()> {
    let (x, want) = (cx.x(0)?, cx.x(1)?);
    cx.call(&[Dtype::U8], CheckEqual { x, want })
}

#[cfg(test)]
mod tests {
    use crate::import::{DimBound, ImportOptions, import};
    use crate::onnx::model as onnx;
    use crate::{exec, lower, passes};
    use kiln_kernels::{Dtype, isa::Isa};

    /// `y = k` of a model in which `k` has the bounds that are given.
    fn run(dims: &[(&str, DimBound)], k: &[i64]) -> Result<Vec<i64>, String> {
        let info = |name: &str| onnx::ValueInfo {
            name: name.into(),
            ty: Some(onnx::Type::Tensor(Dtype::I64, Some(vec![onnx::Dim::Known(2)]))),
            doc: String::new(),
        };
        let node = onnx::Node {
            name: "n".into(),
            op_type: "Identity".into(),
            version: 17,
            inputs: vec!["k".into()],
            outputs: vec!["y".into()],
            ..onnx::Node::default()
        };
        let graph =
            onnx::Graph { nodes: vec![node], inputs: vec![info("k")], outputs: vec![info("y")], ..Default::default() };
        let model = onnx::Model::of(graph);
        let dims = dims.iter().map(|(n, b)| ((*n).to_owned(), *b)).collect();
        let mut graph = import(&model, &ImportOptions { dims, ..Default::default() }).map_err(|e| e.to_string())?;
        passes::simplify(&mut graph).map_err(|e| e.to_string())?;
        let lowered = lower::lower(&graph).map_err(|e| e.to_string())?;
        let bytes: Vec<u8> = k.iter().flat_map(|v| v.to_le_bytes()).collect();
        let outputs = exec::run_unplanned(&graph, &lowered, &[&bytes], Isa::Scalar).map_err(|e| e.to_string())?;
        Ok(outputs[0].to_ints().unwrap_or_default())
    }

    #[test]
    fn values_that_were_given_are_checked() {
        let (five, range) = (DimBound::Fixed(5), DimBound::Range(1, 9));
        for (first, second) in [(five, five), (five, range), (range, five)] {
            let dims = [("k[0]", first), ("k[1]", second)];
            assert_eq!(run(&dims, &[5, 5]), Ok(vec![5, 5]));
            let (a, b) = (run(&dims, &[6, 5]), run(&dims, &[5, 10]));
            assert_eq!(a.is_err(), first == five, "{dims:?}: {a:?}");
            assert!(b.is_err(), "{dims:?}: {b:?}");
        }
        let text = run(&[("k[0]", five), ("k[1]", five)], &[5, 9]).unwrap_err();
        assert!(text.contains("k as compiled for") && text.contains("not the one"), "{text}");
    }
}

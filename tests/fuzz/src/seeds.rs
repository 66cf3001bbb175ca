//! The corpus to begin with: a small model for each row of a table, one for each operator that has no row, a model with a
//! function and sparse and external constants, and the repository's own fixtures. Nothing is downloaded.

use bytes::Bytes;
use kiln_compiler::onnx::encode;
use kiln_compiler::onnx::proto::*;
use kiln_compiler::ops;
use std::collections::BTreeSet;

/// `OPERATOR[>RESULTS] | OPERANDS | ATTRIBUTES`, a domain before a colon. An operand: a type's letter and its extents (a
/// graph input), the same after `!` (a constant), `=` and integers (a constant of them; `=.` for one without axes), `-` for
/// none. Letters: f d h for floats of 32, 64, 16 bits, i n c u for integers of 64, 32, 8 bits and unsigned 8, b s.
const TABLE: &str = include_str!("seeds.txt");

/// Models below this size from the repository's fixtures become seeds.
const MAX_FIXTURE_BYTES: usize = 40_000;
const OPSET: i64 = 24;

fn code(letter: char) -> i32 {
    match letter {
        'd' => 11,
        'h' => 10,
        'i' => 7,
        'n' => 6,
        'c' => 3,
        'u' => 2,
        'b' => 9,
        's' => 8,
        _ => 1,
    }
}

fn numbers(text: &str) -> Vec<i64> {
    text.split(',').filter_map(|n| n.trim().parse().ok()).collect()
}

/// A constant: small numbers of every type.
fn constant(name: &str, data_type: i32, dims: &[i64]) -> TensorProto {
    let n = dims.iter().product::<i64>().clamp(0, 4096) as usize;
    let size = match data_type {
        7 | 11 => 8,
        6 | 1 => 4,
        10 => 2,
        _ => 1,
    };
    let mut t = TensorProto { name: name.to_owned(), data_type, dims: dims.to_vec(), ..TensorProto::default() };
    let value = |i: usize| (i * 7 % 5) as f32 * 0.5 + 0.25;
    match data_type {
        8 => t.string_data = (0..n).map(|i| Bytes::from(format!("s{}", i % 3))).collect(),
        1 => t.float_data = (0..n).map(value).collect(),
        11 => t.double_data = (0..n).map(|i| f64::from(value(i))).collect(),
        10 => t.raw_data = Some((0..n).flat_map(|i| (0x3800 + (i as u16 % 4) * 64).to_le_bytes()).collect()),
        _ => t.raw_data = Some((0..n * size).map(|i| u8::from(i % size == 0) * (i / size % 2) as u8).collect()),
    }
    t
}

fn ints(name: &str, text: &str) -> TensorProto {
    let scalar = text.starts_with('.');
    let values = numbers(text.trim_start_matches('.'));
    let dims = if scalar { vec![] } else { vec![values.len() as i64] };
    TensorProto { name: name.to_owned(), data_type: 7, dims, int64_data: values, ..TensorProto::default() }
}

/// A value's name and type; without extents it has any rank.
pub(crate) fn value(name: &str, elem_type: i32, dims: Option<&[i64]>) -> ValueInfoProto {
    let dim = |d: &i64| DimensionProto { value: Some(DimensionValue::DimValue(*d)), ..DimensionProto::default() };
    let shape = dims.map(|dims| TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let ty = TypeValue::Tensor(TensorTypeProto { elem_type, shape });
    let ty = TypeProto { value: Some(ty), ..TypeProto::default() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(ty), ..ValueInfoProto::default() }
}

fn attribute(text: &str) -> Option<AttributeProto> {
    let (name, v) = text.split_once('=')?;
    let mut a = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    let list = v.strip_prefix('[').and_then(|v| v.strip_suffix(']'));
    let quoted = |v: &str| v.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')).map(|v| Bytes::from(v.to_owned()));
    if let Some(list) = list {
        let parts: Vec<&str> = list.split(',').collect();
        if let Some(strings) = parts.iter().map(|p| quoted(p)).collect() {
            (a.r#type, a.strings) = (AttributeType::Strings as i32, strings);
        } else if let Some(ints) = parts.iter().map(|p| p.parse().ok()).collect() {
            (a.r#type, a.ints) = (AttributeType::Ints as i32, ints);
        } else {
            a.r#type = AttributeType::Floats as i32;
            a.floats = parts.iter().filter_map(|p| p.parse().ok()).collect();
        }
    } else if let Some(s) = quoted(v) {
        (a.r#type, a.s) = (AttributeType::String as i32, Some(s));
    } else if let Ok(i) = v.parse() {
        (a.r#type, a.i) = (AttributeType::Int as i32, Some(i));
    } else {
        (a.r#type, a.f) = (AttributeType::Float as i32, v.parse().ok());
    }
    Some(a)
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.to_owned(), version }
}

fn model(graph: GraphProto) -> ModelProto {
    let opset_import = vec![opset("", OPSET), opset("ai.onnx.ml", 4), opset("com.microsoft", 1)];
    ModelProto { ir_version: 11, opset_import, graph: Some(graph), ..ModelProto::default() }
}

/// The model of a row.
fn row(line: &str) -> (String, ModelProto) {
    let mut parts = line.split('|').map(str::trim);
    let head = parts.next().unwrap_or_default();
    let (head, n_results) = head.split_once('>').map_or((head, 1), |(h, n)| (h, n.parse().unwrap_or(1)));
    let (domain, op) = head.split_once(':').unwrap_or(("", head));
    let domain = match domain {
        "ms" => "com.microsoft",
        "ml" => "ai.onnx.ml",
        other => other,
    };
    let mut graph = GraphProto { name: "seed".to_owned(), ..GraphProto::default() };
    let mut node = NodeProto {
        op_type: op.to_owned(),
        name: "node".to_owned(),
        domain: domain.to_owned(),
        ..NodeProto::default()
    };
    for (i, operand) in parts.next().unwrap_or_default().split_whitespace().enumerate() {
        let name = format!("x{i}");
        let letter = operand.trim_start_matches('!').chars().next().unwrap_or('f');
        let dims = numbers(operand.trim_start_matches('!').trim_start_matches(letter));
        match operand.chars().next() {
            Some('-') => {
                node.input.push(String::new());
                continue;
            }
            Some('=') => graph.initializer.push(ints(&name, &operand[1..])),
            Some('!') => graph.initializer.push(constant(&name, code(letter), &dims)),
            _ => graph.input.push(value(&name, code(letter), Some(&dims))),
        }
        node.input.push(name);
    }
    node.attribute = parts.next().unwrap_or_default().split_whitespace().filter_map(attribute).collect();
    node.output = (0..n_results).map(|i| format!("y{i}")).collect();
    graph.output =
        node.output.iter().map(|y| ValueInfoProto { name: y.clone(), ..ValueInfoProto::default() }).collect();
    graph.node.push(node);
    (op.to_owned(), model(graph))
}

/// A function called twice, a sparse and an external constant, a free extent.
fn pieces() -> ModelProto {
    let named = |op: &str, inputs: &[&str], output: &str, domain: &str| NodeProto {
        op_type: op.to_owned(),
        domain: domain.to_owned(),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    };
    let mut x = value("x", 1, Some(&[2, 3]));
    if let Some(TypeProto { value: Some(TypeValue::Tensor(t)), .. }) = &mut x.r#type {
        t.shape.as_mut().expect("set above").dim[0].value = Some(DimensionValue::DimParam("n".to_owned()));
    }
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.to_owned(), value: value.to_owned() };
    let outside = TensorProto {
        raw_data: None,
        float_data: vec![],
        data_location: EXTERNAL,
        external_data: vec![entry("location", "data"), entry("offset", "64"), entry("length", "12")],
        ..constant("outside", 1, &[3])
    };
    let sparse =
        SparseTensorProto { values: Some(constant("sparse", 1, &[2])), indices: Some(ints("", "0,2")), dims: vec![3] };
    let graph = GraphProto {
        name: "pieces".to_owned(),
        input: vec![x],
        output: vec![ValueInfoProto { name: "y".to_owned(), ..ValueInfoProto::default() }],
        initializer: vec![outside],
        sparse_initializer: vec![sparse],
        node: vec![
            named("twice", &["x"], "a", "own"),
            named("twice", &["a"], "b", "own"),
            named("Add", &["b", "outside"], "c", ""),
            named("Mul", &["c", "sparse"], "y", ""),
        ],
        ..GraphProto::default()
    };
    let function = FunctionProto {
        name: "twice".to_owned(),
        domain: "own".to_owned(),
        input: vec!["v".to_owned()],
        output: vec!["w".to_owned()],
        node: vec![named("Add", &["v", "v"], "w", "")],
        opset_import: vec![opset("", OPSET)],
        ..FunctionProto::default()
    };
    let mut model = model(graph);
    model.opset_import.push(opset("own", 1));
    model.functions.push(function);
    model
}

/// Every seed: a file name and its bytes.
pub fn all() -> Vec<(String, Vec<u8>)> {
    let lines = TABLE.lines().filter(|l| !l.trim().is_empty());
    let mut seen = BTreeSet::new();
    let mut out = Vec::new();
    for (i, line) in lines.enumerate() {
        let (op, model) = row(line);
        out.push((format!("{i:03}_{op}"), encode(&model)));
        seen.insert(op);
    }
    for op in ops::all().into_iter().filter(|op| op.domain != "kiln" && !seen.contains(op.name)) {
        let (_, model) = row(&format!("{}:{} | f2,4 f4,4 f4", op.domain, op.name));
        out.push((format!("any_{}", op.name), encode(&model)));
    }
    out.push(("pieces".to_owned(), encode(&pieces())));
    let fixtures = std::fs::read_dir(kiln_fixtures::folder()).into_iter().flatten().filter_map(Result::ok);
    for folder in fixtures {
        let bytes = std::fs::read(folder.path().join("model.onnx")).unwrap_or_default();
        if (1..MAX_FIXTURE_BYTES).contains(&bytes.len()) {
            out.push((format!("fixture_{}", folder.file_name().display()), bytes));
        }
    }
    out.sort();
    out
}

/// Writes the seeds to the folder that `KILN_FUZZ_SEEDS` names, if it names one.
pub fn write() -> std::io::Result<()> {
    let Some(folder) = std::env::var_os("KILN_FUZZ_SEEDS").map(std::path::PathBuf::from) else { return Ok(()) };
    std::fs::create_dir_all(&folder)?;
    all().iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_compiler::{Options, compile, onnx};

    /// A seed that is refused teaches the fuzzer little: each row of the table compiles, or is marked here.
    #[test]
    fn rows_compile() {
        let mut refused = Vec::new();
        for line in TABLE.lines().filter(|l| !l.trim().is_empty()) {
            let decoded = onnx::decode(encode(&row(line).1), None);
            if let Err(e) = decoded.and_then(|d| compile(&d, &Options::default())) {
                refused.push(format!("{line}\n    {e}"));
            }
        }
        assert!(refused.is_empty(), "{} rows:\n{}", refused.len(), refused.join("\n"));
    }
}

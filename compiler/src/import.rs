//! From the decoded model to the typed graph: names become ids, extents become dimensions.
//!
//! In: a decoded, structurally checked model and what the user said about dynamic sizes. Out: a graph whose inputs and
//! constants are typed; inference does the rest. Free extents are named after their symbol in the model, or
//! `INPUT.AXIS` where the model gives none.

use crate::error::{CompileError, CompileErrors, Quoted, Stage};
use crate::ir::{
    Attr, Dim, Elements, Graph, Node, SequenceType, Symbol, SymbolSource, Tensor, TensorType, Type, Value, ValueId,
    bounded_extent,
};
use crate::onnx::model as onnx;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What the user says of one free extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DimBound {
    /// It always has this value.
    Fixed(i64),
    /// It lies in this range.
    Range(i64, i64),
}

/// What shapes the import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Free extents by name.
    pub dims: BTreeMap<String, DimBound>,
    /// Extents of inputs at hand, by input index: they fix what is free.
    pub input_dims: BTreeMap<usize, Vec<usize>>,
    /// Types of inputs at hand that are no tensors, by input index: they fix what is free.
    pub input_types: BTreeMap<usize, Type>,
    /// Values at hand of inputs, by input index: the module takes no others (a run on another value fails).
    pub input_values: BTreeMap<usize, Tensor>,
    /// Inputs that are baked in as constants, by input index: they are no inputs of the module.
    pub input_constants: BTreeMap<usize, Tensor>,
}

/// Builds the graph.
pub fn import(model: &onnx::Model, options: &ImportOptions) -> Result<Graph, CompileErrors> {
    let mut errors = CompileErrors::default();
    let mut graph = Graph { name: model.graph.name.clone(), ..Graph::default() };
    let mut scope = HashMap::new();
    // One symbol name is one extent, wherever it stands.
    let mut known: BTreeMap<String, Dim> = BTreeMap::new();
    for (i, info) in model.graph.inputs.iter().enumerate() {
        if let Some(t) = options.input_constants.get(&i) {
            let id = graph.add_constant(info.name.clone(), t.clone());
            scope.insert(info.name.clone(), id);
            continue;
        }
        match input_type((i, graph.inputs.len()), info, options, &mut known) {
            Ok(ty) => {
                let value = Value { name: info.name.clone(), ty: Some(ty), ..Value::default() };
                let mut id = graph.add_value(value);
                graph.inputs.push(id);
                if let Some(t) = options.input_values.get(&i) {
                    id = expect_value(&mut graph, id, &info.name, t);
                }
                scope.insert(info.name.clone(), id);
            }
            Err(e) => errors.push(e.at(format!("graph input \"{}\"", info.name))),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    fill(&mut graph, &model.graph, &mut scope, None, &mut errors);
    errors.or_ok(graph)
}

/// Reads a constant in an input's stead, after a check that the input is that constant.
fn expect_value(graph: &mut Graph, input: ValueId, name: &str, t: &Tensor) -> ValueId {
    let constant = graph.add_constant(name, t.clone());
    graph.nodes.push(Node {
        name: format!("{name} as compiled for"),
        domain: "kiln".into(),
        op: "Expect".into(),
        version: 1,
        attrs: BTreeMap::new(),
        inputs: vec![Some(input), Some(constant)],
        outputs: Vec::new(),
        bodies: BTreeMap::new(),
    });
    constant
}

/// Refuses sizes for dimensions that the model does not have: a misspelt name.
pub fn check_dims(model: &onnx::Model, options: &ImportOptions) -> Result<(), CompileErrors> {
    let mut free = std::collections::BTreeSet::new();
    for info in &model.graph.inputs {
        let mut ty = info.ty.as_ref();
        while let Some(onnx::Type::Sequence(inner) | onnx::Type::Optional(inner)) = ty {
            ty = Some(inner);
        }
        let Some(onnx::Type::Tensor(_, Some(dims))) = ty else { continue };
        for (axis, dim) in dims.iter().enumerate() {
            match dim {
                onnx::Dim::Known(_) => {}
                onnx::Dim::Symbol(name) => drop(free.insert(name.clone())),
                onnx::Dim::Unknown => drop(free.insert(format!("{}.{axis}", info.name))),
            }
        }
    }
    let list = || match free.is_empty() {
        true => "all sizes of its inputs are fixed".to_owned(),
        false => format!("it has {}", free.iter().map(|n| Quoted(n).to_string()).collect::<Vec<_>>().join(", ")),
    };
    let mut errors = CompileErrors::default();
    for name in options.dims.keys().filter(|name| !free.contains(*name)) {
        let message = format!("the model has no free dimension of this name: {}", list());
        errors.push(import_error(message).at(format!("dim \"{name}\"")));
    }
    errors.or_ok(())
}

fn import_error(message: impl Into<String>) -> CompileError {
    CompileError::new(Stage::Import, message)
}

/// `at`: the input's index in the model, and among the inputs that remain.
fn input_type(
    at: (usize, usize),
    info: &onnx::ValueInfo,
    options: &ImportOptions,
    known: &mut BTreeMap<String, Dim>,
) -> Result<Type, CompileError> {
    let ty = info.ty.as_ref().ok_or_else(|| import_error("has no type"))?;
    let onnx::Type::Tensor(dtype, dims) = ty else {
        if let Some(given) = options.input_types.get(&at.0) {
            return Ok(given.clone());
        }
        let object = object_type(ty, &options.dims);
        return object.ok_or_else(|| import_error(format!("{ty} is not supported as an input")));
    };
    let given = options.input_dims.get(&at.0);
    let Some(dims) = dims else {
        let given =
            given.ok_or_else(|| import_error("its rank is not known: give an input of the size to compile for"))?;
        return Ok(TensorType::fixed(*dtype, given).into());
    };
    if let Some(g) = given
        && g.len() != dims.len()
    {
        return Err(CompileError::new(Stage::Read, format!("expected {ty}, the input at hand has shape {g:?}")));
    }
    let mut shape = Vec::with_capacity(dims.len());
    for (axis, dim) in dims.iter().enumerate() {
        let here = given.map(|g| g[axis]);
        let name = match dim {
            onnx::Dim::Known(n) => {
                if here.is_some_and(|h| h != *n) {
                    let found = given.map_or(&[][..], Vec::as_slice);
                    return Err(CompileError::new(
                        Stage::Read,
                        format!("expected {ty}, the input at hand has shape {found:?}"),
                    ));
                }
                shape.push(Dim::from(*n));
                continue;
            }
            // Some exporters write "?" for every extent they do not know: that names nothing.
            onnx::Dim::Symbol(name) if name.chars().any(char::is_alphanumeric) => name.clone(),
            onnx::Dim::Symbol(_) | onnx::Dim::Unknown => format!("{}.{axis}", info.name),
        };
        if let Some(d) = known.get(&name) {
            if let (Some(h), Some(k)) = (here, d.as_const())
                && i64::try_from(h) != Ok(k)
            {
                return Err(import_error(format!("extent \"{name}\" is {k} elsewhere, the input at hand has {h}")));
            }
            shape.push(d.clone());
            continue;
        }
        let source = SymbolSource::Input { input_idx: at.1, axis };
        let d = match (options.dims.get(&name), here) {
            (Some(DimBound::Fixed(n)), _) => Dim::Const(*n),
            (Some(DimBound::Range(min, max)), _) => {
                Dim::symbol(Symbol { name: name.clone(), min: *min, max: Some(*max), source })
            }
            (None, Some(h)) => Dim::from(h),
            (None, None) => {
                return Err(import_error(format!(
                    "extent \"{name}\" (axis {axis}) is free: give it a value or a bound, as in --dim {name}=N or --dim {name}=1..N"
                )));
            }
        };
        known.insert(name, d.clone());
        shape.push(d);
    }
    let ty = TensorType::new(*dtype, shape);
    if ty.bytes().upper().is_none_or(|b| b > crate::ir::MAX_TENSOR_BYTES) {
        return Err(import_error(format!("{ty} is larger than a static plan accepts")));
    }
    Ok(ty.into())
}

/// The type of a sequence or an optional value; free extents are bounded by what the user says of their names.
fn object_type(ty: &onnx::Type, bounds: &BTreeMap<String, DimBound>) -> Option<Type> {
    let extent = |d: &onnx::Dim| match d {
        onnx::Dim::Known(n) => Dim::from(*n),
        onnx::Dim::Symbol(name) => match bounds.get(name) {
            Some(DimBound::Fixed(n)) => Dim::Const(*n),
            Some(DimBound::Range(min, max)) => bounded_extent(*min, Some(*max)),
            None => bounded_extent(0, None),
        },
        onnx::Dim::Unknown => bounded_extent(0, None),
    };
    match ty {
        onnx::Type::Tensor(dtype, Some(dims)) => {
            Some(TensorType::new(*dtype, dims.iter().map(extent).collect()).into())
        }
        onnx::Type::Sequence(t) => {
            let onnx::Type::Tensor(dtype, dims) = t.as_ref() else { return None };
            let elements = match dims {
                // A type without extents says scalars, or nothing: exporters write it for both.
                Some(dims) if !dims.is_empty() => Elements::Ranked(dims.iter().map(extent).collect()),
                _ => Elements::Any,
            };
            Some(Type::Sequence(SequenceType { dtype: *dtype, elements, most: None }))
        }
        onnx::Type::Optional(t) => Some(Type::Optional(Box::new(object_type(t, bounds)?))),
        _ => None,
    }
}

/// The type as far as it is known without inference.
pub fn convert_type(ty: &onnx::Type) -> Option<Type> {
    match ty {
        onnx::Type::Tensor(dtype, Some(dims)) => {
            let shape = dims
                .iter()
                .map(|d| match d {
                    onnx::Dim::Known(n) => Some(Dim::from(*n)),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>()?;
            Some(TensorType::new(*dtype, shape).into())
        }
        onnx::Type::Sequence(_) | onnx::Type::Optional(_) => object_type(ty, &BTreeMap::new()),
        _ => None,
    }
}

/// A decoded tensor as a constant.
pub fn convert_tensor(t: &onnx::Tensor) -> Result<Tensor, CompileError> {
    if let onnx::TensorData::Strings(all) = &t.data {
        let texts = all.iter().map(|s| std::str::from_utf8(s).ok()).collect::<Option<Vec<_>>>();
        let texts = texts.ok_or_else(|| import_error("a string is not UTF-8"))?;
        return Tensor::from_strings(&t.dims, &texts).ok_or_else(|| import_error("strings and dims do not agree"));
    }
    let data = t.bytes().ok_or_else(|| import_error("data and dims do not agree"))?;
    Tensor::new(t.dtype, t.dims.clone(), data.clone()).ok_or_else(|| import_error("data and dims do not agree"))
}

struct Outer<'a> {
    graph: &'a mut Graph,
    scope: &'a HashMap<String, ValueId>,
}

/// Adds a decoded graph's constants, nodes and outputs.
fn fill(
    graph: &mut Graph,
    source: &onnx::Graph,
    scope: &mut HashMap<String, ValueId>,
    mut outer: Option<&mut Outer<'_>>,
    errors: &mut CompileErrors,
) {
    for (name, t) in &source.initializers {
        match convert_tensor(t) {
            Ok(t) => {
                let id = graph.add_constant(name.clone(), t);
                scope.insert(name.clone(), id);
            }
            Err(e) => errors.push(e.at(format!("initializer \"{name}\""))),
        }
    }
    // Element types that the file declares are checked against the inferred ones.
    let declared: HashMap<&str, &onnx::Type> = source
        .value_infos
        .iter()
        .chain(&source.outputs)
        .filter_map(|v| v.ty.as_ref().map(|t| (v.name.as_str(), t)))
        .collect();
    for n in &source.nodes {
        match node(graph, n, scope, outer.as_deref_mut(), &declared, errors) {
            Ok(n) => graph.nodes.push(n),
            Err(e) => errors.push(e.at_node(n.label(), &n.op_type)),
        }
    }
    for o in &source.outputs {
        match resolve(graph, &o.name, scope, outer.as_deref_mut()) {
            Some(id) => graph.outputs.push((o.name.clone(), id)),
            None => errors.push(import_error("nothing makes it").at(format!("graph output \"{}\"", o.name))),
        }
    }
}

/// The value behind a name; one of an enclosing graph becomes a capture.
fn resolve(
    graph: &mut Graph,
    name: &str,
    scope: &mut HashMap<String, ValueId>,
    outer: Option<&mut Outer<'_>>,
) -> Option<ValueId> {
    if let Some(id) = scope.get(name) {
        return Some(*id);
    }
    let outer = outer?;
    let outer_id = *outer.scope.get(name)?;
    let value = outer.graph.value(outer_id).clone();
    let id = graph.add_value(value);
    graph.captures.push((outer_id, id));
    scope.insert(name.to_owned(), id);
    Some(id)
}

fn node(
    graph: &mut Graph,
    n: &onnx::Node,
    scope: &mut HashMap<String, ValueId>,
    mut outer: Option<&mut Outer<'_>>,
    declared: &HashMap<&str, &onnx::Type>,
    errors: &mut CompileErrors,
) -> Result<Node, CompileError> {
    let mut inputs = Vec::with_capacity(n.inputs.len());
    for name in &n.inputs {
        inputs.push(if name.is_empty() {
            None
        } else {
            let id = resolve(graph, name, scope, outer.as_deref_mut());
            Some(id.ok_or_else(|| import_error(format!("nothing makes \"{name}\"")))?)
        });
    }
    let mut attrs = BTreeMap::new();
    let mut bodies = BTreeMap::new();
    for (name, a) in &n.attributes {
        if let onnx::Attribute::Graph(body) = a {
            bodies.insert(name.clone(), Box::new(subgraph(graph, body, scope, outer.as_deref_mut(), errors)));
        } else {
            attrs.insert(name.clone(), attribute(a).map_err(|e| e.at_attribute(name))?);
        }
    }
    let mut outputs = Vec::with_capacity(n.outputs.len());
    for name in &n.outputs {
        outputs.push(if name.is_empty() {
            None
        } else {
            let ty = declared.get(name.as_str()).and_then(|t| hint(t));
            let id = graph.add_value(Value { name: name.clone(), ty, ..Value::default() });
            scope.insert(name.clone(), id);
            Some(id)
        });
    }
    Ok(Node {
        name: n.label().to_owned(),
        domain: n.domain.clone(),
        op: n.op_type.clone(),
        version: n.version,
        attrs,
        inputs,
        outputs,
        bodies,
    })
}

/// A declared type is a hint: kept only where the whole is known.
fn hint(ty: &onnx::Type) -> Option<Type> {
    convert_type(ty)
}

fn subgraph(
    graph: &mut Graph,
    source: &onnx::Graph,
    scope: &mut HashMap<String, ValueId>,
    outer: Option<&mut Outer<'_>>,
    errors: &mut CompileErrors,
) -> Graph {
    // Names of graphs further out become captures of this graph first, so that each body captures from its parent only.
    let mut wanted = Vec::new();
    free_names(source, &mut wanted);
    if let Some(outer) = outer {
        for name in &wanted {
            let _ = resolve(graph, name, scope, Some(outer));
        }
    }
    let mut body = Graph { name: source.name.clone(), ..Graph::default() };
    let mut inner_scope = HashMap::new();
    for info in &source.inputs {
        let ty = info.ty.as_ref().and_then(convert_type);
        let id = body.add_value(Value { name: info.name.clone(), ty, ..Value::default() });
        body.inputs.push(id);
        inner_scope.insert(info.name.clone(), id);
    }
    let mut here = Outer { graph, scope };
    fill(&mut body, source, &mut inner_scope, Some(&mut here), errors);
    body
}

/// Names that a graph reads and does not make, its own subgraphs' included.
fn free_names(source: &onnx::Graph, out: &mut Vec<String>) {
    let mut made: std::collections::HashSet<&str> = source.inputs.iter().map(|i| i.name.as_str()).collect();
    made.extend(source.initializers.iter().map(|(n, _)| n.as_str()));
    made.extend(source.nodes.iter().flat_map(|n| n.outputs.iter().map(String::as_str)));
    let mut names: Vec<String> = source.nodes.iter().flat_map(|n| n.inputs.iter().cloned()).collect();
    names.extend(source.outputs.iter().map(|o| o.name.clone()));
    for n in &source.nodes {
        for (_, g) in n.subgraphs() {
            free_names(g, &mut names);
        }
    }
    out.extend(names.into_iter().filter(|n| !n.is_empty() && !made.contains(n.as_str())));
}

fn attribute(a: &onnx::Attribute) -> Result<Attr, CompileError> {
    Ok(match a {
        onnx::Attribute::Float(v) => Attr::Float(*v),
        onnx::Attribute::Int(v) => Attr::Int(*v),
        onnx::Attribute::Str(v) => Attr::Str(v.to_vec()),
        onnx::Attribute::Tensor(t) | onnx::Attribute::SparseTensor(t) => Attr::Tensor(Arc::new(convert_tensor(t)?)),
        onnx::Attribute::Floats(v) => Attr::Floats(v.clone()),
        onnx::Attribute::Ints(v) => Attr::Ints(v.clone()),
        onnx::Attribute::Strings(v) => Attr::Strs(v.iter().map(|s| s.to_vec()).collect()),
        onnx::Attribute::Tensors(v) => {
            Attr::Tensors(v.iter().map(|t| convert_tensor(t).map(Arc::new)).collect::<Result<_, _>>()?)
        }
        onnx::Attribute::Type(t) => {
            Attr::Type(convert_type(t).ok_or_else(|| import_error(format!("type {t} is not supported")))?)
        }
        other => return Err(import_error(format!("attributes of kind {} are not supported", other.kind()))),
    })
}

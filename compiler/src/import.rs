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
use crate::ops::read_ints::{self, element_name};
use kiln_kernels::Dtype;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// Free extents by name, and values of inputs that give sizes by [`element_name`].
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
                } else {
                    match value_bounds(&graph, id, options) {
                        Ok(Some(bounds)) => match only_value(&graph, id, &bounds) {
                            Some(t) => id = expect_value(&mut graph, id, &info.name, &t),
                            None => id = read_values(&mut graph, id, &bounds),
                        },
                        Ok(None) => {}
                        Err(e) => errors.push(e.at(format!("graph input \"{}\"", info.name))),
                    }
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
    bound_results(&mut graph, &model.graph, options);
    for (name, bounds) in made_bounds(&graph, options) {
        if let Err(e) = read_made(&mut graph, &name, bounds) {
            errors.push(e.at(format!("dim \"{name}[…]\"")));
        }
    }
    errors.or_ok(graph)
}

/// The name of a free extent of an input in [`ImportOptions::dims`].
pub fn extent_name(input: &str, axis: usize, dim: &onnx::Dim) -> Option<String> {
    match dim {
        onnx::Dim::Known(_) => None,
        // Some exporters write "?" for every extent they do not know: that names nothing.
        onnx::Dim::Symbol(name) if name.chars().any(char::is_alphanumeric) => Some(name.clone()),
        onnx::Dim::Symbol(_) | onnx::Dim::Unknown => Some(format!("{input}.{axis}")),
    }
}

/// What [`element_name`] has put together.
fn element(name: &str) -> Option<(&str, usize)> {
    let (value, i) = name.strip_suffix(']')?.rsplit_once('[')?;
    Some((value, i.parse().ok()?))
}

/// Inputs with more elements give no sizes.
const MAX_VALUES: usize = 64;

/// The bounds that the user gives the elements of a graph input, if any.
fn value_bounds(
    graph: &Graph,
    input: ValueId,
    options: &ImportOptions,
) -> Result<Option<Vec<(i64, i64)>>, CompileError> {
    let name = &graph.value(input).name;
    if !options.dims.keys().any(|d| d.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('['))) {
        return Ok(None);
    }
    let ty = graph.tensor_type(input)?;
    let numel = ty.numel().as_const().and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= MAX_VALUES);
    let (Some(n), true, 0..=1) = (numel, matches!(ty.dtype, Dtype::I64 | Dtype::I32), ty.rank()) else {
        return Err(import_error(format!("{ty} is no vector of few integers: its elements cannot be bounded")));
    };
    let bounds = (0..n).map(|i| {
        let name = element_name(name, i);
        match options.dims.get(&name) {
            Some(DimBound::Fixed(v)) => Ok((*v, *v)),
            Some(DimBound::Range(a, b)) => Ok((*a, *b)),
            None => Err(import_error(format!("\"{name}\" needs bounds as well, as in --dim '{name}=1..N'"))),
        }
    });
    bounds.collect::<Result<Vec<_>, _>>().map(Some)
}

/// A value of few integers whose elements each have one value.
fn only_value(graph: &Graph, v: ValueId, bounds: &[(i64, i64)]) -> Option<Tensor> {
    if bounds.iter().any(|(a, b)| a != b) {
        return None;
    }
    let ty = graph.tensor_type(v).ok()?;
    let dims = vec![bounds.len(); ty.rank()];
    let ints = bounds.iter().map(|b| b.0);
    match ty.dtype {
        Dtype::I64 => Some(Tensor::from_i64s(&dims, &ints.collect::<Vec<_>>())),
        Dtype::I32 => Some(Tensor::from_i32s(&dims, &ints.map(|v| i32::try_from(v).ok()).collect::<Option<Vec<_>>>()?)),
        _ => None,
    }
}

/// Ranges are as long as their operands say in the run: the bounds that the user gives their lengths become their declared types.
fn bound_results(graph: &mut Graph, source: &onnx::Graph, options: &ImportOptions) {
    let made: Vec<ValueId> = graph.nodes.iter().filter(|n| n.is("Range")).filter_map(|n| n.output(0)).collect();
    for v in made {
        let name = graph.value(v).name.clone();
        let info = source.value_infos.iter().chain(&source.outputs).find(|i| i.name == name);
        let Some(onnx::Type::Tensor(dtype, dims)) = info.and_then(|i| i.ty.as_ref()) else { continue };
        let extent = match dims.as_deref() {
            None => Some(format!("{name}.0")),
            Some([d]) => extent_name(&name, 0, d),
            Some(_) => None,
        };
        let own = format!("{name}.0");
        let bound = extent.and_then(|e| options.dims.get(&e).or_else(|| options.dims.get(&own)));
        if let Some(DimBound::Range(min, max)) = bound {
            graph.value_mut(v).ty = Some(TensorType::new(*dtype, vec![bounded_extent(*min, Some(*max))]).into());
        }
    }
}

/// The bounds that the user gives the elements of what nodes make, by the values' names.
fn made_bounds(graph: &Graph, options: &ImportOptions) -> BTreeMap<String, BTreeMap<usize, (i64, i64)>> {
    let mut out: BTreeMap<String, BTreeMap<usize, (i64, i64)>> = BTreeMap::new();
    for (name, bound) in &options.dims {
        let Some((value, i)) = element(name) else { continue };
        if graph.inputs.iter().any(|v| graph.value(*v).name == value) {
            continue;
        }
        let range = match bound {
            DimBound::Fixed(v) => (*v, *v),
            DimBound::Range(a, b) => (*a, *b),
        };
        out.entry(value.to_owned()).or_default().insert(i, range);
    }
    out
}

/// Reads the elements of a value that a node makes into symbols, for all that follows.
fn read_made(graph: &mut Graph, name: &str, bounds: BTreeMap<usize, (i64, i64)>) -> Result<(), CompileError> {
    let is_it = |graph: &Graph, v: &ValueId| graph.value(*v).name == name;
    let makers = graph.nodes.iter().enumerate();
    let mut found = makers.flat_map(|(at, n)| n.outputs.iter().flatten().map(move |v| (at, *v)));
    let (at, made) = found.find(|(_, v)| is_it(graph, v)).ok_or_else(|| import_error("no node makes it"))?;
    if bounds.len() > MAX_VALUES || bounds.keys().enumerate().any(|(i, k)| i != *k) {
        let message = format!("each of its elements, at most {MAX_VALUES}, needs bounds, as in --dim '{name}[0]=1..N'");
        return Err(import_error(message));
    }
    let bounds: Vec<(i64, i64)> = bounds.into_values().collect();
    let value = graph.value(made).clone();
    let read = graph.add_value(value);
    graph.substitute(&BTreeMap::from([(made, read)]));
    let slot = graph.nodes.iter().map(read_ints::slots_end).max().unwrap_or(0);
    // What makes it still does.
    graph.nodes.insert(at + 1, read_ints::promised(&format!("{name} read"), [made, read], &bounds, slot));
    Ok(())
}

/// Reads the elements of a graph input into symbols.
fn read_values(graph: &mut Graph, input: ValueId, bounds: &[(i64, i64)]) -> ValueId {
    let slot = graph.nodes.iter().map(read_ints::slots_end).max().unwrap_or(0);
    let value = graph.value(input).clone();
    let name = format!("{} read", value.name);
    let read = graph.add_value(value);
    graph.nodes.push(read_ints::promised(&name, [input, read], bounds, slot));
    read
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

/// The innermost type of an input that is a sequence or an optional value.
fn innermost(mut ty: Option<&onnx::Type>) -> Option<&onnx::Type> {
    while let Some(onnx::Type::Sequence(inner) | onnx::Type::Optional(inner)) = ty {
        ty = Some(inner);
    }
    ty
}

/// The names of the free extents of the model's inputs.
pub fn free_dims(model: &onnx::Model) -> BTreeSet<String> {
    let mut free = BTreeSet::new();
    for info in &model.graph.inputs {
        let Some(onnx::Type::Tensor(_, Some(dims))) = innermost(info.ty.as_ref()) else { continue };
        free.extend(dims.iter().enumerate().filter_map(|(axis, dim)| extent_name(&info.name, axis, dim)));
    }
    free
}

/// Refuses sizes for dimensions that the model does not have: a misspelt name.
pub fn check_dims(model: &onnx::Model, options: &ImportOptions) -> Result<(), CompileErrors> {
    let free = free_dims(model);
    let mut elements = Vec::new();
    for info in &model.graph.inputs {
        if let Some(onnx::Type::Tensor(Dtype::I64 | Dtype::I32, Some(dims))) = &info.ty
            && dims.len() <= 1
        {
            elements.push(format!("{}[", info.name));
        }
    }
    elements.extend(model.graph.nodes.iter().flat_map(|n| &n.outputs).map(|name| format!("{name}[")));
    let list = || match free.is_empty() {
        true => "all sizes of its inputs are fixed".to_owned(),
        false => format!("it has {}", free.iter().map(|n| Quoted(n).to_string()).collect::<Vec<_>>().join(", ")),
    };
    let mut errors = CompileErrors::default();
    let ranges = model.graph.nodes.iter().filter(|n| n.op_type == "Range").flat_map(|n| &n.outputs);
    let lengths: Vec<String> = ranges.map(|name| format!("{name}.0")).collect();
    let declared = model.graph.outputs.iter().chain(&model.graph.value_infos);
    let named = declared.filter(|i| lengths.contains(&format!("{}.0", i.name)));
    let named = named.filter_map(|i| match &i.ty {
        Some(onnx::Type::Tensor(_, Some(dims))) => extent_name(&i.name, 0, dims.first()?),
        _ => None,
    });
    let lengths: Vec<String> = named.chain(lengths.iter().cloned()).collect();
    for (name, _) in options.dims.iter().filter(|(name, _)| !free.contains(*name)) {
        let Some((input, i)) = element(name) else { continue };
        let Some(info) = model.graph.inputs.iter().find(|info| info.name == input) else { continue };
        let Some(onnx::Type::Tensor(_, Some(dims))) = &info.ty else { continue };
        let n = match dims.as_slice() {
            [] => Some(1),
            [onnx::Dim::Known(n)] => Some(*n),
            _ => None,
        };
        if let Some(n) = n.filter(|n| i >= *n) {
            let message = format!("input \"{input}\" has {n} elements, counted from 0");
            errors.push(import_error(message).at(format!("dim \"{name}\"")));
        }
    }
    let is_element = |name: &str| name.ends_with(']') && elements.iter().any(|e| name.starts_with(e.as_str()));
    for name in
        options.dims.keys().filter(|name| !free.contains(*name) && !is_element(name) && !lengths.contains(*name))
    {
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
    let mut free = Vec::new();
    for (axis, dim) in dims.iter().enumerate() {
        let here = given.map(|g| g[axis]);
        let name = match extent_name(&info.name, axis, dim) {
            None => {
                let onnx::Dim::Known(n) = dim else { continue };
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
            Some(name) => name,
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
                free.push(unbounded(&name, axis));
                continue;
            }
        };
        known.insert(name, d.clone());
        shape.push(d);
    }
    if !free.is_empty() {
        return Err(import_error(free.join("; ")));
    }
    if *dtype == Dtype::Str && shape.iter().any(|d: &Dim| d.as_const().is_none()) {
        return Err(import_error("free extents of strings are not supported: give each one value, as in --dim NAME=N"));
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

/// What to do about a free extent, at the shell and in source.
fn unbounded(name: &str, axis: usize) -> String {
    let is_word = name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.starts_with(|c: char| c.is_numeric());
    let (quote, mark) = if is_word { ("", "") } else { ("\"", "'") };
    format!(
        "extent \"{name}\" (axis {axis}) is free: give it a value or a bound, as in --dim {mark}{name}=N{mark} or \
         --dim {mark}{name}=1..N{mark} (in source: dims({quote}{name}{quote} = 1..=N))"
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    fn input(dims: Vec<onnx::Dim>) -> onnx::Model {
        let ty = Some(onnx::Type::Tensor(Dtype::I64, Some(dims)));
        let info = onnx::ValueInfo { name: "shape".into(), ty, doc: String::new() };
        let graph = onnx::Graph { inputs: vec![info], ..onnx::Graph::default() };
        onnx::Model::of(graph)
    }

    fn with(dims: &[(&str, DimBound)]) -> ImportOptions {
        let dims = dims.iter().map(|(n, b)| ((*n).to_owned(), *b)).collect();
        ImportOptions { dims, ..ImportOptions::default() }
    }

    #[test]
    fn a_free_extent_asks_for_a_bound_by_name() {
        for (dim, dims, wanted) in [
            (onnx::Dim::Symbol("seq".into()), "--dim seq=1..N", "dims(seq = 1..=N)"),
            (onnx::Dim::Symbol("a b".into()), "--dim 'a b=1..N'", "dims(\"a b\" = 1..=N)"),
            (onnx::Dim::Unknown, "--dim 'shape.0=1..N'", "dims(\"shape.0\" = 1..=N)"),
        ] {
            let text = import(&input(vec![dim]), &ImportOptions::default()).unwrap_err().to_string();
            assert!(text.contains(dims) && text.contains(wanted) && text.contains("\"shape\""), "{text}");
        }
    }

    #[test]
    fn values_are_bounded_element_by_element() {
        let model = input(vec![onnx::Dim::Known(2)]);
        let both = with(&[("shape[0]", DimBound::Range(1, 8)), ("shape[1]", DimBound::Fixed(3))]);
        check_dims(&model, &both).unwrap();
        let graph = import(&model, &both).unwrap();
        assert!(graph.nodes[0].is_kiln("ReadInts"));
        assert_eq!(read_ints::slots_end(&graph.nodes[0]), 2);
        let one = with(&[("shape[0]", DimBound::Range(1, 8))]);
        let text = import(&model, &one).unwrap_err().to_string();
        assert!(text.contains("\"shape[1]\" needs bounds"), "{text}");
        // Values that are known are constants, and checked.
        let known = with(&[("shape[0]", DimBound::Fixed(5)), ("shape[1]", DimBound::Fixed(3))]);
        let graph = import(&model, &known).unwrap();
        assert!(graph.nodes[0].is_kiln("Expect"));
        assert_eq!(graph.constant(graph.nodes[0].input(1).unwrap()).unwrap().to_ints(), Some(vec![5, 3]));
        let beyond = with(&[("shape[2]", DimBound::Fixed(5))]);
        assert!(check_dims(&model, &beyond).unwrap_err().to_string().contains("has 2 elements"));
        let misspelt = with(&[("size[0]", DimBound::Fixed(1))]);
        assert!(check_dims(&model, &misspelt).is_err());
        // Too many elements to be sizes.
        let many = import(&input(vec![onnx::Dim::Known(65)]), &with(&[("shape[0]", DimBound::Fixed(1))]));
        assert!(many.unwrap_err().to_string().contains("cannot be bounded"));
    }
}

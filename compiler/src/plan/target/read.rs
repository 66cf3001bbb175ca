//! From the tables of a target file to a checked [`Target`]: names to ids, ranges, what is missing or unknown.

use super::toml::{self, Item, Table, Value};
use super::{Device, DeviceId, Dma, DmaId, DtypeId, LayoutId, Link, Memory, MemoryId, Target};
use std::collections::BTreeMap;
use std::fmt;

/// What is wrong with a target file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetError {
    /// The file.
    pub source: String,
    /// Line, from 1.
    pub line: usize,
    /// `device "npu", field "memory"`, or empty where the text itself is malformed.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, line, field, message } = self;
        let gap = if field.is_empty() { "" } else { ": " };
        write!(f, "{source}:{line}: {field}{gap}{message}")
    }
}

impl std::error::Error for TargetError {}

type Result<T> = std::result::Result<T, TargetError>;

/// More than this of anything is refused.
const MAX_ENTRIES: usize = 64;
/// Rates, sizes and times stay below this, so that sums and products in 128 bits cannot overflow.
const MAX_NUMBER: i64 = 1 << 53;

/// One table, with what it is called in errors. Fields are taken out; what is left at the end is unknown.
struct Fields<'a> {
    source: &'a str,
    what: String,
    line: usize,
    left: Vec<(String, Item)>,
}

impl<'a> Fields<'a> {
    fn new(source: &'a str, kind: &str, table: Table) -> Self {
        let name = table.entries.iter().find(|(k, _)| k == "name").map(|(_, item)| &item.value);
        let what = match (kind, name) {
            ("", _) => String::new(),
            (kind, Some(Value::Str(name))) => format!("{kind} \"{name}\""),
            (kind, _) => kind.to_owned(),
        };
        Self { source, what, line: table.line, left: table.entries }
    }

    fn wrong<T>(&self, line: usize, field: &str, message: impl Into<String>) -> Result<T> {
        let gap = if self.what.is_empty() || field.is_empty() { "" } else { ", " };
        let field = if field.is_empty() { String::new() } else { format!("field \"{field}\"") };
        let field = format!("{}{gap}{field}", self.what);
        Err(TargetError { source: self.source.to_owned(), line, field, message: message.into() })
    }

    fn take(&mut self, field: &str) -> Option<Item> {
        let at = self.left.iter().position(|(k, _)| k == field)?;
        Some(self.left.remove(at).1)
    }

    fn need(&mut self, field: &str) -> Result<Item> {
        match self.take(field) {
            Some(item) => Ok(item),
            None => self.wrong(self.line, field, "missing"),
        }
    }

    fn string(&mut self, field: &str) -> Result<(usize, String)> {
        let item = self.need(field)?;
        self.as_string(field, item)
    }

    fn as_string(&self, field: &str, item: Item) -> Result<(usize, String)> {
        match item.value {
            Value::Str(text) if text.is_empty() => self.wrong(item.line, field, "empty"),
            Value::Str(text) => Ok((item.line, text)),
            other => self.wrong(item.line, field, format!("expected a string, found {other}")),
        }
    }

    fn as_number(&self, field: &str, item: &Item, least: i64, most: i64) -> Result<u64> {
        match &item.value {
            Value::Int(n) if (least..=most).contains(n) => Ok(n.unsigned_abs()),
            Value::Int(n) => self.wrong(item.line, field, format!("expected {least} to {most}, found {n}")),
            other => self.wrong(item.line, field, format!("expected an integer, found {other}")),
        }
    }

    fn number(&mut self, field: &str, least: i64, most: i64) -> Result<u64> {
        let item = self.need(field)?;
        self.as_number(field, &item, least, most)
    }

    fn number_or(&mut self, field: &str, least: i64, most: i64, default: u64) -> Result<u64> {
        match self.take(field) {
            Some(item) => self.as_number(field, &item, least, most),
            None => Ok(default),
        }
    }

    fn flag(&mut self, field: &str) -> Result<bool> {
        match self.take(field) {
            None => Ok(false),
            Some(Item { value: Value::Bool(b), .. }) => Ok(b),
            Some(Item { line, value }) => self.wrong(line, field, format!("expected true or false, found {value}")),
        }
    }

    fn strings(&mut self, field: &str) -> Result<Vec<String>> {
        let item = self.need(field)?;
        match item.value {
            Value::Array(all) => all.into_iter().map(|it| Ok(self.as_string(field, it)?.1)).collect(),
            other => self.wrong(item.line, field, format!("expected an array of strings, found {other}")),
        }
    }

    fn tables(&mut self, field: &str) -> Result<Vec<Table>> {
        let Some(item) = self.take(field) else { return Ok(Vec::new()) };
        let Value::Array(all) = item.value else {
            return self.wrong(item.line, field, format!("expected [[{field}]], found {}", item.value));
        };
        if all.len() > MAX_ENTRIES {
            return self.wrong(item.line, field, format!("more than {MAX_ENTRIES}"));
        }
        let table = |it: Item| match it.value {
            Value::Table(t) => Ok(t),
            other => self.wrong(it.line, field, format!("expected [[{field}]], found {other}")),
        };
        all.into_iter().map(table).collect()
    }

    /// The position of a named thing.
    fn find(&mut self, field: &str, kind: &str, names: &[String]) -> Result<usize> {
        let item = self.need(field)?;
        self.as_found(field, item, kind, names)
    }

    fn as_found(&self, field: &str, item: Item, kind: &str, names: &[String]) -> Result<usize> {
        let (line, name) = self.as_string(field, item)?;
        match names.iter().position(|n| *n == name) {
            Some(at) => Ok(at),
            None => self.wrong(line, field, format!("there is no {kind} \"{name}\"")),
        }
    }

    fn find_opt(&mut self, field: &str, kind: &str, names: &[String]) -> Result<Option<usize>> {
        self.take(field).map(|item| self.as_found(field, item, kind, names)).transpose()
    }

    fn end(self) -> Result<()> {
        match self.left.first() {
            Some((field, item)) => self.wrong(item.line, field, "there is no such field"),
            None => Ok(()),
        }
    }
}

/// Names of one kind, each once.
fn names(source: &str, kind: &str, tables: &[Table]) -> Result<Vec<String>> {
    let mut all: Vec<String> = Vec::new();
    for table in tables {
        let mut fields = Fields::new(source, kind, table.clone());
        let (line, name) = fields.string("name")?;
        if all.contains(&name) {
            return fields.wrong(line, "name", "stands twice");
        }
        all.push(name);
    }
    Ok(all)
}

fn intern(table: &mut Vec<String>, name: &str) -> usize {
    table.iter().position(|n| n == name).unwrap_or_else(|| {
        table.push(name.to_owned());
        table.len() - 1
    })
}

/// Reads and checks a target file.
pub(super) fn read(text: &str, source: &str) -> Result<Target> {
    let root = toml::parse(text).map_err(|e| TargetError {
        source: source.to_owned(),
        line: e.line,
        field: String::new(),
        message: e.message,
    })?;
    let mut root = Fields::new(source, "", root);
    let name = root.string("name")?.1;
    let (memory, device) = (root.tables("memory")?, root.tables("device")?);
    let (dma, link) = (root.tables("dma")?, root.tables("link")?);
    let memory_names = names(source, "memory", &memory)?;
    let mut device_names = names(source, "device", &device)?;
    let dma_names = names(source, "dma", &dma)?;
    let host = root.find("host", "device", &device_names)?;
    root.end()?;

    let (mut layouts, mut dtypes) = (Vec::new(), Vec::new());
    let memory_of = |t| read_memory(Fields::new(source, "memory", t), &memory_names);
    let memories = memory.into_iter().map(memory_of).collect::<Result<Vec<_>>>()?;
    let mut devices = Vec::new();
    let mut lines: Vec<usize> = device.iter().map(|t| t.line).collect();
    for table in device {
        devices.push(read_device(Fields::new(source, "device", table), &memory_names, &mut layouts, &mut dtypes)?);
    }
    // The host is asked last.
    let (last, last_name, last_line) = (devices.remove(host), device_names.remove(host), lines.remove(host));
    devices.push(last);
    device_names.push(last_name);
    lines.push(last_line);
    let dma_of = |t| read_dma(Fields::new(source, "dma", t), &memory_names);
    let dmas = dma.into_iter().map(dma_of).collect::<Result<Vec<_>>>()?;
    let host = DeviceId::new(devices.len() - 1);
    let mut target = Target { name, memories, devices, dmas, links: Vec::new(), host, layouts, dtypes };
    for table in link {
        let link = read_link(Fields::new(source, "link", table), &target, &device_names, &dma_names)?;
        target.links.push(link);
    }
    for (id, line) in target.device_ids().zip(lines) {
        let fields = Fields::new(source, "device", Table { line, entries: Vec::new() });
        let what = format!("device \"{}\"", target.device(id).name);
        let fields = Fields { what, ..fields };
        if target.memories[target.device(id).memory.idx()].weights_only {
            return fields.wrong(line, "memory", "holds weights only");
        }
        if id != host && target.link(id, host).is_none() {
            return fields.wrong(line, "", "there is no link from it to the host");
        }
        if id != host && target.link(host, id).is_none() {
            return fields.wrong(line, "", "there is no link from the host to it");
        }
    }
    Ok(target)
}

fn read_memory(mut f: Fields<'_>, names: &[String]) -> Result<Memory> {
    let name = f.string("name")?.1;
    let capacity_bytes = f.number("capacity_bytes", 1, MAX_NUMBER)?;
    let bytes_per_s = f.number("bytes_per_s", 1, MAX_NUMBER)?;
    let latency_ns = f.number_or("latency_ns", 0, MAX_NUMBER, 0)?;
    let line = f.left.iter().find(|(k, _)| k == "alignment_bytes").map_or(f.line, |(_, item)| item.line);
    let alignment_bytes = f.number_or("alignment_bytes", 1, 1 << 20, 64)?;
    if !alignment_bytes.is_power_of_two() {
        return f.wrong(line, "alignment_bytes", format!("expected a power of two, found {alignment_bytes}"));
    }
    let weights_only = f.flag("weights_only")?;
    let behind = f.find_opt("behind", "memory", names)?.map(MemoryId::new);
    if behind.is_some_and(|b| names[b.idx()] == name) {
        return f.wrong(f.line, "behind", "a memory cannot stand behind itself");
    }
    f.end()?;
    Ok(Memory { name, capacity_bytes, bytes_per_s, latency_ns, alignment_bytes, weights_only, behind })
}

fn read_device(
    mut f: Fields<'_>,
    memories: &[String],
    layout_names: &mut Vec<String>,
    dtype_names: &mut Vec<String>,
) -> Result<Device> {
    let name = f.string("name")?.1;
    let ep = f.string("ep")?.1;
    let memory = MemoryId::new(f.find("memory", "memory", memories)?);
    let streams = f.number_or("streams", 1, crate::plan::MAX_STREAMS as i64, 1)? as usize;
    let launch_ns = f.number_or("launch_ns", 0, MAX_NUMBER, 0)?;
    let sync_ns = f.number_or("sync_ns", 0, MAX_NUMBER, 0)?;
    let rates = f.need("mac_per_s")?;
    let Value::Table(table) = rates.value else {
        return f.wrong(rates.line, "mac_per_s", format!("expected a table of rates, found {}", rates.value));
    };
    let mut mac_per_s = BTreeMap::new();
    for (dtype, item) in &table.entries {
        let rate = f.as_number(&format!("mac_per_s.{dtype}"), item, 1, MAX_NUMBER)?;
        mac_per_s.insert(DtypeId::new(intern(dtype_names, dtype)), rate);
    }
    if mac_per_s.is_empty() {
        return f.wrong(rates.line, "mac_per_s", "empty");
    }
    let dtypes = f.strings("dtypes")?.iter().map(|d| DtypeId::new(intern(dtype_names, d))).collect();
    let layouts = f.strings("layouts")?.iter().map(|l| LayoutId::new(intern(layout_names, l))).collect();
    f.end()?;
    Ok(Device { name, ep, memory, streams, launch_ns, sync_ns, mac_per_s, dtypes, layouts })
}

fn read_dma(mut f: Fields<'_>, memories: &[String]) -> Result<Dma> {
    let name = f.string("name")?.1;
    let from = MemoryId::new(f.find("from", "memory", memories)?);
    let to = MemoryId::new(f.find("to", "memory", memories)?);
    let bytes_per_s = f.number("bytes_per_s", 1, MAX_NUMBER)?;
    let latency_ns = f.number_or("latency_ns", 0, MAX_NUMBER, 0)?;
    let channels = f.number_or("channels", 1, crate::plan::MAX_STREAMS as i64, 1)? as usize;
    f.end()?;
    Ok(Dma { name, from, to, bytes_per_s, latency_ns, channels })
}

fn read_link(mut f: Fields<'_>, target: &Target, devices: &[String], dmas: &[String]) -> Result<Link> {
    let from = DeviceId::new(f.find("from", "device", devices)?);
    let to = DeviceId::new(f.find("to", "device", devices)?);
    f.what = format!("link {} -> {}", devices[from.idx()], devices[to.idx()]);
    if from == to {
        return f.wrong(f.line, "to", "a link needs two devices");
    }
    if target.link(from, to).is_some() {
        return f.wrong(f.line, "from", "this direction stands twice");
    }
    let handshake_ns = f.number("handshake_ns", 0, MAX_NUMBER)?;
    let shared = f.flag("shared")?;
    let (a, b) = (target.device(from).memory, target.device(to).memory);
    let name = |m: MemoryId| &target.memories[m.idx()].name;
    if shared != (a == b) {
        let how = if shared { "no shared memory" } else { "one memory: set shared = true" };
        return f.wrong(f.line, "shared", format!("the two compute in \"{}\" and \"{}\": {how}", name(a), name(b)));
    }
    let dma = f.find_opt("dma", "dma", dmas)?.map(DmaId::new);
    if let Some(d) = dma.map(|d| &target.dmas[d.idx()])
        && (d.from, d.to) != (a, b)
    {
        let (from, to) = (name(d.from), name(d.to));
        let message =
            format!("it moves from memory \"{from}\" to \"{to}\", not from \"{}\" to \"{}\"", name(a), name(b));
        return f.wrong(f.line, "dma", message);
    }
    // An engine's own rate is the default and the limit of its links.
    let engine_rate = dma.map(|d| target.dmas[d.idx()].bytes_per_s);
    let copy_bytes_per_s = match (f.take("copy_bytes_per_s"), engine_rate) {
        (Some(item), _) if shared => {
            return f.wrong(item.line, "copy_bytes_per_s", "nothing is copied in shared memory");
        }
        (Some(item), engine) => {
            let rate = f.as_number("copy_bytes_per_s", &item, 1, MAX_NUMBER)?;
            Some(engine.map_or(rate, |e| e.min(rate)))
        }
        (None, Some(engine)) if !shared => Some(engine),
        (None, _) if shared => None,
        (None, _) => return f.wrong(f.line, "copy_bytes_per_s", "missing"),
    };
    let repack_bytes_per_s = f.number("repack_bytes_per_s", 1, MAX_NUMBER)?;
    let convert_ps_per_element = f.number("convert_ps_per_element", 0, MAX_NUMBER)?;
    let by = f.find_opt("by", "device", devices)?.map_or(from, DeviceId::new);
    if by != from && by != to {
        return f.wrong(f.line, "by", "neither of the link's two devices");
    }
    f.end()?;
    Ok(Link { from, to, handshake_ns, copy_bytes_per_s, repack_bytes_per_s, convert_ps_per_element, dma, by })
}

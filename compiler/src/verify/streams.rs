//! Several streams: proof that every order in which they may run does what the list of steps does.
//!
//! The list is one order that fits the schedule (checked here: so there is no deadlock), and [`super::verify`] has followed
//! it byte by byte. Two steps whose order is open must not touch the same byte, unless both only read it, or they are
//! parts of one call, which fill a result together. Then any order that fits can be reached from the list by exchanging
//! neighbours that do not touch each other's bytes, so all of them read and write the same.
//! Method: vector clocks along the list; for every byte range of the arena how far each stream was when it last wrote or
//! read it. The planners' own structures are not used.

use super::{Expectation, linear};
use crate::ir::SymbolSource;
use crate::lower::{Call, CallOperand, FieldText};
use crate::program::{ARENA, INPUTS, Program};
use crate::schedule::StreamStep;
use kiln_kernels::Role;
use std::collections::{BTreeMap, HashMap};

/// The name of the operand that a kernel keeps intermediate results in.
const SCRATCH: &str = "scratch";

/// For every stream, how many of its runs are over: before a step begins.
type Clock = Vec<usize>;

/// A step and what is wrong with it.
pub(super) type Wrong = (usize, String);

/// Where each step stands, and what is surely over when it begins.
struct Order {
    /// Stream, and number among the stream's runs.
    at: Vec<(usize, usize)>,
    before: Vec<Clock>,
}

impl Order {
    /// Whether everything up to a clock is over when a step begins.
    fn after(&self, step: usize, clock: &Clock) -> bool {
        clock.iter().zip(&self.before[step]).all(|(needed, done)| needed <= done)
    }
}

/// Follows the list through the streams.
fn order(program: &Program) -> Result<Order, Wrong> {
    let streams = &program.schedule.streams;
    let n = streams.len();
    let (mut next, mut done, mut now) = (vec![0; n], vec![0usize; n], vec![vec![0usize; n]; n]);
    // The clock of each stream after each of its runs.
    let mut after: Vec<Vec<Clock>> = vec![Vec::new(); n];
    let mut stream_of = vec![usize::MAX; program.steps.len()];
    for (s, steps) in streams.iter().enumerate() {
        for step in steps {
            if let StreamStep::Run(i) = *step {
                match stream_of.get_mut(i) {
                    Some(of) if *of == usize::MAX => *of = s,
                    _ => return Err((i, "a stream runs it that should not".into())),
                }
            }
        }
    }
    let mut order = Order { at: Vec::new(), before: Vec::new() };
    for (i, &s) in stream_of.iter().enumerate() {
        if s == usize::MAX {
            return Err((i, "no stream runs it".into()));
        }
        loop {
            let step = streams[s].get(next[s]);
            next[s] += 1;
            match step {
                Some(&StreamStep::Wait { stream, count }) => {
                    let over = count.checked_sub(1).and_then(|c| after.get(stream)?.get(c));
                    let Some(over) = over.filter(|_| stream != s) else {
                        return Err((i, format!("waits for run {count} of stream {stream}, which comes later")));
                    };
                    now[s].iter_mut().zip(over).for_each(|(a, b)| *a = (*a).max(*b));
                }
                Some(StreamStep::Run(r)) if *r == i => break,
                _ => return Err((i, "stands elsewhere in its stream".into())),
            }
        }
        order.at.push((s, done[s]));
        order.before.push(now[s].clone());
        done[s] += 1;
        now[s][s] = done[s];
        after[s].push(now[s].clone());
    }
    match (0..n).find(|&s| next[s] < streams[s].len()) {
        Some(s) => Err((program.steps.len(), format!("stream {s} goes on after its last run"))),
        None => Ok(order),
    }
}

/// The first of a call's parts, and the buffer that one of its operands is.
type Group = Option<(usize, u32)>;

/// What happened to a byte range so far: for every stream, how many of its runs must be over.
#[derive(Clone, Debug)]
struct Marks {
    /// Whoever touched it before the present writers.
    before: Clock,
    /// The call whose parts wrote it last, and the buffer that they fill together.
    group: Group,
    writes: Clock,
    /// Reads since.
    reads: Clock,
}

/// Disjoint ranges `start -> (end, marks)`.
struct Bytes {
    ranges: BTreeMap<u64, (u64, Marks)>,
    none: Marks,
}

impl Bytes {
    fn new(n_streams: usize) -> Self {
        let zero = vec![0; n_streams];
        let none = Marks { before: zero.clone(), group: None, writes: zero.clone(), reads: zero };
        Self { ranges: BTreeMap::new(), none }
    }

    fn cut(&mut self, at: u64) {
        if let Some((_, (end, marks))) = self.ranges.range_mut(..at).next_back()
            && *end > at
        {
            let (rest, marks) = (std::mem::replace(end, at), marks.clone());
            self.ranges.insert(at, (rest, marks));
        }
    }

    /// Visits the marks of every piece of a range.
    fn each(&mut self, start: u64, end: u64, mut f: impl FnMut(&mut Marks) -> bool) -> bool {
        self.cut(start);
        self.cut(end);
        let mut gaps = Vec::new();
        let mut at = start;
        for (s, (e, _)) in self.ranges.range(start..end) {
            if at < *s {
                gaps.push((at, *s));
            }
            at = *e;
        }
        if at < end {
            gaps.push((at, end));
        }
        for (s, e) in gaps {
            self.ranges.insert(s, (e, self.none.clone()));
        }
        self.ranges.range_mut(start..end).all(|(_, (_, marks))| f(marks))
    }
}

/// Numbers calls so that the parts of one call have one number: equal but for the range or share of the work, which must
/// be disjoint and together be everything. None on one stream, where calls have no parts.
pub(super) fn groups(program: &Program, expected: &Expectation) -> Vec<Option<usize>> {
    if program.schedule.streams.len() < 2 || program.steps.len() != expected.steps.len() {
        return vec![None; program.steps.len()];
    }
    let mut by_call: HashMap<String, Vec<(usize, [u64; 3])>> = HashMap::new();
    for (i, step) in program.steps.iter().enumerate() {
        if let Some((call, part)) = part(&*step.call, &step.node, &expected.steps[i]) {
            by_call.entry(call).or_default().push((i, part));
        }
    }
    let mut group = vec![None; program.steps.len()];
    for parts in by_call.into_values() {
        let mut ranges: Vec<[u64; 3]> = parts.iter().map(|p| p.1).collect();
        ranges.sort_unstable();
        let tiled = ranges[0][0] == 0 && ranges.windows(2).all(|w| w[0][1] == w[1][0] && w[0][2] == w[1][2]);
        let all = ranges.last().is_some_and(|r| r[2] == 0 || r[1] == r[2]);
        if tiled && all {
            parts.iter().for_each(|&(i, _)| group[i] = Some(parts[0].0));
        }
    }
    group
}

/// A call without its part, as text, and the part: begin, end, and of how many (0 where only the range is known).
fn part(call: &dyn Call, node: &str, buffers: &[(u32, u64)]) -> Option<(String, [u64; 3])> {
    let mut text = format!("{node}\n{}", call.entry());
    let (mut begin, mut end, mut share) = (None, None, None);
    let number = |n: &crate::ir::Dim| n.as_const().and_then(|n| u64::try_from(n).ok());
    call.fields(&mut |name, field| match field {
        FieldText::Num(n) if name == "part_begin" => begin = number(n),
        FieldText::Num(n) if name == "part_end" => end = number(n),
        FieldText::Param(p) if name == "share" => share = Some(p),
        FieldText::Num(n) => text += &format!(" {n}"),
        FieldText::Nums(ns) => ns.iter().for_each(|n| text += &format!(" {n}")),
        FieldText::Param(p) => text += &format!(" {p}"),
        FieldText::Operand(_) | FieldText::OptOperand(_) => {}
    });
    // The result is the same buffer; scratch may differ.
    for (o, (buffer, off)) in call.operands().iter().zip(buffers) {
        if o.name != SCRATCH {
            text += &format!(" {}:{buffer}+{off}", o.name);
        }
    }
    if let (Some(begin), Some(end)) = (begin, end) {
        return Some((text, [begin, end, 0]));
    }
    let share = share?;
    let mut numbers = share.trim_matches(['[', ']']).split(", ").map(str::parse::<u64>);
    let (Some(Ok(i)), Some(Ok(n))) = (numbers.next(), numbers.next()) else { return None };
    Some((text, [i, i + 1, n]))
}

/// Checks that the schedule allows no other result than the list's.
pub(super) fn check(program: &Program, expected: &Expectation, groups: &[Option<usize>]) -> Result<(), Wrong> {
    let order = order(program)?;
    let n_streams = program.schedule.streams.len();
    if n_streams < 2 {
        return Ok(());
    }
    let mut bytes = Bytes::new(n_streams);
    let mut finders: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, step) in program.steps.iter().enumerate() {
        let (stream, run) = order.at[i];
        let operands = step.call.operands();
        // Scratch is nothing that parts fill together: each needs its own.
        let group = |(o, (buffer, _)): (&CallOperand, &(u32, u64))| {
            groups[i].filter(|_| o.name != SCRATCH).map(|g| (g, *buffer))
        };
        let in_arena: Vec<(&CallOperand, Group)> = operands
            .iter()
            .zip(&expected.steps[i])
            .map(|at| (at.0, group(at)))
            .filter(|(o, _)| is_planned(program, o))
            .collect();
        for &(o, group) in in_arena.iter().filter(|(o, _)| o.role != Role::Write) {
            // What a part updates, or reads in place, is only what it writes itself.
            let in_place =
                in_arena.iter().find(|(w, _)| w.writes() && w.operand.mem == o.operand.mem && range(w) == range(o));
            let own = match o.role {
                Role::Update => Some(group),
                Role::Alias => in_place.map(|(_, group)| *group),
                Role::Read | Role::Write => None,
            };
            let (start, end) = range(o);
            let (start, end) = (linear(program, o, start), linear(program, o, end));
            let ordered = bytes.each(start, end, |m| {
                let same_call = own.flatten().is_some_and(|g| m.group == Some(g));
                let needed = if same_call { &m.before } else { &m.writes };
                let ordered = order.after(i, needed);
                if own.is_none() {
                    m.reads[stream] = run + 1;
                }
                ordered
            });
            if !ordered {
                return Err((i, format!("operand {} may be read before it is written", o.name)));
            }
        }
        for &(o, group) in in_arena.iter().filter(|(o, _)| o.writes()) {
            let (start, end) = range(o);
            let (start, end) = (linear(program, o, start), linear(program, o, end));
            let ordered = bytes.each(start, end, |m| {
                let same_call = group.is_some() && m.group == group;
                let reads_done = (0..n_streams).all(|s| m.reads[s] <= order.before[i][s] || s == stream);
                let ordered = order.after(i, &m.before) && reads_done && (same_call || order.after(i, &m.writes));
                if !same_call {
                    let all = |s: usize| m.before[s].max(m.writes[s]).max(m.reads[s].min(order.before[i][s]));
                    m.before = (0..n_streams).map(all).collect();
                    m.writes = vec![0; n_streams];
                    m.reads = vec![0; n_streams];
                    m.group = group;
                }
                m.writes[stream] = run + 1;
                ordered
            });
            if !ordered {
                return Err((i, format!("operand {} may be overwritten while another step uses these bytes", o.name)));
            }
        }
        found_before(program, &order, i, &finders)?;
        for slot in step.call.found() {
            finders.entry(slot).or_default().push(i);
        }
    }
    Ok(())
}

/// Whether every extent that a step reads was found before.
fn found_before(
    program: &Program,
    order: &Order,
    i: usize,
    finders: &BTreeMap<usize, Vec<usize>>,
) -> Result<(), Wrong> {
    let mut late = false;
    program.steps[i].call.dims(&mut |d| {
        d.symbols(&mut |symbol| {
            if let SymbolSource::Data { slot } = symbol.source {
                for &f in finders.get(&slot).into_iter().flatten() {
                    let (stream, run) = order.at[f];
                    late |= order.before[i][stream] <= run;
                }
            }
        });
    });
    if late { Err((i, "an extent may be read before it is found".into())) } else { Ok(()) }
}

/// Whether the operand lies in memory that steps write: the arena, or a state's.
fn is_planned(program: &Program, o: &CallOperand) -> bool {
    o.operand.mem == ARENA || o.operand.mem as usize >= INPUTS as usize + program.inputs.len()
}

fn range(o: &CallOperand) -> (u64, u64) {
    let bytes = o.operand.bytes.upper().and_then(|b| u64::try_from(b).ok()).unwrap_or(0);
    (o.operand.off, o.operand.off.saturating_add(bytes))
}

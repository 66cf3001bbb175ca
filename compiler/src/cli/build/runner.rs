//! Runs the modules of this crate as a task file says.
//!
//! In: the task file's path as the only argument, one task a line with fields separated by tabs:
//! `run MODULE INPUTS OUTPUTS` runs once, `bench MODULE INPUTS ITERATIONS` runs again and again, `steps MODULE INPUTS
//! ITERATIONS` times each step. An input file holds a count, for each input its length, rank and extents, then each input's bytes on a 64-byte boundary;
//! an output file a count, then for each output its type, rank, extents, length and bytes; all numbers are u64 LE.
//! Out: lines on stdout, `begin I` and then `ok I …` or `err I MESSAGE` for each task.

use kiln::PortInfo;
use kiln::rt::RawInput;
use kiln::kernels::AlignedBytes;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub(crate) trait Loaded {
    fn outputs(&self) -> &'static [PortInfo];
    fn run(&mut self, inputs: &[RawInput<'_>], each: &mut dyn FnMut(&[u8], &[usize])) -> Result<(), kiln::Error>;
    fn run_steps(&mut self, inputs: &[RawInput<'_>], each: &mut dyn FnMut(usize)) -> Result<(), kiln::Error>;
}

pub(crate) type Load = fn() -> Result<Box<dyn Loaded>, kiln::Error>;

pub(crate) fn main(modules: &[Load]) -> std::process::ExitCode {
    let tasks = std::env::args_os().nth(1).and_then(|path| std::fs::read_to_string(path).ok());
    let Some(tasks) = tasks else {
        eprintln!("expected a readable task file");
        return std::process::ExitCode::from(2);
    };
    std::panic::set_hook(Box::new(|_| {}));
    let mut loaded = None;
    for (i, line) in tasks.lines().enumerate() {
        say(&format!("begin {i}"));
        let outcome = catch_unwind(AssertUnwindSafe(|| task(modules, line, &mut loaded)));
        let outcome = outcome.unwrap_or_else(|panic| {
            loaded = None;
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(format!("panicked: {}", text.unwrap_or_default()))
        });
        match outcome {
            Ok(text) => say(&format!("ok {i} {text}")),
            Err(text) => say(&format!("err {i} {}", text.replace('\n', " "))),
        }
    }
    std::process::ExitCode::SUCCESS
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn task(modules: &[Load], line: &str, loaded: &mut Option<(usize, Box<dyn Loaded>)>) -> Result<String, String> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [what, module, inputs, last] = fields[..] else { return Err("a task has four fields".into()) };
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text} is no number"));
    let module = number(module)?;
    if loaded.as_ref().is_none_or(|(m, _)| *m != module) {
        *loaded = None;
        let load = modules.get(module).ok_or("no such module")?;
        *loaded = Some((module, load().map_err(|e| e.to_string())?));
    }
    let Some((_, model)) = loaded else { return Err("no model".into()) };
    let inputs = Inputs::read(inputs).map_err(|e| format!("cannot read {inputs}: {e}"))?;
    let inputs = inputs.raw();
    match what {
        "run" => run(model.as_mut(), &inputs, last),
        "bench" => bench(model.as_mut(), &inputs, number(last)?),
        "steps" => steps(model.as_mut(), &inputs, number(last)?),
        other => Err(format!("{other} is no task")),
    }
}

struct Inputs {
    bytes: AlignedBytes,
    /// For each input its place, length and extents.
    each: Vec<(usize, usize, Vec<usize>)>,
}

impl Inputs {
    fn read(path: &str) -> std::io::Result<Self> {
        let bad = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        let mut file = std::fs::File::open(path)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| bad())?;
        let mut bytes = AlignedBytes::zeroed(len).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        file.read_exact(bytes.as_mut_slice())?;
        let mut words = bytes.as_slice().chunks_exact(8).map(|word| {
            let word: [u8; 8] = word.try_into().unwrap_or_default();
            usize::try_from(u64::from_le_bytes(word)).unwrap_or(usize::MAX)
        });
        let mut n_words = 1;
        let mut each = Vec::new();
        for _ in 0..words.next().ok_or_else(bad)? {
            let (len, rank) = (words.next().ok_or_else(bad)?, words.next().ok_or_else(bad)?);
            let dims: Vec<usize> = words.by_ref().take(rank).collect();
            n_words += 2 + dims.len();
            each.push((0, len, dims));
        }
        let mut at = 8 * n_words;
        for (start, len, _) in &mut each {
            *start = at.next_multiple_of(64);
            at = start.checked_add(*len).ok_or_else(bad)?;
        }
        if at > bytes.as_slice().len() {
            return Err(bad());
        }
        Ok(Self { bytes, each })
    }

    fn raw(&self) -> Vec<RawInput<'_>> {
        let all = self.bytes.as_slice();
        self.each.iter().map(|(at, len, shape)| RawInput { bytes: &all[*at..at + len], shape }).collect()
    }
}

fn run(model: &mut dyn Loaded, inputs: &[RawInput<'_>], path: &str) -> Result<String, String> {
    let mut out = Vec::new();
    let mut word = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u64).to_le_bytes());
    let infos = model.outputs();
    word(&mut out, infos.len());
    let mut i = 0;
    let start = Instant::now();
    let mut each = |bytes: &[u8], dims: &[usize]| {
        let dtype = infos.get(i).map_or("", |info| info.dtype);
        word(&mut out, dtype.len());
        out.extend_from_slice(dtype.as_bytes());
        word(&mut out, dims.len());
        dims.iter().for_each(|&d| word(&mut out, d));
        word(&mut out, bytes.len());
        out.extend_from_slice(bytes);
        i += 1;
    };
    model.run(inputs, &mut each).map_err(|e| e.to_string())?;
    let ns = start.elapsed().as_nanos();
    std::fs::write(path, &out).map_err(|e| format!("cannot write {path}: {e}"))?;
    Ok(ns.to_string())
}

/// Runs until times have settled: a tenth of the runs and at least half a second, but at most 20 seconds.
fn warm_up(model: &mut dyn Loaded, inputs: &[RawInput<'_>], iterations: usize) -> Result<(), String> {
    let start = Instant::now();
    let mut n = 0;
    loop {
        model.run(inputs, &mut |_, _| {}).map_err(|e| e.to_string())?;
        n += 1;
        let spent = start.elapsed();
        if spent > Duration::from_secs(20) || (spent > Duration::from_millis(500) && n * 10 >= iterations) {
            return Ok(());
        }
    }
}

/// `ok I MIN MEDIAN P90 RSS_BYTES`.
fn bench(model: &mut dyn Loaded, inputs: &[RawInput<'_>], iterations: usize) -> Result<String, String> {
    warm_up(model, inputs, iterations)?;
    let mut times = Vec::with_capacity(iterations.max(1));
    for _ in 0..iterations.max(1) {
        let start = Instant::now();
        model.run(inputs, &mut |bytes, _| {
            std::hint::black_box(bytes);
        })
        .map_err(|e| e.to_string())?;
        times.push(start.elapsed().as_nanos());
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    Ok(format!("{} {} {} {}", times[0], at(50), at(90), resident_bytes()))
}

/// `ok I NS …`: the median time of each step.
fn steps(model: &mut dyn Loaded, inputs: &[RawInput<'_>], iterations: usize) -> Result<String, String> {
    warm_up(model, inputs, iterations)?;
    let mut times: Vec<Vec<u64>> = Vec::new();
    for _ in 0..iterations.max(1) {
        let mut last = Instant::now();
        let mut each = |step: usize| {
            let now = Instant::now();
            if times.len() <= step {
                times.resize_with(step + 1, Vec::new);
            }
            times[step].push(u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX));
            last = Instant::now();
        };
        model.run_steps(inputs, &mut each).map_err(|e| e.to_string())?;
    }
    let medians = times.iter_mut().map(|t| {
        t.sort_unstable();
        t.get(t.len() / 2).copied().unwrap_or(0).to_string()
    });
    Ok(medians.collect::<Vec<_>>().join(" "))
}

/// Peak resident memory of this process, where the system tells it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().map_or(0, |kb| kb * 1024)
}

//! Runs tasks in built binaries: a crash or a hang of one loses no other.
//!
//! In: tasks, each for a module of a binary. Out: what each one printed, or why it failed. A process works through all
//! tasks of its binary; when it dies or is too slow, the task it was at has failed and a new process does the rest.

use super::Built;
use crate::artifact::unique;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// One task for a module.
pub(in crate::cli) struct Task {
    /// The module.
    pub(in crate::cli) module: Built,
    /// `run`, `bench` or `steps`.
    pub(in crate::cli) what: &'static str,
    /// The file with the inputs.
    pub(in crate::cli) inputs: PathBuf,
    /// The file for the outputs, or the number of iterations.
    pub(in crate::cli) last: String,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct TaskOutcome {
    /// What it said, or why it failed.
    pub(in crate::cli) said: Result<String, String>,
    /// How long it took, loading included.
    pub(in crate::cli) spent: Duration,
}

/// Runs all tasks, `jobs` processes at once; the outcomes are in the tasks' order.
pub(in crate::cli) fn run_all(
    tasks: &[Task],
    jobs: usize,
    limit: Duration,
    done: &(dyn Fn(usize) + Sync),
) -> Vec<TaskOutcome> {
    let mut groups: BTreeMap<&Path, Vec<usize>> = BTreeMap::new();
    for (i, task) in tasks.iter().enumerate() {
        groups.entry(&task.module.binary).or_default().push(i);
    }
    let queue = Mutex::new(groups.into_iter().collect::<Vec<_>>());
    let outcomes: Mutex<Vec<Option<TaskOutcome>>> = Mutex::new(vec![None; tasks.len()]);
    let work = || {
        while let Some((binary, mut rest)) = queue.lock().ok().and_then(|mut q| q.pop()) {
            while !rest.is_empty() {
                let found = run_some(binary, tasks, &rest, limit, done);
                let n_found = found.len().max(1);
                if let Ok(mut all) = outcomes.lock() {
                    for (&i, outcome) in rest.iter().zip(found) {
                        all[i] = Some(outcome);
                    }
                }
                rest.drain(..n_found.min(rest.len()));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(work);
        }
    });
    let lost = || TaskOutcome { said: Err("was not run".into()), spent: Duration::ZERO };
    outcomes.into_inner().unwrap_or_default().into_iter().map(|o| o.unwrap_or_else(lost)).collect()
}

/// Runs tasks in one process, up to the first that kills it; at least one outcome.
fn run_some(
    binary: &Path,
    tasks: &[Task],
    which: &[usize],
    limit: Duration,
    done: &(dyn Fn(usize) + Sync),
) -> Vec<TaskOutcome> {
    let mut text = String::new();
    for &i in which {
        let t = &tasks[i];
        text.push_str(&format!("{}\t{}\t{}\t{}\n", t.what, t.module.module_idx, t.inputs.display(), t.last));
    }
    let failed = |why: String, spent| TaskOutcome { said: Err(why), spent };
    let list = std::env::temp_dir().join(format!("kilnc-tasks-{}", unique()));
    if let Err(e) = std::fs::write(&list, text) {
        return vec![failed(format!("cannot write {}: {e}", list.display()), Duration::ZERO)];
    }
    let mut command = Command::new(binary);
    command.arg(&list).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => return vec![failed(format!("cannot run {}: {e}", binary.display()), Duration::ZERO)],
    };
    let (send, lines) = channel();
    let stdout = child.stdout.take();
    std::thread::spawn(move || {
        for line in stdout.into_iter().flat_map(|s| BufReader::new(s).lines()).map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    let mut outcomes: Vec<TaskOutcome> = Vec::new();
    let mut since = Instant::now();
    let end = loop {
        match lines.recv_timeout(limit.saturating_sub(since.elapsed())) {
            Ok(line) => {
                let mut fields = line.splitn(3, ' ');
                let (what, _, said) = (fields.next(), fields.next(), fields.next().unwrap_or_default().to_owned());
                let said = match what {
                    Some("begin") => {
                        since = Instant::now();
                        continue;
                    }
                    Some("ok") => Ok(said),
                    Some("err") => Err(said),
                    _ => continue,
                };
                outcomes.push(TaskOutcome { said, spent: since.elapsed() });
                done(1);
            }
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                break Some(format!("took longer than {} seconds", limit.as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait();
                break (outcomes.len() < which.len()).then(|| match status {
                    Ok(status) => format!("the program died ({status})"),
                    Err(e) => format!("the program died ({e})"),
                });
            }
        }
    };
    if let Some(why) = end
        && outcomes.len() < which.len()
    {
        outcomes.push(failed(why, since.elapsed()));
        done(1);
    }
    let _ = std::fs::remove_file(&list);
    outcomes
}

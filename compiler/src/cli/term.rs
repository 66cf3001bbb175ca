//! What the commands print: results to stdout, messages to stderr, progress where a terminal shows it.
//!
//! Invariant: a closed pipe is no error; the reader has seen enough.

use std::io::{IsTerminal, Write};

/// One result.
pub(super) fn result(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// One message.
pub(super) fn message(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A line that says how far long work has come; printed on a terminal only.
pub(super) struct Progress {
    shown: bool,
    quiet: bool,
}

impl Progress {
    /// Silent when asked to be, or when nobody watches.
    pub(super) fn new(quiet: bool) -> Self {
        Self { shown: !quiet && std::io::stderr().is_terminal(), quiet }
    }

    /// A line that stays, also where no terminal is: what takes minutes is announced unless quiet was asked for.
    pub(super) fn announce(&self, text: &str) {
        if !self.quiet {
            self.done();
            message(text);
        }
    }

    /// Replaces the line.
    pub(super) fn say(&self, text: &str) {
        if self.shown {
            let cut: String = text.chars().take(78).collect();
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{cut}");
        }
    }

    /// Takes the line away.
    pub(super) fn done(&self) {
        self.say("");
    }
}

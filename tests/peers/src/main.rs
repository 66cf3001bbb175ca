//! Times a peer on a case in ONNX's layout: `kiln-peers PEER FOLDER ITERATIONS THREADS` prints nanoseconds, one run a line.
//!
//! PEER is `tract` (one thread, whatever is asked) or `rten`. Inputs are the case's first data set; the first runs warm up and are
//! not printed.

mod rten_peer;
mod tract_peer;

use std::error::Error;
use std::path::Path;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Warms up, then times each run.
fn time(iterations: usize, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..2 {
        run()?;
    }
    for _ in 0..iterations {
        let start = Instant::now();
        run()?;
        println!("{}", start.elapsed().as_nanos());
    }
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, peer, folder, iterations, threads] = args.as_slice() else {
        return Err("usage: kiln-peers tract|rten FOLDER ITERATIONS THREADS".into());
    };
    let (folder, iterations) = (Path::new(folder), iterations.parse()?);
    match peer.as_str() {
        "tract" => tract_peer::run(folder, iterations),
        "rten" => rten_peer::run(folder, iterations, threads.parse()?),
        other => Err(format!("no peer {other:?}").into()),
    }
}

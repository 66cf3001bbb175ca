//! Times a peer on a case in ONNX's layout: `kiln-peers PEER FOLDER THREADS`. For every line of standard input, a number, it runs
//! the case so many times and prints nanoseconds, one run a line; a run before those, which warms up, is not printed.
//!
//! PEER is `tract` (one thread, whatever is asked) or `rten`. Inputs are the case's first data set.

mod rten_peer;
mod tract_peer;

use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Runs as often as each line of standard input says.
fn serve(mut run: impl FnMut() -> Result<()>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        run()?;
        for _ in 0..line?.trim().parse()? {
            let start = Instant::now();
            run()?;
            println!("{}", start.elapsed().as_nanos());
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, peer, folder, threads] = args.as_slice() else {
        return Err("usage: kiln-peers tract|rten FOLDER THREADS".into());
    };
    let folder = Path::new(folder);
    match peer.as_str() {
        "tract" => tract_peer::run(folder),
        "rten" => rten_peer::run(folder, threads.parse()?),
        other => Err(format!("no peer {other:?}").into()),
    }
}

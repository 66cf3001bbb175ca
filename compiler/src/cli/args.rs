//! The arguments of every command, and the compile options they stand for.

use super::Failure;
use crate::emit::WeightsFrom;
use crate::ep::pin::Pin;
use crate::ep::place::Wish;
use crate::import::DimBound;
use crate::machine::Machine;
use crate::memory::Arenas;
use crate::plan::placement::{Objective, Policy};
use crate::profile::Profile;
use crate::{Options, check_options};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Compiles ONNX models to Rust ahead of time.
#[derive(Parser, Debug)]
#[command(name = "kilnc", version, about, max_term_width = 110)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Builds and runs test cases in ONNX's own layout.
    #[command(after_help = "Example: kilnc test onnx/backend/test/data/node --jobs 2 --json report.json")]
    Test(TestArgs),
    /// Says whether a model can be compiled, and all that is in the way
    #[command(after_help = "Example: kilnc check model.onnx --dim batch=1")]
    Check(CheckArgs),
    /// Writes the module, its weights, and plans as text
    #[command(after_help = "Example: kilnc compile net.onnx -o compiled --emit schedule,memory\n\n\
        In a crate that depends on kiln, DIR a folder of the package:\n  \
        kiln::include_compiled!(mod net = \"net\" in concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/compiled\"));")]
    Compile(CompileCommandArgs),
    /// Shows what was planned: arena, bounds, the peak's tensors, steps
    #[command(after_help = "Example: kilnc plan model.onnx --json")]
    Plan(PlanArgs),
    /// Compiles, builds and runs a model once
    #[command(after_help = "Example: kilnc run model.onnx --input x=x.npy --output-dir out")]
    Run(RunArgs),
    /// Measures latency in a process of its own, against this machine's peak
    #[command(after_help = "Example: kilnc bench model.onnx --iters 100 --per-op")]
    Bench(BenchArgs),
    /// Compares with tract on random inputs
    #[command(after_help = "Example: kilnc verify model.onnx --cases 3 --per-node")]
    Verify(VerifyArgs),
    /// Shows or measures what can be compiled for
    #[command(after_help = "Example: kilnc target show host", subcommand)]
    Target(TargetCommand),
    /// Packs buffers of a CSV file (id,lower,upper,size) into memory
    #[command(after_help = "Example: kilnc pack buffers.csv --capacity 1048576")]
    Pack(PackArgs),
}

/// What shapes a compile.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Compile options")]
pub(super) struct CompileArgs {
    /// What to compile for: host, soc-npu or a target file (host+gpu is not supported in this version)
    #[arg(long, value_name = "TARGET", default_value = "host")]
    pub(super) target: String,
    /// Streams of the CPU
    #[arg(long, visible_alias = "threads", value_name = "N", default_value_t = 1)]
    pub(super) streams: usize,
    /// Size of a free dimension: one, or the range it lies in
    #[arg(long, value_name = "NAME=N|A..B")]
    pub(super) dim: Vec<String>,
    /// Whether the weights lie in the binary or in a file of their own
    #[arg(long, value_enum, default_value_t = WeightsArg::Embed)]
    pub(super) weights: WeightsArg,
    /// Which nodes run where: priority, parallax or optimal
    #[arg(long, value_name = "POLICY")]
    placement: Option<String>,
    /// What a placement minimises: makespan or sum
    #[arg(long, value_name = "WHAT")]
    objective: Option<String>,
    /// Puts the nodes whose names match on a device
    #[arg(long, value_name = "REGEX=DEVICE")]
    pin: Vec<String>,
    /// Writes the placement to a file
    #[arg(long, value_name = "FILE")]
    pub(super) save_placement: Option<PathBuf>,
    /// Takes the placement from a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["placement", "objective", "pin"])]
    load_placement: Option<PathBuf>,
    /// One arena for all, or a region for each branch: shared or branch
    #[arg(long, value_name = "WHICH")]
    arenas: Option<String>,
    /// Memory that the model may take beside its weights; the module then also holds a narrower schedule for less
    #[arg(long, value_name = "BYTES", value_parser = whole_bytes)]
    budget: Option<u64>,
    /// An output that is an input of the next run
    #[arg(long, value_name = "OUT=IN")]
    state: Vec<String>,
    /// Measured times of nodes: what bench --per-op --json prints
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Says nothing but results and errors
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightsArg {
    Embed,
    File,
}

impl CompileArgs {
    /// The options for a module of this name.
    pub(super) fn options(&self, name: &str) -> Result<Options, Failure> {
        self.check_words()?;
        let machine = Machine::named(&self.target)?;
        let mut options = Options { name: name.to_owned(), streams: self.streams, machine, ..Options::default() };
        options.wish = self.wish()?;
        options.pins = self.pin.iter().map(|p| Pin::parse(p)).collect::<Result<_, _>>().map_err(Failure::Misuse)?;
        options.weights = match self.weights {
            WeightsArg::Embed => WeightsFrom::Embed,
            WeightsArg::File => WeightsFrom::File,
        };
        for text in &self.dim {
            let (name, bound) = parse_dim(text).ok_or_else(|| {
                Failure::Misuse(format!("--dim {text}: expected NAME=N or NAME=A..B with whole numbers"))
            })?;
            if options.import.dims.insert(name.clone(), bound).is_some() {
                return Err(Failure::Misuse(format!("--dim {text}: \"{name}\" is given twice")));
            }
        }
        for text in &self.state {
            let (output, input) =
                text.split_once('=').filter(|(o, i)| !o.is_empty() && !i.is_empty()).ok_or_else(|| {
                    Failure::Misuse(format!("--state {text}: expected OUT=IN, names or patterns with one *"))
                })?;
            options.states.push((output.to_owned(), input.to_owned()));
        }
        options.budget_bytes = self.budget;
        if self.arenas.as_deref() == Some("branch") {
            options.arenas = Arenas::Branch;
        }
        options.profile = self.profile.as_ref().map(|path| profile(path)).transpose()?;
        check_options(&options).map_err(Failure::Misuse)?;
        if options.machine.target.n_devices() == 1 {
            for (given, flag) in
                [(&self.save_placement, "--save-placement"), (&self.load_placement, "--load-placement")]
            {
                if given.is_some() {
                    let why = format!("{flag}: target \"{}\" has one device, there is nothing to place", self.target);
                    return Err(Failure::Misuse(why));
                }
            }
        }
        Ok(options)
    }

    /// How nodes are placed. Reads the saved placement, if one is named.
    fn wish(&self) -> Result<Wish, Failure> {
        let objective = match self.objective.as_deref() {
            Some("sum") => Objective::Sum,
            _ => Objective::Makespan,
        };
        let policy = match self.placement.as_deref() {
            Some("priority") => Policy::Priority,
            Some("parallax") => Policy::Parallax,
            _ => Policy::Optimal(objective),
        };
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|e| Failure::Misuse(format!("{}: {e}", path.display())))
        };
        let saved = self.load_placement.as_ref().map(read).transpose()?;
        Ok(Wish { policy, saved, ..Wish::default() })
    }

    fn check_words(&self) -> Result<(), Failure> {
        let host_only = |given: &Option<String>, all: &[&str], flag: &str| match given {
            Some(v) if !all.contains(&v.as_str()) => {
                Err(Failure::Misuse(format!("--{flag} {v}: expected one of {}", all.join(", "))))
            }
            _ => Ok(()),
        };
        host_only(&self.placement, &["priority", "parallax", "optimal"], "placement")?;
        host_only(&self.objective, &["makespan", "sum"], "objective")?;
        host_only(&self.arenas, &["shared", "branch"], "arenas")
    }
}

/// Measured times from what `kilnc bench --per-op --json` printed.
fn profile(path: &std::path::Path) -> Result<Profile, Failure> {
    Profile::read(path).map_err(|what| Failure::Misuse(format!("--profile {}: {what}", path.display())))
}

/// A number of bytes, without a unit.
fn whole_bytes(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a whole number of bytes, as in 1048576".to_owned())
}

/// A number of runs, cases or seconds: with none at all nothing would happen.
fn at_least_one<T: TryFrom<u64>>() -> clap::builder::RangedU64ValueParser<T> {
    clap::builder::RangedU64ValueParser::new().range(1..)
}

fn parse_dim(text: &str) -> Option<(String, DimBound)> {
    // A name may have the sign too; a size is a number.
    let (name, size) = match text.rsplit_once("..=") {
        Some((start, _)) => text.split_at(start.rfind('=')?),
        None => text.split_at(text.rfind('=')?),
    };
    let (name, size) = Some((name, &size[1..])).filter(|(name, _)| !name.is_empty())?;
    let bound = match size.split_once("..") {
        None => DimBound::Fixed(size.trim().parse().ok()?),
        Some((a, b)) => DimBound::Range(a.trim().parse().ok()?, b.trim_start_matches('=').trim().parse().ok()?),
    };
    Some((name.to_owned(), bound))
}

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// The model
    pub(super) model: PathBuf,
    /// Prints JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) compile: CompileArgs,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Graph,
    Placement,
    Schedule,
    Memory,
}

#[derive(Args, Debug)]
pub(super) struct CompileCommandArgs {
    /// The model
    pub(super) model: PathBuf,
    /// Folder for NAME.rs and NAME.weights
    #[arg(short, long, value_name = "DIR")]
    pub(super) output: PathBuf,
    /// Also writes plans as text
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PLAN")]
    pub(super) emit: Vec<Plan>,
    #[command(flatten)]
    pub(super) compile: CompileArgs,
}

#[derive(Args, Debug)]
pub(super) struct PlanArgs {
    /// The model
    pub(super) model: PathBuf,
    /// Prints JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) compile: CompileArgs,
}

#[derive(Args, Debug)]
pub(super) struct RunArgs {
    /// The model
    pub(super) model: PathBuf,
    /// An input from a file: .npy, or ONNX's .pb (the others are random; a sequence or an optional value has to be given)
    #[arg(long, value_name = "NAME=FILE")]
    pub(super) input: Vec<String>,
    /// Where random inputs start
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Writes each output there as .npy
    #[arg(long, value_name = "DIR")]
    pub(super) output_dir: Option<PathBuf>,
    /// Seconds that the run may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = at_least_one::<u64>())]
    pub(super) timeout: u64,
    /// Prints JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) compile: CompileArgs,
}

#[derive(Args, Debug)]
pub(super) struct BenchArgs {
    /// The model
    pub(super) model: PathBuf,
    /// Timed runs, after a warm-up
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = at_least_one::<usize>())]
    pub(super) iters: usize,
    /// Also times each node
    #[arg(long)]
    pub(super) per_op: bool,
    /// An input from a file: .npy, or ONNX's .pb (the others are random)
    #[arg(long, value_name = "NAME=FILE")]
    pub(super) input: Vec<String>,
    /// Where random inputs start
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Seconds that the measurement may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = at_least_one::<u64>())]
    pub(super) timeout: u64,
    /// Prints JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) compile: CompileArgs,
}

#[derive(Args, Debug)]
pub(super) struct VerifyArgs {
    /// The model
    pub(super) model: PathBuf,
    /// Random inputs to try
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one::<usize>())]
    pub(super) cases: usize,
    /// Compares every value of the graph
    #[arg(long)]
    pub(super) per_node: bool,
    /// Relative tolerance (a data.json beside the model overrides)
    #[arg(long, default_value_t = 1e-3)]
    pub(super) rtol: f64,
    /// Absolute tolerance (a data.json beside the model overrides)
    #[arg(long, default_value_t = 1e-4)]
    pub(super) atol: f64,
    /// Where random inputs start
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Seconds that one case may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = at_least_one::<u64>())]
    pub(super) timeout: u64,
    #[command(flatten)]
    pub(super) compile: CompileArgs,
}

#[derive(Subcommand, Debug)]
pub(super) enum TargetCommand {
    /// Prints a target
    #[command(after_help = "Example: kilnc target show soc-npu > mine.toml")]
    Show {
        /// host, soc-npu, host+gpu (which cannot be compiled for in this version) or a target file
        target: String,
    },
    /// Measures this machine's rates and writes them as a target file
    #[command(after_help = "Example: kilnc target measure -o mine.toml")]
    Measure {
        /// Also measures the GPU (not supported in this version)
        #[arg(long)]
        gpu: bool,
        /// The file
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
}

#[derive(Args, Debug)]
pub(super) struct PackArgs {
    /// The buffers
    pub(super) file: PathBuf,
    /// Bytes they must fit into
    #[arg(long, value_name = "N")]
    pub(super) capacity: u64,
    /// Prints JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Says nothing but results and errors
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Args, Debug)]
pub(super) struct TestArgs {
    /// Folders with model.onnx and test_data_set_*, or folders of such folders
    #[arg(required = true, value_name = "DIR")]
    pub(super) folders: Vec<PathBuf>,
    /// Relative tolerance (a data.json beside the model overrides)
    #[arg(long, default_value_t = 1e-3)]
    pub(super) rtol: f64,
    /// Absolute tolerance (a data.json beside the model overrides)
    #[arg(long, default_value_t = 1e-7)]
    pub(super) atol: f64,
    /// Compiles, builds and runs this many at once (default: the number of cores)
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<usize>,
    /// Seconds that one data set may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = at_least_one::<u64>())]
    pub(super) timeout: u64,
    /// Writes the results as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    #[command(flatten)]
    pub(super) compile: CompileArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn dims() {
        for (text, want) in [
            ("n=3", Some(("n", DimBound::Fixed(3)))),
            ("seq=1..128", Some(("seq", DimBound::Range(1, 128)))),
            ("seq=1..=128", Some(("seq", DimBound::Range(1, 128)))),
            ("a=b=3", Some(("a=b", DimBound::Fixed(3)))),
            ("a=b[0]=1..=3", Some(("a=b[0]", DimBound::Range(1, 3)))),
            ("a=..=3", None),
            ("=3", None),
            ("n", None),
            ("n=x", None),
            ("n=99999999999999999999", None),
        ] {
            assert_eq!(parse_dim(text), want.map(|(n, b)| (n.to_owned(), b)), "{text}");
        }
    }
}

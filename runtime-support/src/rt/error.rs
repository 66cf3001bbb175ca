//! Errors of a model at run time.

use core::fmt;
use kiln_kernels::Fault;

/// Why a model could not start or run. The model stays usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A node could not do its work.
    Node {
        /// The ONNX node's name.
        node: &'static str,
        /// What happened.
        fault: Fault,
    },
    /// The arena given is too small or not aligned to 64 bytes.
    Arena {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// The arena needs more than it may take.
    Budget {
        /// Bytes that the smallest schedule needs.
        needed: usize,
        /// Bytes that it may take.
        given: usize,
    },
    /// The system has no memory for the arena or the weights.
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// An input has the wrong number of bytes.
    Input {
        /// Position of the input.
        input_idx: usize,
        /// Bytes expected.
        expected: usize,
        /// Bytes given.
        given: usize,
    },
    /// An extent of an input lies outside what the module was compiled for, or contradicts another input's.
    Extent {
        /// Position of the input.
        input_idx: usize,
        /// Axis.
        axis: usize,
        /// Smallest extent possible here.
        least: usize,
        /// Greatest extent possible here.
        most: usize,
        /// The extent given.
        given: usize,
    },
    /// An input's shape has another number of axes than the model's, or the input is missing.
    Rank {
        /// Position of the input.
        input_idx: usize,
    },
    /// An array's elements do not lie in row-major order, or are of another number or shape.
    Array,
    /// The weights file cannot be read or is not the one the module was compiled with.
    Weights {
        /// Which file it is.
        place: WeightsPlace,
        /// What is wrong with it.
        fault: WeightsFault,
    },
    /// An output holds bytes that its element type does not have: a bug in the compiler.
    Output,
}

/// Which weights file an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsPlace {
    /// The file that the build wrote, by its path.
    Built(&'static str),
    /// The file of this name in the folder of the running program.
    Beside(&'static str),
    /// The file whose path the caller gave.
    Given,
}

impl fmt::Display for WeightsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Built(path) => write!(f, "the weights file {path}"),
            Self::Beside(name) => write!(f, "the weights file {name} beside the program"),
            Self::Given => f.write_str("the weights file"),
        }
    }
}

/// What is wrong with a weights file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightsFault {
    /// It is not there, or cannot be read.
    Unreadable {
        /// The system's number for the reason, where there is one.
        os_error: Option<i32>,
    },
    /// It has another length than the module's weights file.
    Length {
        /// Bytes expected.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// It has the right length and holds another model's weights, or is no weights file.
    OtherModel,
}

impl WeightsFault {
    fn write(self, place: WeightsPlace, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { os_error } => {
                write!(f, "cannot read {place}")?;
                if let WeightsPlace::Built(_) = place {
                    f.write_str(" (there is none beside the program either)")?;
                }
                match os_error {
                    #[cfg(feature = "std")]
                    Some(code) => write!(f, ": {}", std::io::Error::from_raw_os_error(code)),
                    #[cfg(not(feature = "std"))]
                    Some(code) => write!(f, ": os error {code}"),
                    None => Ok(()),
                }
            }
            Self::Length { expected, found } => {
                write!(f, "{place} has {found} bytes, not {expected}: it is cut short, or another model's")
            }
            Self::OtherModel => write!(f, "{place} is another model's, or that of another build of this one"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { node, fault } => write!(f, "node \"{node}\": {}", fault.message()),
            Self::Array => f.write_str("an array has another shape, or its elements do not lie in row-major order"),
            Self::Arena { needed, given } => {
                write!(f, "the arena must have {needed} bytes aligned to 64, {given} were given")
            }
            Self::Budget { needed, given } => {
                write!(f, "the arena needs {needed} bytes, and may take {given}")
            }
            Self::OutOfMemory { bytes } => write!(f, "no memory for {bytes} bytes"),
            Self::Input { input_idx, expected, given } => {
                write!(f, "input {input_idx}: expected {expected} bytes, {given} were given")
            }
            Self::Extent { input_idx, axis, least, most, given } if least == most => {
                write!(f, "input {input_idx}: axis {axis} must be {least} here, it is {given}")
            }
            Self::Extent { input_idx, axis, least, most, given } => {
                write!(f, "input {input_idx}: axis {axis} must lie in {least}..={most}, it is {given}")
            }
            Self::Rank { input_idx } => write!(f, "input {input_idx}: missing, or its shape has another rank"),
            Self::Weights { place, fault } => fault.write(*place, f),
            Self::Output => f.write_str("an output holds invalid bytes (a compiler bug)"),
        }
    }
}

impl core::error::Error for Error {}

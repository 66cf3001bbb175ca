//! Strings, sequences and optional values: what has no fixed size, and therefore lies in slots of its own and not in the
//! arena. Only models that have such values allocate during a run. Feature `alloc`.
//!
//! In: slots of a run ([`Objects`]), of which some are the caller's, to read only. Out: new objects in the others.
//! A program with objects runs on one stream; every access is checked (a slot in use is a fault, never a race).

mod border;
mod encoding;
mod object;
mod regex;
mod sequence;
mod slots;
mod string_compare;
mod string_number;
mod string_split;
mod strings;

pub use border::*;
pub use encoding::{decode_strings, encode_strings};
pub use object::{Element, Object, Strings, TensorObject};
pub use regex::*;
pub use sequence::*;
pub use slots::{ObjectRef, Objects};
pub use string_compare::*;
pub use string_number::*;
pub use string_split::*;
pub use strings::*;

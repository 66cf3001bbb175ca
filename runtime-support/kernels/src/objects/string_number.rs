//! Numbers written as strings, and read from them: Cast.
//!
//! Written in plain notation with the fewest digits that read as the same number; `NaN`, `INF` and `-INF` are what they are
//! in the operator's page, and are read in any case of letters.
//! <https://onnx.ai/onnx/operators/onnx__Cast.html>

use super::border::dims_of;
use super::strings::strings;
use super::{Object, Strings};
use crate::{Elem, Fault, Isa, kernel};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A number that has a text.
trait Text: Elem {
    fn text(self) -> String;
    fn read(text: &str) -> Option<Self>;
}

macro_rules! floats {
    ($($t:ty),*) => { $(impl Text for $t {
        fn text(self) -> String {
            if self.is_nan() {
                String::from("NaN")
            } else if self.is_infinite() {
                String::from(if self > 0.0 { "INF" } else { "-INF" })
            } else {
                format!("{self}")
            }
        }
        fn read(text: &str) -> Option<Self> {
            text.trim().parse().ok()
        }
    })* };
}
floats!(f32, f64);

macro_rules! integers {
    ($($t:ty),*) => { $(impl Text for $t {
        fn text(self) -> String {
            self.to_string()
        }
        // "100.5" may be read as 100.
        fn read(text: &str) -> Option<Self> {
            text.trim().parse().ok().or_else(|| f64::read(text).map(|x| x as $t))
        }
    })* };
}
integers!(i64, u64);

kernel! {
    /// `y` = the first `n` numbers of `x` as strings of these extents.
    pub struct NumbersToStrings {
        operands { read x: T }
        nums { n }
        arrays { dims: 8 }
        params { rank: usize }
        objects { write y }
    }
    entries {
        numbers_to_strings_f32 { T = f32 } numbers_to_strings_f64 { T = f64 }
        numbers_to_strings_i64 { T = i64 } numbers_to_strings_u64 { T = u64 }
    }
    body = write_body;
}

fn write_body<T: Text>(_: Isa, d: &NumbersToStrings, x: &[T], y: &mut Object) -> Result<(), Fault> {
    let texts: Vec<String> = x.get(..d.n).ok_or(Fault::Descriptor)?.iter().map(|x| x.text()).collect();
    *y = Object::Strings(Strings::new(dims_of(&d.dims, d.rank)?, texts).ok_or(Fault::Descriptor)?);
    Ok(())
}

kernel! {
    /// `y` = the numbers that the strings of `x` say.
    pub struct StringsToNumbers {
        operands { write y: T }
        objects { read x }
    }
    entries {
        strings_to_numbers_f32 { T = f32 } strings_to_numbers_f64 { T = f64 }
        strings_to_numbers_i64 { T = i64 } strings_to_numbers_u64 { T = u64 }
    }
    body = read_body;
}

fn read_body<T: Text>(_: Isa, _: &StringsToNumbers, y: &mut [T], x: &Object) -> Result<(), Fault> {
    let x = strings(x)?.data();
    let y = y.get_mut(..x.len()).ok_or(Fault::ShapeMismatch)?;
    for (x, y) in x.iter().zip(y) {
        *y = T::read(x).ok_or(Fault::NotANumber)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (x, text) in [(0.1f32, "0.1"), (-314.15926, "-314.15927"), (f32::INFINITY, "INF"), (1e9, "1000000000")] {
            assert_eq!(x.text(), text);
            assert_eq!(f32::read(text), Some(x));
        }
        assert_eq!(f64::NAN.text(), "NaN");
        assert!(f64::read("nan").unwrap().is_nan());
        for (text, x) in [("+INF", f64::INFINITY), ("-inf", f64::NEG_INFINITY), ("1e-5", 1e-5), (" 1E8", 1e8)] {
            assert_eq!(f64::read(text), Some(x));
        }
        assert_eq!(
            (i64::read("100.5"), i64::read("-7"), u64::read("18446744073709551615")),
            (Some(100), Some(-7), Some(u64::MAX))
        );
        assert_eq!((i64::read("Hello"), f32::read("")), (None, None));
    }
}

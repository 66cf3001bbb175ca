//! Hann, Hamming and Blackman windows.

use crate::{Elem, Fault, Isa, kernel, param_enum};
use core::f64::consts::PI;

param_enum! {
    /// Which window.
    pub enum Taper {
        /// `sin²(πi/N)`
        Hann,
        /// `25/46 - 21/46 · cos(2πi/N)`
        Hamming,
        /// `0.42 - 0.5·cos(2πi/N) + 0.08·cos(4πi/N)`
        Blackman,
    }
}

kernel! {
    /// A window of `y`'s length, whose period `N` is that length, or one less.
    pub struct TaperWindow {
        operands { write y: T }
        params { shape: Taper, periodic: bool }
    }
    entries {
        taper_window_f32 { T = f32 } taper_window_f64 { T = f64 }
        taper_window_i8 { T = i8 } taper_window_i16 { T = i16 } taper_window_i32 { T = i32 } taper_window_i64 { T = i64 }
        taper_window_u8 { T = u8 } taper_window_u16 { T = u16 } taper_window_u32 { T = u32 } taper_window_u64 { T = u64 }
    }
    body = taper_window;
}

trait FromF64: Elem {
    fn from_f64(x: f64) -> Self;
}

macro_rules! from_f64 {
    ($($t:ident)*) => { $(impl FromF64 for $t {
        fn from_f64(x: f64) -> Self {
            x as Self
        }
    })* };
}
from_f64!(f32 f64 i8 i16 i32 i64 u8 u16 u32 u64);

fn taper_window<T: FromF64>(_: Isa, d: &TaperWindow, y: &mut [T]) -> Result<(), Fault> {
    let n = y.len() as f64 - if d.periodic { 0.0 } else { 1.0 };
    for (i, y) in y.iter_mut().enumerate() {
        let turn = 2.0 * PI * i as f64 / n;
        *y = T::from_f64(match d.shape {
            Taper::Hann => {
                let s = libm::sin(turn / 2.0);
                s * s
            }
            Taper::Hamming => 25.0 / 46.0 - 21.0 / 46.0 * libm::cos(turn),
            Taper::Blackman => 0.42 - 0.5 * libm::cos(turn) + 0.08 * libm::cos(2.0 * turn),
        });
    }
    Ok(())
}

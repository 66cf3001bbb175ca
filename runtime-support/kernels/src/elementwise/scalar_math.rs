//! Scalar functions behind the rarer operations: f32 and f64 by crate `libm`, whose results depend on no processor.

/// Functions of f32.
pub(super) mod single {
    pub(in super::super) use libm::{fmodf as fmod, powf as pow};

    /// The remainder with the sign of `b`, zero as well.
    pub(in super::super) fn floor_mod(a: f32, b: f32) -> f32 {
        let r = fmod(a, b);
        if r == 0.0 {
            r.copysign(b)
        } else if (r < 0.0) != (b < 0.0) {
            r + b
        } else {
            r
        }
    }

    /// Area hyperbolic cosine, NaN below 1 (`libm` gives numbers far below).
    pub(in super::super) fn acosh(x: f32) -> f32 {
        if x < 1.0 { f32::NAN } else { libm::acoshf(x) }
    }
}

/// Functions of f64.
pub(super) mod double {
    pub(in super::super) use libm::{fmod, pow};

    /// The remainder with the sign of `b`, zero as well.
    pub(in super::super) fn floor_mod(a: f64, b: f64) -> f64 {
        let r = fmod(a, b);
        if r == 0.0 {
            r.copysign(b)
        } else if (r < 0.0) != (b < 0.0) {
            r + b
        } else {
            r
        }
    }

    /// Area hyperbolic cosine, NaN below 1 (`libm` gives numbers far below).
    pub(in super::super) fn acosh(x: f64) -> f64 {
        if x < 1.0 { f64::NAN } else { libm::acosh(x) }
    }
}

/// `a` to the power of `b` in an integer type, wrapping; negative powers are truncated towards zero, those of 0 are 0.
macro_rules! pow_int {
    ($t:ty, $a:expr, $b:expr, $negative:expr) => {{
        let (mut base, mut exponent, mut value): ($t, $t, $t) = ($a, $b, 1);
        if $negative {
            let odd = exponent & 1 == 1;
            if base == 1 || base == !0 && !odd {
                1
            } else if base == !0 && odd {
                base
            } else {
                0
            }
        } else {
            while exponent != 0 {
                if exponent & 1 == 1 {
                    value = value.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                exponent >>= 1;
            }
            value
        }
    }};
}
pub(super) use pow_int;

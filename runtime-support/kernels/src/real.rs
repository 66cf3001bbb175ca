//! `f32`, `f64` and `bf16` for kernels that compute in `f64` whatever they read: rarely used ones, where accuracy matters more.

use crate::{Elem, bf16};

/// A real element type.
pub trait Real: Elem + PartialOrd {
    /// Its value.
    fn get(self) -> f64;
    /// The nearest element.
    fn put(x: f64) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn get(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn put(x: f64) -> Self {
        x as Self
    }
}

impl Real for f64 {
    #[inline(always)]
    fn get(self) -> f64 {
        self
    }
    #[inline(always)]
    fn put(x: f64) -> Self {
        x
    }
}

impl Real for bf16 {
    #[inline(always)]
    fn get(self) -> f64 {
        self.into()
    }
    #[inline(always)]
    fn put(x: f64) -> Self {
        Self::from_f64(x)
    }
}

//! Dropout in training mode: elements dropped at random, the others scaled up.
//!
//! In: data, the ratio to drop (1/2 without one), a flag that may turn it off at run time. Out: the data, and a mask of
//! the elements kept. Random numbers are those of a Mersenne Twister seeded as NumPy's `RandomState(seed)` is, so that
//! results are reproducible and equal to the ONNX reference's.
//! <https://onnx.ai/onnx/operators/onnx__Dropout.html>; M. Matsumoto, T. Nishimura, "Mersenne Twister", 1998.

use super::blocks::Wide;
use crate::{Fault, Isa, bf16, f16, kernel};

kernel! {
    /// `y = x · mask / (1 - ratio)`, or `y = x` where `training` is 0.
    pub struct Dropout {
        operands { read x: T, opt ratio: Ratio, read training: Truth, write y: T, opt_write mask: Truth }
        nums { n }
        params { seed: u32 }
    }
    entries {
        dropout_f32 { T = f32, Ratio = f64, Truth = u8 } dropout_f64 { T = f64, Ratio = f64, Truth = u8 }
        dropout_f16 { T = f16, Ratio = f64, Truth = u8 } dropout_bf16 { T = bf16, Ratio = f64, Truth = u8 }
    }
    body = dropout;
}

/// Mersenne Twister, MT19937.
pub struct MersenneTwister {
    state: [u32; 624],
    next: usize,
}

impl MersenneTwister {
    /// Seeded by one number.
    pub fn new(seed: u32) -> Self {
        let mut state = [seed; 624];
        for i in 1..state.len() {
            let last = state[i - 1];
            state[i] = (last ^ last >> 30).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: state.len() }
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        let n = self.state.len();
        if self.next == n {
            for i in 0..n {
                let y = self.state[i] & 0x8000_0000 | self.state[(i + 1) % n] & 0x7fff_ffff;
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % n] ^ y >> 1 ^ odd;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    /// A number in 0..1 with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        let (high, low) = (self.bits() >> 5, self.bits() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }
}

/// A float that a scale can be applied to.
trait Scaled: Wide {
    fn scaled(self, scale: f64) -> Self;
}

macro_rules! scaled {
    ($($t:ty),*) => { $(impl Scaled for $t {
        fn scaled(self, scale: f64) -> $t {
            <$t>::narrow(self.widen() * scale as <$t as Wide>::C)
        }
    })* };
}
scaled!(f32, f64, f16, bf16);

fn dropout<T: Scaled>(
    _: Isa,
    d: &Dropout,
    x: &[T],
    ratio: Option<&[f64]>,
    training: &[u8],
    y: &mut [T],
    mut mask: Option<&mut [u8]>,
) -> Result<(), Fault> {
    let ratio = ratio.map_or(Some(0.5), |r| r.first().copied()).ok_or(Fault::Descriptor)?;
    let training = *training.first().ok_or(Fault::Descriptor)? != 0;
    if x.len() != d.n || y.len() != d.n || mask.as_ref().is_some_and(|m| m.len() != d.n) {
        return Err(Fault::Descriptor);
    }
    if !training || ratio == 0.0 {
        y.copy_from_slice(x);
        if let Some(mask) = mask {
            mask.fill(1);
        }
        return Ok(());
    }
    let mut random = MersenneTwister::new(d.seed);
    let scale = 1.0 / (1.0 - ratio);
    for (i, (y, &x)) in y.iter_mut().zip(x).enumerate() {
        let keep = random.unit() >= ratio;
        *y = if keep { x.scaled(scale) } else { T::default() };
        if let Some(mask) = &mut mask {
            mask[i] = keep.into();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_numpys() {
        let mut random = MersenneTwister::new(0);
        for want in [0.5488135039273248, 0.7151893663724195, 0.6027633760716439] {
            assert_eq!(random.unit(), want);
        }
        let mut random = MersenneTwister::new(5489);
        assert_eq!((0..10_000).map(|_| random.bits()).last(), Some(4_123_659_995));
    }
}

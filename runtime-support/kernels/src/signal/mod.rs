//! Signal processing: Fourier transforms, windows, mel filters.

mod dft;
mod fft;
mod mel;
mod window;

pub use dft::*;
pub use fft::fft_scratch_len;
pub use mel::*;
pub use window::*;

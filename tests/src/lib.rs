//! Part of Kiln.

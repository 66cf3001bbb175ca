//! Small typed numbers for everything a plan names; `Display` is their text form.

use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// From a position in a list. Lists of more than 2^32 entries are not planned.
            pub fn new(idx: usize) -> Self {
                Self(u32::try_from(idx).unwrap_or(u32::MAX))
            }

            /// The position in its list.
            pub fn idx(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    )*};
}

ids! {
    /// A node of the task graph.
    NodeId = "n";
    /// A value of the task graph.
    ValueId = "v";
    /// A device of the target.
    DeviceId = "device";
    /// A memory of the target.
    MemoryId = "memory";
    /// A DMA engine of the target.
    DmaId = "dma";
    /// A layout named in the target.
    LayoutId = "layout";
    /// An element type named in the target.
    DtypeId = "dtype";
    /// A task: what is put on a stream.
    TaskId = "t";
    /// A buffer: one value in one memory and form.
    BufferId = "b";
    /// An event that one stream signals and others wait for.
    EventId = "e";
}

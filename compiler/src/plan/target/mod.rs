//! The target: the machine that generated code will run on, as plain numbers.
//!
//! In: a target file. Out: a checked [`Target`]. Times are nanoseconds, sizes bytes, rates units a second; there are no
//! floating-point numbers, so a plan does not depend on the machine that makes it.
//! Invariants of a [`Target`]: every id names something that is there; rates are above 0; there is a host device; each
//! device has a link to the host and back; the order of devices is the order in which execution providers are asked,
//! with the host last.

mod read;
pub mod toml;

pub use read::TargetError;

use super::id::{DeviceId, DmaId, DtypeId, LayoutId, MemoryId};
use std::collections::BTreeMap;

/// A memory: a DRAM, a scratchpad, a flash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Name.
    pub name: String,
    /// Size.
    pub capacity_bytes: u64,
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// Time to the first byte.
    pub latency_ns: u64,
    /// Offsets are multiples of this.
    pub alignment_bytes: u64,
    /// Holds weights only (a flash).
    pub weights_only: bool,
    /// The larger memory behind it, to which values can be spilled.
    pub behind: Option<MemoryId>,
}

/// A device that runs kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name.
    pub name: String,
    /// The execution provider that serves it.
    pub ep: String,
    /// The memory it computes in.
    pub memory: MemoryId,
    /// Ordered queues: threads of a CPU, queues of an accelerator.
    pub streams: usize,
    /// Start of a kernel.
    pub launch_ns: u64,
    /// From a signal on one of its streams to the end of a wait on another.
    pub sync_ns: u64,
    /// Multiply-accumulates a second by element type: also which types it computes in.
    pub mac_per_s: BTreeMap<DtypeId, u64>,
    /// Element types it takes at its border.
    pub dtypes: Vec<DtypeId>,
    /// Layouts it takes at its border.
    pub layouts: Vec<LayoutId>,
}

impl Device {
    /// Peak rate for an element type; for one without a rate of its own the slowest.
    pub fn rate(&self, dtype: DtypeId) -> u64 {
        let own = self.mac_per_s.get(&dtype).copied();
        own.or_else(|| self.mac_per_s.values().copied().min()).unwrap_or(1)
    }
}

/// An engine that moves bytes on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dma {
    /// Name.
    pub name: String,
    /// From this memory.
    pub from: MemoryId,
    /// To this memory.
    pub to: MemoryId,
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// Start of a transfer.
    pub latency_ns: u64,
    /// Transfers at once.
    pub channels: usize,
}

/// One direction between two devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// From this device.
    pub from: DeviceId,
    /// To this device.
    pub to: DeviceId,
    /// Fixed cost of a crossing.
    pub handshake_ns: u64,
    /// Bytes a second; `None` where the memory is shared and nothing is copied.
    pub copy_bytes_per_s: Option<u64>,
    /// Bytes a second of a change of layout.
    pub repack_bytes_per_s: u64,
    /// Picoseconds an element of a change of type.
    pub convert_ps_per_element: u64,
    /// The engine that carries it out; else a stream of `by`.
    pub dma: Option<DmaId>,
    /// The device (one of the two) on whose stream a copy runs that no engine carries out.
    pub by: DeviceId,
}

impl Link {
    /// Whether both devices address the same memory.
    pub fn shared(&self) -> bool {
        self.copy_bytes_per_s.is_none()
    }
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name.
    pub name: String,
    /// Memories.
    pub memories: Vec<Memory>,
    /// Devices, in the order in which they are asked for claims.
    pub devices: Vec<Device>,
    /// DMA engines.
    pub dmas: Vec<Dma>,
    /// Links.
    pub links: Vec<Link>,
    /// The device whose memory holds graph inputs and outputs and which runs every operator.
    pub host: DeviceId,
    /// Names of layouts, by id.
    pub layouts: Vec<String>,
    /// Names of element types, by id.
    pub dtypes: Vec<String>,
}

/// The shipped targets: name and text.
pub const SHIPPED: [(&str, &str); 3] = [
    ("host", include_str!("../../../targets/host.toml")),
    ("host+gpu", include_str!("../../../targets/host+gpu.toml")),
    ("soc-npu", include_str!("../../../targets/soc-npu.toml")),
];

impl Target {
    /// A shipped target.
    pub fn shipped(name: &str) -> Option<Result<Target, TargetError>> {
        SHIPPED.iter().find(|(n, _)| *n == name).map(|(n, text)| Target::parse(text, n))
    }

    /// Reads a target file; `source` names it in errors.
    pub fn parse(text: &str, source: &str) -> Result<Target, TargetError> {
        read::read(text, source)
    }

    /// The device with this name.
    pub fn device_named(&self, name: &str) -> Option<DeviceId> {
        self.devices.iter().position(|d| d.name == name).map(DeviceId::new)
    }

    /// The layout with this name.
    pub fn layout_named(&self, name: &str) -> Option<LayoutId> {
        self.layouts.iter().position(|l| l == name).map(LayoutId::new)
    }

    /// The element type with this name.
    pub fn dtype_named(&self, name: &str) -> Option<DtypeId> {
        self.dtypes.iter().position(|d| d == name).map(DtypeId::new)
    }

    /// A device.
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.devices[id.idx()]
    }

    /// Number of devices.
    pub fn n_devices(&self) -> usize {
        self.devices.len()
    }

    /// All devices' ids.
    pub fn device_ids(&self) -> impl DoubleEndedIterator<Item = DeviceId> + use<> {
        (0..self.devices.len()).map(DeviceId::new)
    }

    /// The direct link between two devices.
    pub fn link(&self, from: DeviceId, to: DeviceId) -> Option<&Link> {
        self.links.iter().find(|l| l.from == from && l.to == to)
    }

    /// With this many streams on the host.
    pub fn with_host_streams(mut self, streams: usize) -> Target {
        self.devices[self.host.idx()].streams = streams.max(1);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_targets_are_good() {
        for (name, _) in SHIPPED {
            let target = Target::shipped(name).unwrap().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(target.name, name);
            assert_eq!(target.host.idx(), target.n_devices() - 1);
        }
        assert!(Target::shipped("toaster").is_none());
        let host = Target::shipped("host").unwrap().unwrap();
        assert_eq!((host.n_devices(), host.devices[0].streams, host.links.len()), (1, 1, 0));
        assert_eq!(host.with_host_streams(4).devices[0].streams, 4);
    }

    #[test]
    fn soc_npu_reads_as_written() {
        let t = Target::shipped("soc-npu").unwrap().unwrap();
        let npu = t.device_named("npu").unwrap();
        let link = t.link(t.host, npu).unwrap();
        assert!(!link.shared() && link.dma.is_some());
        let sram = &t.memories[t.device(npu).memory.idx()];
        assert_eq!(sram.behind, Some(t.device(t.host).memory));
        assert!(t.device(npu).rate(t.dtype_named("i8").unwrap()) > t.device(npu).rate(t.dtype_named("f32").unwrap()));
        // An element type without a rate gets the slowest.
        assert_eq!(t.device(npu).rate(DtypeId(999)), t.device(npu).rate(t.dtype_named("f32").unwrap()));
    }

    /// Each case edits the shipped NPU target and names what the error must say.
    #[test]
    fn bad_files_are_clear_errors() {
        let good = SHIPPED[2].1;
        let cases = [
            (
                "memory = \"sram\"",
                "memory = \"sram0\"",
                "device \"npu\", field \"memory\": there is no memory \"sram0\"",
            ),
            ("launch_ns", "lunch_ns", "device \"npu\", field \"lunch_ns\": there is no such field"),
            ("streams = 1", "streams = 0", "field \"streams\": expected 1 to 64, found 0"),
            ("streams = 1", "streams = \"one\"", "field \"streams\": expected an integer, found a string"),
            ("streams = 1", "streams = 1.0", "whole numbers only"),
            ("handshake_ns = 150_000", "handshake_ns = -1", "field \"handshake_ns\": expected"),
            ("alignment_bytes = 64", "alignment_bytes = 48", "field \"alignment_bytes\": expected a power of two"),
            ("host = \"cpu\"", "host = \"gpu\"", "field \"host\": there is no device \"gpu\""),
            (
                "[[link]]\nfrom = \"npu\"\nto = \"cpu\"",
                "[[link]]\nfrom = \"npu\"\nto = \"npu\"",
                "a link needs two devices",
            ),
            ("[[link]]\nfrom = \"npu\"\nto = \"cpu\"", "[[link]]\nfrom = \"cpu\"\nto = \"npu\"", "stands twice"),
            (
                "dma = \"store\"",
                "dma = \"load\"",
                "moves from memory \"dram\" to \"sram\", not from \"sram\" to \"dram\"",
            ),
            ("name = \"npu\"", "name = \"cpu\"", "device \"cpu\", field \"name\": stands twice"),
            ("name = \"soc-npu\"", "", "field \"name\": missing"),
            ("[[memory]]", "[[memories]]", "field \"memories\": there is no such field"),
        ];
        for (from, to, want) in cases {
            assert!(good.contains(from), "{from}");
            let text = good.replacen(from, to, 1);
            let e = Target::parse(&text, "t.toml").unwrap_err();
            assert!(e.line > 0 && e.to_string().starts_with("t.toml:"), "{e}");
            assert!(e.to_string().contains(want), "{e}\nwanted: {want}");
        }
        let e = Target::parse(&good.replacen("memory = \"sram\"", "memory = \"x\"", 1), "t.toml").unwrap_err();
        let line = good.lines().position(|l| l == "memory = \"sram\"").unwrap() + 1;
        assert_eq!(e.line, line);
    }

    #[test]
    fn a_device_without_a_way_to_the_host_is_refused() {
        let text = SHIPPED[2].1;
        let at = text.rfind("[[link]]").unwrap();
        let e = Target::parse(&text[..at], "t.toml").unwrap_err();
        assert!(e.to_string().contains("there is no link from it to the host"), "{e}");
        assert!(Target::parse("", "t.toml").unwrap_err().to_string().contains("missing"));
    }
}

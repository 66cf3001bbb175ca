//! A model's constant bytes: in the binary, or read from a file when the model is made.
//!
//! A weights file ends with a trailer (`kiln_kernels::weights_trailer`) that says which weights it holds. What is compared at
//! start is the file's length and this trailer, not the content: a start costs no more than reading.

#[cfg(feature = "std")]
use super::{Error, WeightsFault, WeightsPlace};
#[cfg(feature = "std")]
use kiln_kernels::{AlignedBytes, TRAILER_BYTES, weights_trailer};
#[cfg(feature = "std")]
use std::fs::File;
#[cfg(feature = "std")]
use std::io::{self, Read, Seek, SeekFrom};
#[cfg(feature = "std")]
use std::path::{Path, PathBuf};

/// Constant bytes of a model.
pub enum Weights {
    /// In the binary.
    Embedded(&'static [u8]),
    /// Read from a file.
    #[cfg(feature = "std")]
    Loaded(kiln_kernels::AlignedBytes),
}

impl Weights {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Embedded(b) => b,
            #[cfg(feature = "std")]
            Self::Loaded(b) => b.as_slice(),
        }
    }
}

/// A module's weights file: where the build wrote it, and what must be in it.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightsFile {
    /// The path that was compiled in.
    pub path: &'static str,
    /// Bytes of weights before the trailer.
    pub bytes: usize,
    /// SHA-256 of the weights, in hexadecimal.
    pub sha256: &'static str,
}

#[cfg(feature = "std")]
impl WeightsFile {
    /// Reads the file where the build wrote it; where that cannot be opened, the file of the same name beside the program.
    pub fn load(&self) -> Result<Weights, Error> {
        let built = WeightsPlace::Built(self.path);
        let absent = match File::open(self.path) {
            Ok(file) => return self.read(file, built),
            Err(e) => unreadable(built, &e),
        };
        let Some((name, path)) = self.beside() else { return Err(absent) };
        let beside = WeightsPlace::Beside(name);
        match File::open(path) {
            Ok(file) => self.read(file, beside),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(absent),
            Err(e) => Err(unreadable(beside, &e)),
        }
    }

    /// Reads the file at the path that the caller gives.
    pub fn load_from(&self, path: &Path) -> Result<Weights, Error> {
        let file = File::open(path).map_err(|e| unreadable(WeightsPlace::Given, &e))?;
        self.read(file, WeightsPlace::Given)
    }

    /// The file's name, and its path in the folder of the running program.
    fn beside(&self) -> Option<(&'static str, PathBuf)> {
        let name = Path::new(self.path).file_name()?.to_str()?;
        Some((name, std::env::current_exe().ok()?.parent()?.join(name)))
    }

    /// The weights of a file of the right length and trailer. The trailer is read first: a wrong file costs no more than that.
    fn read(&self, mut file: File, place: WeightsPlace) -> Result<Weights, Error> {
        let wrong = |fault| Error::Weights { place, fault };
        let failed = |e: io::Error| unreadable(place, &e);
        let (expected, found) = ((self.bytes + TRAILER_BYTES) as u64, file.metadata().map_err(failed)?.len());
        if found != expected {
            return Err(wrong(WeightsFault::Length { expected, found }));
        }
        let mut trailer = [0; TRAILER_BYTES];
        file.seek(SeekFrom::Start(self.bytes as u64)).and_then(|_| file.read_exact(&mut trailer)).map_err(failed)?;
        if digest(self.sha256).map(|sha256| weights_trailer(self.bytes as u64, sha256)) != Some(trailer) {
            return Err(wrong(WeightsFault::OtherModel));
        }
        let mut all = AlignedBytes::zeroed(self.bytes).ok_or(Error::OutOfMemory { bytes: self.bytes })?;
        file.rewind().and_then(|()| file.read_exact(all.as_mut_slice())).map_err(failed)?;
        Ok(Weights::Loaded(all))
    }
}

#[cfg(feature = "std")]
fn unreadable(place: WeightsPlace, e: &io::Error) -> Error {
    Error::Weights { place, fault: WeightsFault::Unreadable { os_error: e.raw_os_error() } }
}

/// The bytes of a digest in hexadecimal.
#[cfg(feature = "std")]
fn digest(hex: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(out)
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::format;
    use std::string::ToString;

    const SHA: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn sha() -> [u8; 32] {
        core::array::from_fn(|i| i as u8)
    }

    /// A folder that is gone afterwards.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("kiln-weights-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn file(&self, name: &str, parts: &[&[u8]]) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, parts.concat()).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn fault(result: Result<Weights, Error>) -> Option<WeightsFault> {
        match result {
            Err(Error::Weights { place: WeightsPlace::Given, fault }) => Some(fault),
            _ => None,
        }
    }

    #[test]
    fn only_the_module_s_own_file_is_read() {
        let folder = Folder::new("own");
        let file = WeightsFile { path: "", bytes: 4, sha256: SHA };
        let own = folder.file("own", &[b"abcd", &weights_trailer(4, sha())]);
        assert_eq!(file.load_from(&own).ok().map(|w| w.bytes().to_vec()), Some(b"abcd".to_vec()));
        let cut = folder.file("cut", &[b"abc", &weights_trailer(4, sha())]);
        let length = WeightsFault::Length { expected: 68, found: 67 };
        assert_eq!(fault(file.load_from(&cut)), Some(length));
        let mut other = sha();
        other[31] ^= 1;
        for trailer in [weights_trailer(4, other), weights_trailer(5, sha()), [0; TRAILER_BYTES]] {
            let other = folder.file("other", &[b"abcd", &trailer]);
            assert_eq!(fault(file.load_from(&other)), Some(WeightsFault::OtherModel));
        }
        let none = fault(file.load_from(&folder.0.join("none")));
        assert!(matches!(none, Some(WeightsFault::Unreadable { os_error: Some(_) })), "{none:?}");
        let damaged = WeightsFile { sha256: "00", ..file };
        assert_eq!(fault(damaged.load_from(&own)), Some(WeightsFault::OtherModel));
    }

    #[test]
    fn errors_say_which_file_and_why() {
        let folder = Folder::new("errors");
        let file = WeightsFile { path: "/kiln-no-such-folder/net.weights", bytes: 4, sha256: SHA };
        let text = |e: Option<Error>| e.map(|e| e.to_string()).unwrap_or_default();
        let built = text(file.load().err());
        assert!(
            built.starts_with("cannot read the weights file /kiln-no-such-folder/net.weights (there is"),
            "{built}"
        );
        let reason = io::Error::from_raw_os_error(File::open(file.path).unwrap_err().raw_os_error().unwrap());
        assert!(built.ends_with(&reason.to_string()), "{built}");
        let cut = text(file.load_from(&folder.file("cut", &[b"a"])).err());
        assert_eq!(cut, "the weights file has 1 bytes, not 68: it is cut short, or another model's");
    }

    #[test]
    fn the_program_s_folder_is_looked_into() {
        let program = std::env::current_exe().unwrap();
        let name = format!("kiln-beside-{}.weights", std::process::id());
        let beside = program.parent().unwrap().join(&name);
        let path = format!("/kiln-no-such-folder/{name}").leak();
        let file = WeightsFile { path, bytes: 4, sha256: SHA };
        std::fs::write(&beside, [&b"abcd"[..], &weights_trailer(4, sha())].concat()).unwrap();
        let good = file.load();
        std::fs::write(&beside, [0; 68]).unwrap();
        let other = file.load();
        std::fs::remove_file(&beside).unwrap();
        assert!(good.is_ok());
        match other {
            Err(Error::Weights { place: WeightsPlace::Beside(n), fault: WeightsFault::OtherModel }) => {
                assert_eq!(n, name);
            }
            other => panic!("{:?}", other.err()),
        }
    }
}

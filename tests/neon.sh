#!/usr/bin/env bash
# The kernels' own tests on aarch64, under emulation: NEON against the scalar kernels on odd sizes and tails.
#
#     bash tests/neon.sh [CPU]        # of qemu-aarch64's, by default max
#
# Needs a Rust with its library's source, qemu's user mode and a linker for aarch64. Debian has them (rustc-web, cargo-web,
# rust-web-src, qemu-user, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross); they are installed where this runs as root on
# Debian, else it says that it skipped. The library is built from source, so the toolchain in use stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
cpu=${1:-max}
packages=(rustc-web cargo-web rust-web-src qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
have() { [ -x /usr/bin/cargo ] && command -v qemu-aarch64 aarch64-linux-gnu-gcc > /dev/null && [ -d /usr/aarch64-linux-gnu ]; }
if ! have && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}"; } > /dev/null 2>&1 || true
fi
if ! have; then
  echo "skipped: NEON under emulation needs ${packages[*]}"
  exit 0
fi
target=${CARGO_TARGET_DIR:-target}/neon
env -u RUSTUP_TOOLCHAIN -u CARGO -u RUSTC PATH=/usr/bin:/bin RUSTC_BOOTSTRAP=1 CARGO_TERM_COLOR=never CARGO_TARGET_DIR="$target" CARGO_PROFILE_DEV_DEBUG=0 \
  CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $cpu -L /usr/aarch64-linux-gnu" \
  cargo test -q -Zbuild-std --target aarch64-unknown-linux-gnu -p kiln-kernels --lib --features std

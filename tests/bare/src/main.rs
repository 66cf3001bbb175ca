//! Runs a model without std, without alloc, without libc: exit code 0 when the results are right.
//!
//! The test `bare.rs` compiles the model and names the folder in `KILN_BARE_DIR`.
#![no_std]
#![no_main]

#[allow(dead_code, reason = "a model's user need not use all of it")]
mod net {
    macro_rules! __kiln_weights {
        ($symbol:literal, $bytes:expr) => {
            ::kiln::embed_weights!(concat!(env!("KILN_BARE_DIR"), "/model.weights"), $symbol, $bytes);
        };
    }
    include!(concat!(env!("KILN_BARE_DIR"), "/model.rs"));
}

static ARENA: kiln::StaticArena<{ net::Model::ARENA_BYTES }> = kiln::StaticArena::new();

fn run() -> Option<bool> {
    let mut model = net::Model::new_in(ARENA.take()?).ok()?;
    let out = model.run(net::Inputs { x: &[1.0, 2.0, 3.0, 4.0, -1.0, -2.0, 0.0, 1.0] }).ok()?;
    Some(*out.y == [7.5, 9.5, 1.25, 0.0, 0.0, 4.25])
}

fn exit(code: i32) -> ! {
    // SAFETY: the system call ends the process and touches no memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("syscall", in("rax") 231, in("rdi") code, options(noreturn))
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("svc 0", in("x8") 94, in("x0") code, options(noreturn))
    }
}

extern "C" fn start() -> ! {
    exit(match run() {
        Some(true) => 0,
        Some(false) => 1,
        None => 2,
    })
}

// The entry point: the stack is aligned as the ABI wants it before the first Rust code runs.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {}", sym start);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(".globl _start", "_start:", "mov x29, xzr", "bl {}", sym start);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(3)
}

/// What the compiler expects of C.
mod memory {
    /// # Safety
    /// As C's `memcpy`.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
        for i in 0..n {
            // SAFETY: the caller promises `n` bytes at both places. Volatile, or this loop would become a call of itself.
            unsafe { to.add(i).write_volatile(from.add(i).read()) };
        }
        to
    }

    /// # Safety
    /// As C's `memmove`.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
        if to.addr() <= from.addr() {
            // SAFETY: the same promise; ascending order reads every byte before it is overwritten.
            return unsafe { memcpy(to, from, n) };
        }
        for i in (0..n).rev() {
            // SAFETY: the caller promises `n` bytes at both places.
            unsafe { to.add(i).write_volatile(from.add(i).read()) };
        }
        to
    }

    /// # Safety
    /// As C's `memset`.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
        for i in 0..n {
            // SAFETY: the caller promises `n` bytes.
            unsafe { to.add(i).write_volatile(byte as u8) };
        }
        to
    }

    /// # Safety
    /// As C's `memcmp`.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
        for i in 0..n {
            // SAFETY: the caller promises `n` bytes at both places. Volatile, or this loop would become a call of itself.
            let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
            if x != y {
                return i32::from(x) - i32::from(y);
            }
        }
        0
    }
}

/// The standard library's `core` was built with unwinding and names this; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// As above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    loop {}
}

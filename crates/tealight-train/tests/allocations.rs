//! An allocation that fails while a file is read ends in an error and not the process, wherever its size comes from the
//! file.
//!
//! The allocator of this program fails the n-th of the large allocations. What aborts the process ends a child, so each
//! n has a process of its own; the parent counts up until a child reads the whole file.
#![expect(
    clippy::unwrap_used,
    reason = "what the test itself has written is there, or the test fails"
)]
#![expect(clippy::print_stdout, reason = "the child tells its parent what it has seen")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use tealight_train::data::images::decode;
use tealight_train::storage::tensor_file::TensorFile;
use tealight_train::storage::{files, tensors};

/// Smaller allocations do not fail: they are those of names, and of buffers with a fixed size.
const LARGE: usize = 1 << 19;
/// Which allocation fails, as `reader:n`.
const VARIABLE: &str = "TEALIGHT_TEST_FAILING_ALLOCATION";

/// The large allocations until one fails; 0 if none does.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, of which one large allocation fails.
struct Failing;

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn fails(size: usize) -> bool {
    let is_counted = size >= LARGE && LEFT.load(Ordering::Relaxed) > 0;
    is_counted && LEFT.fetch_sub(1, Ordering::Relaxed) == 1
}

#[expect(unsafe_code, reason = "an allocator is one of the unsafe traits")]
// SAFETY: the system's allocator does the work. A null pointer is how an allocation fails.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: as the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if fails(size) {
            return ptr::null_mut();
        }
        // SAFETY: as the caller's.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Reads a file; the error as text.
type Reader = fn(&Path) -> Result<(), String>;

/// The readers, with the least number of large allocations that each makes.
const READERS: [(&str, usize, Reader); 4] = [
    ("file", 1, |path| files::read(path).map(drop).map_err(text)),
    ("tensors", 2, |path| tensors::load(path, &Device::Cpu).map(drop).map_err(text)),
    ("parameters", 2, |path| {
        TensorFile::safetensors(path).and_then(TensorFile::read).map(drop).map_err(text)
    }),
    ("png", 1, |path| decode(&fs::read(path).unwrap()).map(drop)),
];

#[expect(clippy::needless_pass_by_value, reason = "the argument of `map_err`")]
fn text(error: tealight_train::Error) -> String {
    error.to_string()
}

/// The file of a reader.
fn content(reader: &str) -> Vec<u8> {
    match reader {
        "file" => vec![b' '; 1 << 20],
        "png" => png(),
        _ => {
            let matrix = Tensor::zeros((1 << 9, 1 << 9), DType::F32, &Device::Cpu).unwrap();
            let named = ["one", "two"].map(|name| (name.to_owned(), matrix.clone()));
            tensors::to_bytes(Path::new("file"), &BTreeMap::from(named)).unwrap()
        }
    }
}

/// A black picture with an alpha channel.
fn png() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 700, 500);
    encoder.set_color(png::ColorType::Rgba);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&vec![0; 700 * 500 * 4]).unwrap();
    writer.finish().unwrap();
    bytes
}

#[test]
fn a_failing_allocation_is_an_error_wherever_its_size_comes_from_the_file() {
    if let Ok(asked) = env::var(VARIABLE) {
        return read_as_asked(&asked);
    }
    let program = env::current_exe().unwrap();
    for (reader, n_large, _) in READERS {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), content(reader)).unwrap();
        let mut n_failed = 0;
        for n in 1.. {
            let mut child = Command::new(&program);
            child.arg("--nocapture").current_dir(folder.path());
            let output = child.env(VARIABLE, format!("{reader}:{n}")).output().unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(
                output.status.success(),
                "{reader}: allocation {n} ends the process\n{out}{err}"
            );
            if out.contains("read whole") {
                break;
            }
            assert!(out.contains("refused: "), "{reader}, {n}: {out}");
            n_failed += 1;
        }
        assert!(n_failed >= n_large, "{reader} makes {n_failed} large allocations");
    }
}

/// What the child does.
fn read_as_asked(asked: &str) {
    let (name, n) = asked.split_once(':').unwrap();
    let (.., read) = READERS.into_iter().find(|(reader, ..)| *reader == name).unwrap();
    // The file of the picture is not read by the reader.
    let path = Path::new("file");
    LEFT.store(n.parse().unwrap(), Ordering::Relaxed);
    let result = read(path);
    LEFT.store(0, Ordering::Relaxed);
    match result {
        Ok(()) => println!("read whole"),
        Err(error) => println!("refused: {error}"),
    }
}

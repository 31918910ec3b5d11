//! An MPI library, opened while the program runs: the program needs none to be built, and works with any of them.
//!
//! Libraries have the same functions, and differ in the types and the values of handles, which are not found in a
//! library but in the header of its interface (ABI):
//!
//! | ABI | libraries | handles |
//! |---|---|---|
//! | Open MPI's | Open MPI (`libmpi.so.40`) | addresses of variables in the library |
//! | MPICH's | MPICH, Intel MPI, Cray, MVAPICH (`libmpi.so.12`) | integers |
//! | of the standard, MPI 5 | MPICH 5 (`libmpi_abi.so.1`) | small numbers of a pointer's type |

#![expect(unsafe_code, reason = "a library's functions are found by name, without their types")]

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::{without_provenance, without_provenance_mut};

/// A handle that is an address, or a number in its place.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Address(*mut c_void);

// SAFETY: nobody but the library reads the memory at the address, and the library allows calls from any thread.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// The values that a library gives to MPI's constants.
pub(super) struct Handles<H> {
    pub(super) world: H,
    pub(super) byte: H,
    pub(super) float: H,
    pub(super) sum: H,
    pub(super) errors_return: H,
}

type OfBuffers<H> = unsafe extern "C" fn(
    *const c_void,
    *const c_int,
    *const c_int,
    H,
    *mut c_void,
    *const c_int,
    *const c_int,
    H,
    H,
) -> c_int;
type OfBufferAndParts<H> = unsafe extern "C" fn(
    *const c_void,
    c_int,
    H,
    *mut c_void,
    *const c_int,
    *const c_int,
    H,
    H,
) -> c_int;

/// The functions of a library whose handles are of type `H`.
pub(super) struct Functions<H> {
    pub(super) handles: Handles<H>,
    pub(super) init_thread:
        unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int,
    pub(super) initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(super) finalize: unsafe extern "C" fn() -> c_int,
    pub(super) abort: unsafe extern "C" fn(H, c_int) -> c_int,
    pub(super) error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
    pub(super) comm_set_errhandler: unsafe extern "C" fn(H, H) -> c_int,
    pub(super) comm_rank: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    pub(super) comm_size: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    pub(super) alltoallv: OfBuffers<H>,
    pub(super) allgatherv: OfBufferAndParts<H>,
    pub(super) bcast: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, H) -> c_int,
    pub(super) allreduce: unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H) -> c_int,
}

impl<H> Functions<H> {
    /// Finds the functions of `library`.
    ///
    /// # Safety
    /// `library` is an MPI library whose handles are of type `H`, and is never closed.
    unsafe fn find(library: &libloading::Library, handles: Handles<H>) -> Result<Self, String> {
        // SAFETY: the types follow the MPI standard, with the handles of this library.
        unsafe {
            Ok(Self {
                handles,
                init_thread: symbol(library, c"MPI_Init_thread")?,
                initialized: symbol(library, c"MPI_Initialized")?,
                finalize: symbol(library, c"MPI_Finalize")?,
                abort: symbol(library, c"MPI_Abort")?,
                error_string: symbol(library, c"MPI_Error_string")?,
                comm_set_errhandler: symbol(library, c"MPI_Comm_set_errhandler")?,
                comm_rank: symbol(library, c"MPI_Comm_rank")?,
                comm_size: symbol(library, c"MPI_Comm_size")?,
                alltoallv: symbol(library, c"MPI_Alltoallv")?,
                allgatherv: symbol(library, c"MPI_Allgatherv")?,
                bcast: symbol(library, c"MPI_Bcast")?,
                allreduce: symbol(library, c"MPI_Allreduce")?,
            })
        }
    }
}

/// A binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    OpenMpi,
    Mpich,
    Standard,
}

impl Abi {
    /// Recognises the ABI of an MPI library by functions or data that only this ABI has.
    fn from_library(library: &libloading::Library) -> Result<Self, String> {
        if !has(library, c"MPI_Init_thread") {
            return Err("it is no MPI library: it lacks `MPI_Init_thread`".to_owned());
        }
        // The standard first: such a library may load another with the maker's own ABI.
        if standard_version(library) == Some(1) {
            Ok(Self::Standard)
        } else if has(library, c"ompi_mpi_comm_world") {
            Ok(Self::OpenMpi)
        } else if has(library, c"MPIR_Dup_fn") {
            Ok(Self::Mpich)
        } else {
            Err("its binary interface is neither Open MPI's nor MPICH's nor the standard's"
                .to_owned())
        }
    }

    /// `MPI_THREAD_SERIALIZED`: any thread may call, one at a time.
    pub(super) fn thread_serialized(self) -> c_int {
        match self {
            Self::OpenMpi | Self::Mpich => 2,
            Self::Standard => 2048,
        }
    }

    /// `MPI_IN_PLACE`, in place of a buffer that is sent.
    pub(super) fn in_place(self) -> *const c_void {
        without_provenance(match self {
            Self::OpenMpi | Self::Standard => 1,
            Self::Mpich => usize::MAX,
        })
    }
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI's ABI",
            Self::Mpich => "MPICH's ABI",
            Self::Standard => "the standard's ABI",
        })
    }
}

/// Constants of MPICH's `mpi.h`.
const MPICH: Handles<c_int> = Handles {
    world: 0x4400_0000,
    byte: 0x4c00_010d,
    float: 0x4c00_040a,
    sum: 0x5800_0003,
    errors_return: 0x5400_0001,
};

/// Constants of the standard's `mpi_abi.h` (MPI 5.0, appendix A).
const STANDARD: Handles<Address> = Handles {
    world: Address(without_provenance_mut(0x101)),
    byte: Address(without_provenance_mut(0x247)),
    float: Address(without_provenance_mut(0x210)),
    sum: Address(without_provenance_mut(0x21)),
    errors_return: Address(without_provenance_mut(0x143)),
};

/// Variables of Open MPI.
fn open_mpi(library: &libloading::Library) -> Result<Handles<Address>, String> {
    // SAFETY: an address is taken of each variable, and nothing is read there.
    let variable = |name| unsafe { symbol(library, name) }.map(Address);
    Ok(Handles {
        world: variable(c"ompi_mpi_comm_world")?,
        byte: variable(c"ompi_mpi_byte")?,
        float: variable(c"ompi_mpi_float")?,
        sum: variable(c"ompi_mpi_op_sum")?,
        errors_return: variable(c"ompi_mpi_errors_return")?,
    })
}

/// The facts about a library that a message states.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) file: String,
    pub(super) abi: Abi,
    pub(super) version: String,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, abi, version } = self;
        write!(f, "{version} (`{file}`, {abi})")
    }
}

pub(super) enum AnyFunctions {
    OfIntegers(Functions<c_int>),
    OfAddresses(Functions<Address>),
}

/// An open library.
pub(super) struct Library {
    pub(super) about: About,
    pub(super) functions: AnyFunctions,
}

impl Library {
    /// Opens `file`, a path or a name that the system searches. It stays open until the process ends, because
    /// threads of its own may run in it.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn open(file: &Path) -> Result<Self, String> {
        let library = load(file).map_err(|error| reason(file, &error))?;
        let abi = Abi::from_library(&library)?;
        // SAFETY: `abi` is the library's, and it is never closed, below.
        let functions = unsafe {
            match abi {
                Abi::OpenMpi => {
                    Functions::find(&library, open_mpi(&library)?).map(AnyFunctions::OfAddresses)
                }
                Abi::Mpich => Functions::find(&library, MPICH).map(AnyFunctions::OfIntegers),
                Abi::Standard => Functions::find(&library, STANDARD).map(AnyFunctions::OfAddresses),
            }
        }?;
        let about = About { file: file.display().to_string(), abi, version: version(&library)? };
        std::mem::forget(library);
        Ok(Self { about, functions })
    }
}

/// The message of the system, without the file's name at its beginning.
fn reason(file: &Path, error: &libloading::Error) -> String {
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let name = format!("{}: ", file.display());
    text.strip_prefix(&name).unwrap_or(&text).to_owned()
}

/// Plug-ins of some libraries find the library's functions only if they are global.
#[cfg(unix)]
fn load(file: &Path) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};

    // SAFETY: loading runs the library's initialisers; those of MPI libraries ask for nothing.
    unsafe { Library::open(Some(file), RTLD_LAZY | RTLD_GLOBAL) }.map(Into::into)
}

#[cfg(not(unix))]
fn load(file: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: loading runs the library's initialisers; those of MPI libraries ask for nothing.
    unsafe { libloading::Library::new(file) }
}

/// A function or the address of a variable.
///
/// # Safety
/// The symbol is of type `T`, and `library` is never closed.
unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &CStr) -> Result<T, String> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { library.get::<T>(name) };
    symbol.map(|symbol| *symbol).map_err(|_| format!("it lacks `{}`", name.to_string_lossy()))
}

fn has(library: &libloading::Library, name: &CStr) -> bool {
    // SAFETY: a symbol has an address, and nothing is read there.
    unsafe { symbol::<*mut c_void>(library, name) }.is_ok()
}

/// The version of the standard's ABI that the library has.
fn standard_version(library: &libloading::Library) -> Option<c_int> {
    type AbiVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;

    let [mut major, mut minor] = [-1, -1];
    // SAFETY: the type is the standard's. It may be called before `MPI_Init_thread`.
    let status = unsafe {
        let version = symbol::<AbiVersion>(library, c"MPI_Abi_get_version").ok()?;
        version(&raw mut major, &raw mut minor)
    };
    (status == 0).then_some(major)
}

/// The name and the version of the library, such as `Open MPI v5.0.11`.
fn version(library: &libloading::Library) -> Result<String, String> {
    type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

    // SAFETY: the type is the standard's.
    let version: Version = unsafe { symbol(library, c"MPI_Get_library_version") }?;
    // SAFETY: it may be called before `MPI_Init_thread`, and the buffer is as long as it needs.
    let text = text(|buffer, len| unsafe { version(buffer, len) });
    let line = text.split(['\n', ',']).next().unwrap_or_default();
    Ok(line.split_whitespace().filter(|&word| word != "Version:").collect::<Vec<_>>().join(" "))
}

/// The text that `write` leaves in a buffer. 8192 bytes suffice for all texts of all ABIs.
pub(super) fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut buffer = vec![0_u8; 8192 + 1];
    let mut len = 0;
    write(buffer.as_mut_ptr().cast(), &raw mut len);
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

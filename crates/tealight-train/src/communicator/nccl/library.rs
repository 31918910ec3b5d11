//! NCCL's library, opened while the program runs: the program needs none to start.
//! <https://docs.nvidia.com/deeplearning/nccl>

#![expect(unsafe_code, reason = "a library's functions are found by name, without their types")]

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::error::{CommunicationError, Error, Result};

/// The environment variable that names the library.
const LIBRARY: &str = "TEALIGHT_NCCL";
const DEFAULT: &str = "libnccl.so.2";

/// `ncclUint8`
const BYTE: c_int = 1;

/// The bytes of an id, which names the ranks of one job.
pub(super) const ID_LEN: usize = 128;

/// `ncclUniqueId`
#[derive(Clone, Copy)]
#[repr(C)]
struct Id([u8; ID_LEN]);

/// `ncclComm_t`
type Handle = *mut c_void;

/// `cudaStream_t`
pub(super) type Stream = *mut c_void;

/// NCCL's functions. The messages of a group, from `ncclGroupStart` to `ncclGroupEnd`, run together.
struct Functions {
    get_unique_id: unsafe extern "C" fn(*mut Id) -> c_int,
    comm_init_rank: unsafe extern "C" fn(*mut Handle, c_int, Id, c_int) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, Stream) -> c_int,
    recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, Stream) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// The open library. It stays open until the process ends.
pub(super) struct Library {
    file: PathBuf,
    functions: Functions,
}

impl Library {
    /// Opens the library that `TEALIGHT_NCCL` names, or `libnccl.so.2` where the system searches.
    ///
    /// # Errors
    /// If it is not found, or lacks a function.
    pub(super) fn open() -> Result<Self> {
        let named = std::env::var_os(LIBRARY).filter(|file| !file.is_empty());
        let file = PathBuf::from(named.unwrap_or_else(|| OsString::from(DEFAULT)));
        let refused = |reason: String| {
            let message = format!(
                "`distributed.transport` = \"nccl\" needs the library `{}`, which cannot be used: {reason}; set \
                 `{LIBRARY}` to its path, or `distributed.transport` to \"host\"",
                file.display()
            );
            Error::config(["distributed.transport"], message)
        };
        // SAFETY: loading runs the library's initialisers, which ask for nothing.
        let library = unsafe { libloading::Library::new(&file) };
        let library = library.map_err(|error| refused(error.to_string()))?;
        // SAFETY: the types follow NCCL's header, which has had the same ones since release 2.7. The library is never
        // closed, see below.
        let functions = unsafe { Functions::find(&library) }.map_err(refused)?;
        std::mem::forget(library);
        Ok(Self { file, functions })
    }

    /// An id for a new job. One rank asks for it.
    pub(super) fn new_id(&self) -> Result<Vec<u8>, CommunicationError> {
        let mut id = Id([0; ID_LEN]);
        // SAFETY: the function writes an id.
        self.check("ncclGetUniqueId", unsafe { (self.functions.get_unique_id)(&raw mut id) })?;
        Ok(id.0.to_vec())
    }

    /// Joins the ranks that know `id`, on the GPU that is this thread's current one. Waits for all of them.
    pub(super) fn join(
        self,
        id: [u8; ID_LEN],
        rank: usize,
        n_ranks: usize,
    ) -> Result<Job, CommunicationError> {
        let mut handle = std::ptr::null_mut();
        let (rank, n_ranks) = (int(rank), int(n_ranks));
        let init = self.functions.comm_init_rank;
        // SAFETY: the function writes a handle, and takes the id by value.
        let status = unsafe { init(&raw mut handle, n_ranks, Id(id), rank) };
        self.check("ncclCommInitRank", status)?;
        Ok(Job { nccl: self, handle: Mutex::new(Owned(handle)) })
    }

    fn check(&self, function: &'static str, status: c_int) -> Result<(), CommunicationError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a constant text for every number.
        let message = unsafe { CStr::from_ptr((self.functions.get_error_string)(status)) };
        let message = format!("{} (`NCCL_DEBUG=WARN` says more)", message.to_string_lossy());
        Err(CommunicationError::Library {
            function,
            library: self.file.display().to_string(),
            message,
        })
    }
}

impl Functions {
    /// # Safety
    /// `library` is NCCL, and is never closed.
    unsafe fn find(library: &libloading::Library) -> Result<Self, String> {
        /// # Safety
        /// The symbol is of type `T`, and `library` is never closed.
        unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &CStr) -> Result<T, String> {
            // SAFETY: the caller's promise.
            let symbol = unsafe { library.get::<T>(name) };
            symbol
                .map(|symbol| *symbol)
                .map_err(|_| format!("it lacks `{}`", name.to_string_lossy()))
        }
        // SAFETY: the caller's promise; the types follow the header.
        unsafe {
            Ok(Self {
                get_unique_id: symbol(library, c"ncclGetUniqueId")?,
                comm_init_rank: symbol(library, c"ncclCommInitRank")?,
                group_start: symbol(library, c"ncclGroupStart")?,
                group_end: symbol(library, c"ncclGroupEnd")?,
                send: symbol(library, c"ncclSend")?,
                recv: symbol(library, c"ncclRecv")?,
                get_error_string: symbol(library, c"ncclGetErrorString")?,
            })
        }
    }
}

fn int(n: usize) -> c_int {
    c_int::try_from(n).expect("invariant: MPI counts ranks in a C integer")
}

/// `ncclComm_t`, used by one thread at a time.
struct Owned(Handle);

// SAFETY: NCCL lets any thread use a handle, one at a time.
unsafe impl Send for Owned {}

/// A rank of a job. It never leaves the job, because NCCL would wait for the other ranks, which a rank that fails must
/// not do.
pub(super) struct Job {
    nccl: Library,
    handle: Mutex<Owned>,
}

/// Memory of the GPU, with the rank that it goes to or comes from.
pub(super) struct Transfer {
    pub(super) peer: usize,
    pub(super) address: u64,
    pub(super) n_bytes: usize,
}

impl Job {
    /// Submits all transfers to `stream`, where they run together.
    ///
    /// # Safety
    /// The addresses are of memory of the GPU of [`Library::join`], which is current on this thread. Until the
    /// transfers have run, the memory that is sent does not change, and only later work of `stream` uses the memory
    /// that is received.
    pub(super) unsafe fn submit(
        &self,
        sent: &[Transfer],
        received: &[Transfer],
        stream: Stream,
    ) -> Result<(), CommunicationError> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let Functions { group_start, group_end, send, recv, .. } = self.nccl.functions;
        // SAFETY: it takes nothing.
        self.nccl.check("ncclGroupStart", unsafe { group_start() })?;
        for Transfer { peer, address, n_bytes } in sent {
            let from = std::ptr::with_exposed_provenance(*address as usize);
            // SAFETY: the caller's promise.
            let status = unsafe { send(from, *n_bytes, BYTE, int(*peer), handle.0, stream) };
            self.nccl.check("ncclSend", status)?;
        }
        for Transfer { peer, address, n_bytes } in received {
            let to = std::ptr::with_exposed_provenance_mut(*address as usize);
            // SAFETY: the caller's promise.
            let status = unsafe { recv(to, *n_bytes, BYTE, int(*peer), handle.0, stream) };
            self.nccl.check("ncclRecv", status)?;
        }
        // SAFETY: it takes nothing.
        self.nccl.check("ncclGroupEnd", unsafe { group_end() })
    }
}

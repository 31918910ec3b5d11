//! All processes of a job: `MPI_COMM_WORLD`.

#![expect(unsafe_code, reason = "MPI's functions take addresses and lengths")]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::library::{About, AnyFunctions, Functions, Library, text};
use super::parts::{Pairs, Parts};
use super::watch::Watch;
use crate::error::CommunicationError;

/// Joins the other processes (`MPI_Init_thread`).
pub(super) fn join(
    library: Library,
    watch: Arc<Watch>,
) -> Result<Box<dyn World>, CommunicationError> {
    let Library { about, functions } = library;
    Ok(match functions {
        AnyFunctions::OfIntegers(functions) => Box::new(Started::init(functions, about, watch)?),
        AnyFunctions::OfAddresses(functions) => Box::new(Started::init(functions, about, watch)?),
    })
}

/// The calls that a process makes together with the other processes. Functions have the names of MPI.
///
/// They may be called from any thread. A call waits until another thread's call has returned.
pub(super) trait World: Send + Sync {
    fn about(&self) -> &About;
    fn rank(&self) -> usize;
    fn size(&self) -> usize;

    fn alltoallv(
        &self,
        send: &[u8],
        send_parts: &Parts,
        receive: &mut [u8],
        receive_parts: &Parts,
    ) -> Result<(), CommunicationError>;

    /// `MPI_Allgatherv` with `MPI_IN_PLACE`: the bytes that this rank sends are already in its part.
    fn allgatherv(&self, bytes: &mut [u8], parts: &Parts) -> Result<(), CommunicationError>;

    /// `MPI_Alltoallv` from parts of a buffer to other parts of it.
    fn alltoallv_in_place(&self, bytes: &mut [u8], pairs: &Pairs)
    -> Result<(), CommunicationError>;

    fn bcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError>;

    fn allreduce(&self, terms: &[f32], sums: &mut [f32]) -> Result<(), CommunicationError>;

    /// Ends all processes, without waiting for a call of another thread. Returns if that fails.
    fn abort(&self, status: i32);

    /// Leaves the other processes. A second call does nothing.
    fn finalize(&self) -> Result<(), CommunicationError>;
}

/// A library after `MPI_Init_thread`.
struct Started<H> {
    about: About,
    functions: Functions<H>,
    rank: usize,
    size: usize,
    is_finalized: AtomicBool,
    /// Limits the time of calls.
    watch: Arc<Watch>,
    /// Held during a call: the library is asked for `MPI_THREAD_SERIALIZED`.
    one_at_a_time: Mutex<()>,
}

impl<H: Copy> Started<H> {
    /// Calls `MPI_Init_thread`.
    fn init(
        functions: Functions<H>,
        about: About,
        watch: Arc<Watch>,
    ) -> Result<Self, CommunicationError> {
        let mut started = Self {
            about,
            functions,
            rank: 0,
            size: 1,
            is_finalized: AtomicBool::new(false),
            watch,
            one_at_a_time: Mutex::new(()),
        };
        started.init_thread()?;
        started.set_errors_return()?;
        (started.rank, started.size) = started.place()?;
        Ok(started)
    }

    fn init_thread(&self) -> Result<(), CommunicationError> {
        let Functions { initialized, init_thread, .. } = self.functions;
        let mut is_initialized = 0;
        // SAFETY: `MPI_Initialized` may be called at any time.
        self.check("MPI_Initialized", unsafe { initialized(&raw mut is_initialized) })?;
        if is_initialized != 0 {
            return Err(self.error("MPI_Init_thread", "it was called before".to_owned()));
        }
        let (required, mut provided) = (self.about.abi.thread_serialized(), -1);
        // SAFETY: it has not been called before. The arguments of the program may be left out.
        let status = unsafe { init_thread(null_mut(), null_mut(), required, &raw mut provided) };
        self.check("MPI_Init_thread", status)?;
        if provided < required {
            return Err(CommunicationError::Launch(format!(
                "{} allows calls from one thread only, and Tealight calls from several, one at a time \
                 (`MPI_THREAD_SERIALIZED`)",
                self.about,
            )));
        }
        Ok(())
    }

    /// Makes functions return an error instead of ending the process.
    fn set_errors_return(&self) -> Result<(), CommunicationError> {
        let Functions { handles, comm_set_errhandler, .. } = &self.functions;
        // SAFETY: both handles are the library's.
        let status = unsafe { comm_set_errhandler(handles.world, handles.errors_return) };
        self.check("MPI_Comm_set_errhandler", status)
    }

    /// The rank of this process, and the number of ranks.
    fn place(&self) -> Result<(usize, usize), CommunicationError> {
        let Functions { handles, comm_rank, comm_size, .. } = &self.functions;
        let (mut rank, mut size) = (0, 1);
        // SAFETY: the library is initialised, and the handle is its own.
        self.check("MPI_Comm_rank", unsafe { comm_rank(handles.world, &raw mut rank) })?;
        // SAFETY: as above.
        self.check("MPI_Comm_size", unsafe { comm_size(handles.world, &raw mut size) })?;
        let number = |number: c_int| usize::try_from(number).expect("invariant: MPI counts from 0");
        Ok((number(rank), number(size)))
    }

    /// Runs `call` while no other thread is in a call.
    fn call(
        &self,
        function: &'static str,
        call: impl FnOnce(&Functions<H>) -> c_int,
    ) -> Result<(), CommunicationError> {
        let _lock = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_finalized.load(Ordering::SeqCst) {
            return Err(self.error(function, "it was called after `MPI_Finalize`".to_owned()));
        }
        self.check(function, self.watch.over(|| call(&self.functions)))
    }

    fn check(&self, function: &'static str, status: c_int) -> Result<(), CommunicationError> {
        if status == 0 {
            return Ok(());
        }
        let error_string = self.functions.error_string;
        // SAFETY: `status` is an error of this library, and the buffer is as long as it needs.
        let message = text(|buffer, len| unsafe { error_string(status, buffer, len) });
        Err(self.error(function, message))
    }

    fn error(&self, function: &'static str, message: String) -> CommunicationError {
        CommunicationError::Library { function, library: self.about.file.clone(), message }
    }

    /// `MPI_Alltoallv`
    ///
    /// # Safety
    /// There is a part for each rank, all parts lie within memory at these addresses, and none that is written overlaps
    /// with one that is read.
    unsafe fn alltoallv_at(
        &self,
        send: *const c_void,
        send_parts: &Parts,
        receive: *mut c_void,
        receive_parts: &Parts,
    ) -> Result<(), CommunicationError> {
        // SAFETY: the caller's promise.
        self.call("MPI_Alltoallv", |Functions { handles, alltoallv, .. }| unsafe {
            alltoallv(
                send,
                send_parts.lens().as_ptr(),
                send_parts.offsets().as_ptr(),
                handles.byte,
                receive,
                receive_parts.lens().as_ptr(),
                receive_parts.offsets().as_ptr(),
                handles.byte,
                handles.world,
            )
        })
    }

    fn assert_parts(&self, bytes: &[u8], parts: &Parts) {
        assert_eq!(parts.count(), self.size, "invariant: one part for each rank");
        assert!(parts.end() <= bytes.len(), "invariant: the parts lie within the buffer");
    }
}

/// The address of a buffer, to be read. An empty slice may have any address, also 1, which is `MPI_IN_PLACE`.
fn source(bytes: &[u8]) -> *const c_void {
    static NOTHING: u8 = 0;
    let bytes = if bytes.is_empty() { &raw const NOTHING } else { bytes.as_ptr() };
    bytes.cast()
}

/// The address of a buffer, to be written. See [`source`].
fn target(bytes: &mut [u8]) -> *mut c_void {
    static NOTHING: AtomicU8 = AtomicU8::new(0);
    let bytes = if bytes.is_empty() { NOTHING.as_ptr() } else { bytes.as_mut_ptr() };
    bytes.cast()
}

/// The length of a slice that was split such that it fits.
fn int(len: usize) -> c_int {
    c_int::try_from(len).expect("invariant: split into rounds below 2 GiB")
}

impl<H: Copy + Send + Sync> World for Started<H> {
    fn about(&self) -> &About {
        &self.about
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn alltoallv(
        &self,
        send: &[u8],
        send_parts: &Parts,
        receive: &mut [u8],
        receive_parts: &Parts,
    ) -> Result<(), CommunicationError> {
        self.assert_parts(send, send_parts);
        self.assert_parts(receive, receive_parts);
        // SAFETY: there is a part for each rank, and all parts lie within their buffers.
        unsafe { self.alltoallv_at(source(send), send_parts, target(receive), receive_parts) }
    }

    fn allgatherv(&self, bytes: &mut [u8], parts: &Parts) -> Result<(), CommunicationError> {
        self.assert_parts(bytes, parts);
        let in_place = self.about.abi.in_place();
        // SAFETY: there is a part for each rank, and all parts lie within the buffer. The library reads nothing at
        // `in_place`, and ignores the length and the type after it.
        self.call("MPI_Allgatherv", |Functions { handles, allgatherv, .. }| unsafe {
            allgatherv(
                in_place,
                0,
                handles.byte,
                target(bytes),
                parts.lens().as_ptr(),
                parts.offsets().as_ptr(),
                handles.byte,
                handles.world,
            )
        })
    }

    fn alltoallv_in_place(
        &self,
        bytes: &mut [u8],
        pairs: &Pairs,
    ) -> Result<(), CommunicationError> {
        let (send, receive) = (pairs.send(), pairs.receive());
        self.assert_parts(bytes, send);
        self.assert_parts(bytes, receive);
        let buffer = target(bytes);
        // SAFETY: there is a part for each rank, all lie within the buffer, and none that is written overlaps with one
        // that is read (`Pairs`). MPI forbids parts that overlap, not one buffer for both. MPICH refuses one address if
        // the lengths are one array, too, so `Pairs` has two.
        unsafe { self.alltoallv_at(buffer.cast_const(), send, buffer, receive) }
    }

    fn bcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
        let (root, len) = (int(root), int(bytes.len()));
        // SAFETY: the buffer has `len` bytes.
        self.call("MPI_Bcast", |Functions { handles, bcast, .. }| unsafe {
            bcast(target(bytes), len, handles.byte, root, handles.world)
        })
    }

    fn allreduce(&self, terms: &[f32], sums: &mut [f32]) -> Result<(), CommunicationError> {
        assert_eq!(terms.len(), sums.len(), "invariant: as many sums as terms");
        let len = int(terms.len());
        // SAFETY: both buffers have `len` numbers.
        self.call("MPI_Allreduce", |Functions { handles, allreduce, .. }| unsafe {
            let (terms, sums) = (terms.as_ptr().cast(), sums.as_mut_ptr().cast());
            allreduce(terms, sums, len, handles.float, handles.sum, handles.world)
        })
    }

    fn abort(&self, status: i32) {
        if self.is_finalized.load(Ordering::SeqCst) {
            return;
        }
        let Functions { handles, abort, .. } = &self.functions;
        // SAFETY: the library is initialised. A call that another thread is in ends with the process.
        unsafe { abort(handles.world, status) };
    }

    fn finalize(&self) -> Result<(), CommunicationError> {
        let _lock = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_finalized.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let finalize = self.functions.finalize;
        // SAFETY: it has not been called before, and no other function is called from now on.
        self.check("MPI_Finalize", self.watch.over(|| unsafe { finalize() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_not_sent_in_place() {
        let in_place = std::ptr::without_provenance(1);
        assert_ne!(source(&[]), in_place);
        assert_ne!(target(&mut []).cast_const(), in_place);
        assert_ne!(source(&[]), target(&mut []).cast_const());
    }
}

//! Tile instructions in software, for processors that have none.
//!
//! Such a processor raises SIGILL. The handler decodes the instruction, computes it and continues behind it. Tiles
//! belong to a thread. Any other illegal instruction is left to the handler that was there before. The handler does not
//! allocate.

#![expect(unsafe_code, reason = "a signal handler, and memory at addresses in registers")]

use std::cell::RefCell;
use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Once, OnceLock};

use pulp::Arch;

use super::decoder::{Instruction, Rows, decode};
use super::flushed;

/// A register of up to 16 rows of up to 64 bytes. Bytes outside of them are zero.
#[derive(Clone, Copy)]
struct Tile {
    n_rows: usize,
    row_bytes: usize,
    rows: [[u32; 16]; 16],
}

const EMPTY: Tile = Tile { n_rows: 0, row_bytes: 0, rows: [[0; 16]; 16] };

thread_local! {
    static TILES: RefCell<[Tile; 8]> = const { RefCell::new([EMPTY; 8]) };
}

/// The action on SIGILL before there was an emulator.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Emulates tiles from now on, in all threads of this process.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // The processor is examined here for the first time, so that the handler finds the result.
        let _ = Arch::new();
        // SAFETY: a signal's action without flags, mask and handler is all zeros.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let mut previous = action;
        // SAFETY: `previous` can be written.
        let read = unsafe { libc::sigaction(libc::SIGILL, null(), &raw mut previous) };
        PREVIOUS.set(previous).expect("invariant: the emulator is installed once");
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the arguments of SA_SIGINFO.
        let written = unsafe { libc::sigaction(libc::SIGILL, &raw const action, null_mut()) };
        assert_eq!((read, written), (0, 0), "the action on SIGILL");
    });
}

extern "C" fn handle(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO, this is the context that was interrupted. It belongs to the handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    // SAFETY: the registers are those of an instruction that was about to be executed.
    let len = TILES.with_borrow_mut(|tiles| unsafe { step(registers, tiles) });
    if let Some(len) = len {
        registers[libc::REG_RIP as usize] += len;
    } else if let Some(previous) = PREVIOUS.get() {
        // The instruction is executed again, and the previous action taken.
        // SAFETY: the action was valid.
        unsafe { libc::sigaction(libc::SIGILL, previous, null_mut()) };
    } else {
        // SAFETY: it can be called from a handler.
        unsafe { libc::abort() };
    }
}

/// General registers in the order of their numbers in instructions.
const REGISTERS: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Executes the instruction at RIP. Returns its length, or `None` if it is no valid tile instruction.
///
/// # Safety
/// RIP points to an instruction, and the operands in memory are valid.
unsafe fn step(registers: &[libc::greg_t; 23], tiles: &mut [Tile; 8]) -> Option<libc::greg_t> {
    let code = with_exposed_provenance::<u8>(registers[libc::REG_RIP as usize] as usize);
    // SAFETY: the decoder reads the bytes of an instruction, or of its beginning, and none after it.
    let code = (0..).map(|i| unsafe { code.add(i).read() });
    let register = |n: u8| registers[REGISTERS[usize::from(n)] as usize] as usize;
    let (instruction, len) = decode(code, register)?;
    // SAFETY: as for this function.
    let is_valid = unsafe { execute(instruction, tiles) };
    is_valid.then_some(len.try_into().ok()?)
}

/// Executes an instruction. Returns whether it is valid with these tiles.
///
/// # Safety
/// Operands in memory are valid.
unsafe fn execute(instruction: Instruction, tiles: &mut [Tile; 8]) -> bool {
    match instruction {
        Instruction::Configure { from } => {
            // SAFETY: the operand has 64 bytes.
            let shapes = unsafe { with_exposed_provenance::<[u8; 64]>(from).read_unaligned() };
            configure(&shapes, tiles)
        }
        Instruction::Release => {
            *tiles = [EMPTY; 8];
            true
        }
        Instruction::Zero { tile } => {
            tiles[tile].rows = EMPTY.rows;
            tiles[tile].is_configured()
        }
        Instruction::Load { tile, from } => {
            // SAFETY: as for this function.
            unsafe { tiles[tile].load(from) };
            tiles[tile].is_configured()
        }
        Instruction::Store { tile, to } => {
            // SAFETY: as for this function.
            unsafe { tiles[tile].store(to) };
            tiles[tile].is_configured()
        }
        Instruction::Multiply { sums, a, b } => {
            let [a, b] = [tiles[a], tiles[b]];
            tiles[sums].add_product(&a, &b)
        }
    }
}

/// Gives tiles the shapes of LDTILECFG's operand: palette 1 in the first byte, 14 zeros from the third on, the bytes
/// per row of 16 tiles as `u16`, and their numbers of rows. The tiles are zero then. Returns whether the shapes are
/// valid.
fn configure(shapes: &[u8; 64], tiles: &mut [Tile; 8]) -> bool {
    let (head, shapes) = shapes.split_at(16);
    let (row_bytes, n_rows) = shapes.split_at(32);
    let row_bytes = row_bytes.chunks_exact(2).map(|x| usize::from(x[0]) | usize::from(x[1]) << 8);
    let mut shapes = row_bytes.zip(n_rows.iter().map(|&n| usize::from(n)));
    for tile in tiles {
        let (row_bytes, n_rows) = shapes.next().unwrap_or_default();
        if row_bytes > 64 || n_rows > 16 || (row_bytes == 0) != (n_rows == 0) {
            return false;
        }
        *tile = Tile { n_rows, row_bytes, ..EMPTY };
    }
    head[0] == 1 && head[1..].iter().all(|&x| x == 0) && shapes.all(|shape| shape == (0, 0))
}

impl Tile {
    fn is_configured(&self) -> bool {
        self.n_rows > 0
    }

    /// # Safety
    /// The rows can be read.
    unsafe fn load(&mut self, from: Rows) {
        self.rows = EMPTY.rows;
        for (i, row) in self.rows.iter_mut().take(self.n_rows).enumerate() {
            let from = with_exposed_provenance::<u8>(from.first.wrapping_add(i * from.stride));
            // SAFETY: the caller guarantees that the row can be read. It is no longer than one of the tile.
            unsafe { from.copy_to_nonoverlapping(row.as_mut_ptr().cast(), self.row_bytes) };
        }
    }

    /// # Safety
    /// The rows can be written.
    unsafe fn store(&self, to: Rows) {
        for (i, row) in self.rows.iter().take(self.n_rows).enumerate() {
            let to = with_exposed_provenance_mut::<u8>(to.first.wrapping_add(i * to.stride));
            // SAFETY: the caller guarantees that the row can be written. It is no longer than one of the tile.
            unsafe { to.copy_from_nonoverlapping(row.as_ptr().cast(), self.row_bytes) };
        }
    }

    /// TDPBF16PS. Returns whether the shapes fit.
    fn add_product(&mut self, a: &Self, b: &Self) -> bool {
        let fit = (a.n_rows, b.row_bytes) == (self.n_rows, self.row_bytes)
            && a.row_bytes == 4 * b.n_rows
            && self.is_configured();
        if fit {
            let n_rows = self.n_rows;
            Arch::new().dispatch(
                #[inline(always)]
                || {
                    for (sums, a) in self.rows.iter_mut().zip(&a.rows).take(n_rows) {
                        add_row(sums, &a[..b.n_rows], &b.rows);
                    }
                },
            );
        }
        fit
    }
}

/// One row of sums, from a row of A's pairs and a row of B for each of them.
#[inline(always)]
fn add_row(sums: &mut [u32; 16], a: &[u32], b: &[[u32; 16]; 16]) {
    let mut apart = [[0_f32; 16]; 2];
    for (&a, b) in a.iter().zip(b) {
        for (part, sums) in apart.iter_mut().enumerate() {
            for (sum, &b) in sums.iter_mut().zip(b) {
                let [a, b] = [a, b].map(
                    #[inline(always)]
                    |pair| half(pair, part),
                );
                *sum = flushed(a.mul_add(b, *sum));
            }
        }
    }
    let [even, odd] = apart;
    for (sum, (even, odd)) in sums.iter_mut().zip(even.into_iter().zip(odd)) {
        let old = flushed(f32::from_bits(*sum));
        *sum = flushed(old + flushed(even + odd)).to_bits();
    }
}

/// The lower (0) or the upper (1) bf16 of a pair.
#[inline(always)]
fn half(pair: u32, part: usize) -> f32 {
    flushed(f32::from_bits(if part == 0 { pair << 16 } else { pair & 0xffff_0000 }))
}

/// A tile of these shapes whose rows begin with `rows`.
fn tile(n_rows: usize, row_bytes: usize, rows: &[[u32; 2]]) -> Tile {
    let mut tile = Tile { n_rows, row_bytes, ..EMPTY };
    for (to, from) in tile.rows.iter_mut().zip(rows) {
        to[..2].copy_from_slice(from);
    }
    tile
}

/// The pair of these numbers.
fn pair(even: f32, odd: f32) -> u32 {
    even.to_bits() >> 16 | odd.to_bits()
}

#[test]
fn even_and_odd_terms_are_summed_apart() {
    const LARGE: f32 = 33_554_432.;
    let a = tile(2, 8, &[[pair(LARGE, 1.), pair(-LARGE, 1.)], [pair(2., 3.), pair(5., 7.)]]);
    let b = tile(2, 8, &[[pair(1., 1.), pair(0., 1.)], [pair(1., 1.), pair(1., -1.)]]);
    let mut sums = tile(2, 8, &[[0.5_f32.to_bits(), 0], [0, 100_f32.to_bits()]]);
    assert!(sums.add_product(&a, &b));
    let sums = [sums.rows[0], sums.rows[1]].map(|row| [row[0], row[1]].map(f32::from_bits));
    assert_eq!(sums, [[2.5, -LARGE], [17., 101.]]);
}

#[test]
fn denormal_operands_and_results_are_zero() {
    let denormal = f32::from_bits(1 << 16);
    let least = f32::MIN_POSITIVE;
    let rows = [[pair(denormal, least), 0], [pair(least, -least), 0]];
    let a = tile(2, 4, &rows);
    let b = tile(1, 4, &[[pair(1., 0.5), 0]]);
    let mut sums = tile(2, 4, &[[(1_f32).to_bits(), 0], [denormal.to_bits(), 0]]);
    assert!(sums.add_product(&a, &b));
    assert_eq!(sums.rows[0][0], 1_f32.to_bits());
    assert_eq!(sums.rows[1][0], least.to_bits());
}

#[test]
fn shapes_that_do_not_fit_are_illegal() {
    let mut tiles = [EMPTY; 8];
    let mut shapes = [0; 64];
    (shapes[0], shapes[16], shapes[48]) = (1, 64, 16);
    assert!(configure(&shapes, &mut tiles));
    assert!(tiles[0].is_configured() && !tiles[1].is_configured());
    let [whole, empty] = [tiles[0], tiles[1]];
    assert!(tiles[0].add_product(&whole, &whole));
    assert!(!tiles[0].add_product(&whole, &empty) && !tiles[1].add_product(&whole, &whole));
    for (at, wrong) in [(0, 2), (1, 1), (5, 1), (16, 65), (18, 4), (32, 1), (48, 17), (63, 1)] {
        let mut shapes = shapes;
        shapes[at] = wrong;
        assert!(!configure(&shapes, &mut tiles), "byte {at}");
    }
}

#[test]
fn other_illegal_instructions_end_the_process() {
    install();
    // SAFETY: the child executes one instruction, and does not return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the instruction raises SIGILL.
        unsafe { std::arch::asm!("ud2", options(noreturn)) };
    }
    let mut status = 0;
    // SAFETY: the status can be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGILL);
}
